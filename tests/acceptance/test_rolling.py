"""Processes are exchanged under load: what is sent until it is answered is done once, no window is lost. Contract 8."""

import asyncio
from collections.abc import Callable
from signal import SIGHUP, SIGTERM

import httpx

from tests.stack import Agent, Board, Stack, children_of, create, play, until

CLIENTS = 32
RELOADS = 6
RESTARTS = 6
SERVES = "ASGI server listening"


def test_all_is_done_once_while_processes_are_exchanged(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(web=2, workers=2, agent_rate=100_000, agent_burst=100_000)
    done = 0
    stop = asyncio.Event()

    async def send(http: httpx.AsyncClient, number: int) -> None:
        nonlocal done
        agent = board.members[number % len(board.members)]
        turn = 0
        while not stop.is_set():
            turn += 1
            await until("the answer", lambda turn=turn: is_made(http, agent, f"{number}-{turn}"))
            done += 1
            await asyncio.sleep(0.02)

    async def is_made(http: httpx.AsyncClient, agent: Agent, key: str) -> bool:
        try:
            found = await create(http, board, agent, {"title": f"Work {key}"}, Idempotency_Key=key)
        except httpx.TransportError:
            # A request may meet a connection that a process which ends just closes.
            return False
        if found.status_code == 503:
            assert found.json()["code"] in {"commons_runtime_unavailable", "allocation_pending"}
            return False
        assert found.status_code == 201
        return True

    async def reload_web() -> None:
        web, log = service.webs[0], service.folder / "web.log"
        for _ in range(RELOADS):
            before = set(children_of(web.pid))
            served = log.read_text().count(SERVES)
            web.send(SIGHUP)
            await until("new processes only", lambda before=before: is_exchanged(web.pid, before))
            await until(
                "all to serve",
                lambda before=before, served=served: log.read_text().count(SERVES) == served + len(before),
            )

    async def restart_workers() -> None:
        for number in range(RESTARTS):
            await asyncio.to_thread(service.start_worker)
            old = service.workers[number]
            old.send(SIGTERM)
            await until("the worker to end", lambda old=old: old.poll() is not None)
            assert old.poll() == 0

    async def scenario(http: httpx.AsyncClient) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(send(http, number))
            await until("some tasks", lambda: done > CLIENTS)
            await asyncio.gather(reload_web(), restart_workers())
            before = done
            await until("more tasks", lambda: done > before + CLIENTS)
            stop.set()

    play(service, scenario)
    assert service.database.value("SELECT count(*) FROM tasks") == done
    assert service.open_intents(board.partition) == 0


def is_exchanged(master: int, before: set[int]) -> bool:
    """Whether all of a server's processes are new ones."""
    now = set(children_of(master))
    return len(now) == len(before) and not now & before
