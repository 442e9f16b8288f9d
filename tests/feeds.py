"""Events written as a window does, and a reader of the stream that can be made not to read."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg

from tests.stack import Agent, Board, Database, Stack, headers_of, until

_EVENT = re.compile(rb"^id: (\d+)\nevent: (\w+)\ndata: (.*)\n\n", re.MULTILINE)


def head(database: Database, board: Board) -> int:
    """Return the number of the last event: a board begins with those of its members."""
    return int(database.value("SELECT next_event - 1 FROM spaces WHERE id = %s", board.space_id))


def happen(database: Database, board: Board, *several: object) -> None:
    """Write events, in one transaction."""
    with psycopg.connect(database.owner_url) as connection:
        for data in several:
            write(connection, board, data)


def write(connection: psycopg.Connection, board: Board, data: object) -> None:
    """Write an event and leave it to the caller to commit."""
    connection.execute("SELECT 1 FROM partitions WHERE name = %s FOR UPDATE", (board.partition,))
    connection.execute(
        "WITH given AS (UPDATE spaces SET next_event = next_event + 1 WHERE id = %s RETURNING id, next_event - 1 AS n) "
        "INSERT INTO events (space_id, number, type, at, actor, task_id, data) "
        "SELECT id, n, 'told', dibs_now(), 'alpha', n, %s::json FROM given",
        (board.space_id, json.dumps(data)),
    )


class Stream:
    """One connection that asked for a stream; nothing is read from it before ``listen``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._rest = b""
        self.head = b""
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.first = b""
        self.ended: str | None = None

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.events]

    async def listen(self, *, keep_data: bool = True) -> None:
        """Read to the end. ``ended`` then is how: ``whole`` for a stream that said its end, else ``cut``."""
        try:
            self.head = await self._reader.readuntil(b"\r\n\r\n")
            while True:
                size = int(await self._reader.readuntil(b"\r\n"), 16)
                body = (await self._reader.readexactly(size + 2))[:-2]
                if not size:
                    self.ended = "whole"
                    return
                self.first = self.first or body
                self._take(body, keep_data=keep_data)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended = "cut"

    def _take(self, body: bytes, *, keep_data: bool) -> None:
        text = self._rest + body
        at = 0
        for found in _EVENT.finditer(text):
            data = json.loads(found[3])
            assert (data["number"], data["type"]) == (int(found[1]), found[2].decode())
            self.events.append((data["number"], data if keep_data else {}))
            at = found.end()
        self._rest = text[at:] if at else text

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def stream(
    service: Stack,
    board: Board,
    agent: Agent | None = None,
    *,
    query: str = "",
    headers: Mapping[str, str] | None = None,
    narrow: bool = False,
) -> AsyncIterator[Stream]:
    """Ask for the stream. With ``narrow`` the peer's system takes next to nothing that the test does not read."""
    connection = socket.socket()
    if narrow:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    port = int(service.url.rpartition(":")[2])
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    # A reader that is not asked takes 4 kB at most.
    reader, writer = await asyncio.open_connection(sock=connection, limit=2048 if narrow else 2**20)
    sent = {"Host": "test"} | ({} if agent is None else headers_of(agent)) | dict(headers or {})
    lines = [f"GET /v0/spaces/{board.slug}/events/stream{query} HTTP/1.1", *(f"{n}: {v}" for n, v in sent.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    try:
        yield Stream(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def listening(
    service: Stack, board: Board, agent: Agent | None = None, *, keep_data: bool = True, **options: Any
) -> AsyncIterator[Stream]:
    """Read a stream beside what the test does; it has begun when this is entered."""
    async with stream(service, board, agent, **options) as found:
        task = asyncio.create_task(found.listen(keep_data=keep_data))
        await until("the stream to begin", lambda: found.first or task.done())
        try:
            yield found
        finally:
            task.cancel()
            ended = await asyncio.gather(task, return_exceptions=True)
            if ended[0] is not None and not isinstance(ended[0], asyncio.CancelledError):
                raise ended[0]
