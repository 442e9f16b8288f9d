"""Connections that wait for their peer: they end in time, also when the process is told to stop."""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from signal import SIGTERM

import httpx

from tests.feeds import happen, head, listening, stream
from tests.stack import Board, Stack, create, play, until


def closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection on which it said nothing."""
    with suppress(BlockingIOError):
        try:
            return connection.recv(1, socket.MSG_DONTWAIT) == b""
        except ConnectionResetError:
            return True
    return False


def bare(service: Stack, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])))
    connection.sendall(sent)
    return connection


HALF = b"GET /healthz HTTP/1.1\r\nHost: te"
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n"
POOLED_SECONDS = httpx.Limits().keepalive_expiry or 0.0
"""How long httpx keeps an idle connection in its pool: 5."""


def test_the_process_ends_in_time_whoever_is_connected(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0)

    async def scenario(client: httpx.AsyncClient) -> None:
        await client.get("/healthz")
        first = head(service.database, board)
        async with AsyncExitStack() as opened:
            reading = [
                await opened.enter_async_context(listening(service, board, agent)) for agent in board.members[:3]
            ]
            # Two that take nothing: one with a full pipe, one with an empty queue.
            await opened.enter_async_context(stream(service, board, query=f"?after={first}", narrow=True))
            await opened.enter_async_context(stream(service, board, query=f"?after={first + 90}", narrow=True))
            happen(service.database, board, *["x" * 8000] * 100)
            await until("all to be read", lambda: all(len(one.events) == 100 for one in reading))
            lingering = [opened.enter_context(bare(service, sent)) for sent in (b"", HALF)]
            web = service.webs[0]
            stopped_at = time.monotonic()
            web.send(SIGTERM)
            await until("the streams to end", lambda: all(one.ended for one in reading), seconds=3)
            assert [one.ended for one in reading] == ["whole"] * 3
            await until("the process to end", lambda: web.poll() is not None, seconds=5)
            assert time.monotonic() - stopped_at < 5
            assert web.poll() == 0
            assert all(closed(one) for one in lingering)
        log = service.logs()
        assert "Worker exiting" in log
        assert "Forcing close" not in log
        # A stream goes on where it stopped, at the next process that serves it.
        service.webs.remove(web)
        service.start_web()
        async with listening(service, board, headers={"Last-Event-ID": str(first + 99)}) as again:
            await until("the last one", lambda: again.numbers == [first + 100])

    play(service, scenario)


def test_what_was_under_way_at_the_stop_is_answered(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0)

    async def scenario(client: httpx.AsyncClient) -> None:
        posted = asyncio.create_task(create(client, board, board.members[0], {"title": "under way"}))
        await until("the append", lambda: service.open_intents(board.partition) == 1)
        web = service.webs[0]
        web.send(SIGTERM)
        service.start_worker(ready=False)
        assert (await posted).status_code == 201
        await until("the process to end", lambda: web.poll() is not None, seconds=5)
        assert web.poll() == 0

    play(service, scenario)


def test_a_connection_without_a_whole_header_is_closed(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        async with listening(service, board) as said:
            opened_at = time.monotonic()
            with bare(service) as silent, bare(service, HALF) as half, bare(service, HALF) as slow:
                # The rest in time is a request like any other.
                await until("three seconds", lambda: time.monotonic() - opened_at > 3)
                assert not closed(silent)
                slow.sendall(b"st\r\n\r\n")
                await until("the answer", lambda: slow.recv(4096, socket.MSG_PEEK).startswith(b"HTTP/1.1 200"))
                await until("both to be closed", lambda: closed(silent) and closed(half), seconds=4)
                assert time.monotonic() - opened_at > 4.5
            # A stream is older by now, and is no such connection.
            happen(service.database, board, "told")
            await until("the event", lambda: said.events)
            assert said.ended is None
        assert (await client.get("/healthz")).status_code == 200

    play(service, scenario)


def test_a_connection_is_kept_for_longer_than_clients_keep_theirs(service: Stack) -> None:
    """The client must be the first to close: of a request that meets a closing server nobody can say whether it ran."""
    with bare(service, WHOLE) as connection:
        connection.settimeout(3)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        time.sleep(POOLED_SECONDS + 0.5)
        connection.sendall(WHOLE)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
