"""Workers that die or stop at any step of a window: whoever waits gets one true answer, and soon."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGKILL

import httpx
import pytest

from tests.stack import Board, Database, Request, Stack, children_of, headers_of, post_many, until
from tests.waiting import wait_for

STEPS = (
    "fenced",
    "reserved",
    "before_transaction",
    "in_transaction",
    "before_commit",
    "after_commit",
    "answered",
)
CLIENTS = 16
KEYS = 4
GRACE_MS = 2_000
ROUNDS = 10


def race(board: Board, name: str) -> list[Request]:
    """Sixteen requests for four pieces of work."""
    return [
        Request(board.members[n % len(board.members)], board.path, {"title": f"{name} work {n % KEYS}"})
        for n in range(CLIENTS)
    ]


def check_race(database: Database, answers: list[httpx.Response], name: str) -> None:
    """One winner for each key, known to all its losers, and one task."""
    texts = [answer.text for answer in answers]
    assert Counter(answer.status_code for answer in answers) == {201: KEYS, 409: CLIENTS - KEYS}, texts
    tasks = [answer.json() for answer in answers if answer.status_code == 201]
    won = {task["conflict_key"]["target"]: task["id"] for task in tasks}
    assert len(won) == KEYS
    for answer in answers:
        if answer.status_code == 409:
            body = answer.json()
            assert body["write_occurred"] is False
            winner = body["winner"]
            assert winner.get("task_id", winner["id"]) == won[body["conflict_key"]["target"]], body
    found = database.rows("SELECT id FROM tasks WHERE title LIKE %s", f"{name} work%")
    assert sorted(row["id"] for row in found) == sorted(won.values())


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_any_step_costs_no_answer(
    stack: Callable[..., Stack], board: Board, tmp_path: Path, step: str
) -> None:
    marker = tmp_path / "marker"
    lease_ms = 1_000
    service = stack(web=2, workers=0, lease_ms=lease_ms)
    for _ in range(2):
        service.start_worker(step, "kill", str(marker), ready=False)
    service.wait_ready()

    async def go() -> float:
        async with service.client() as client:
            for number in range(ROUNDS):
                answers = await post_many(client, race(board, f"round {number}"))
                answered_at = time.time()
                check_race(service.database, answers, f"round {number}")
                if marker.exists():
                    return answered_at
        raise AssertionError(f"no worker reached {step} in {ROUNDS} rounds")

    answered_at = asyncio.run(go())
    assert sum(worker.poll() is None for worker in service.workers) == 1
    assert answered_at - marker.stat().st_mtime <= (lease_ms + GRACE_MS) / 1000
    assert not [line for line in service.logs().splitlines() if "intents_failed" in line]


@pytest.mark.parametrize("step", ["fenced", "before_transaction", "in_transaction", "before_commit", "after_commit"])
def test_a_worker_stopped_past_its_lease_changes_nothing_later(
    stack: Callable[..., Stack], board: Board, tmp_path: Path, step: str
) -> None:
    marker = tmp_path / "marker"
    lease_ms = 1_000
    service = stack(web=1, workers=0, lease_ms=lease_ms, window_ttl_ms=1_000)
    for _ in range(2):
        service.start_worker(step, "stop", str(marker), ready=False)
    service.wait_ready()

    async def go() -> None:
        async with service.client() as client:
            answers = await post_many(client, race(board, "first"))
            answered_at = time.time()
            check_race(service.database, answers, "first")
            assert answered_at - marker.stat().st_mtime <= (lease_ms + GRACE_MS) / 1000
            # The other one has the partition now, and goes on with it.
            check_race(service.database, await post_many(client, race(board, "second")), "second")
            before = state(service.database)
            pid = int(marker.read_text())
            (stopped,) = (number for number, worker in enumerate(service.workers) if worker.pid == pid)
            log = service.folder / f"worker-{stopped}.log"
            os.kill(pid, SIGCONT)
            await until(
                "the woken worker to notice",
                lambda: any(f'"event": "{name}"' in log.read_text() for name in ("lease_lost", "outage", "window")),
            )
            assert state(service.database) == before
            check_race(service.database, await post_many(client, race(board, "third")), "third")
            assert all(worker.poll() is None for worker in service.workers)

    asyncio.run(go())


def state(database: Database) -> dict[str, list[dict[str, object]]]:
    return {
        name: database.rows(f"SELECT t::text AS row FROM {name} t ORDER BY 1")
        for name in ("tasks", "occupancies", "events", "outcomes", "idempotency", "windows")
    }


def test_a_lost_job_is_found(stack: Callable[..., Stack], board: Board) -> None:
    """As if the web process had died between its append and its wake-up call."""
    service = stack(web=1, workers=0)

    async def go() -> None:
        async with service.client() as client:
            posted = asyncio.create_task(post_many(client, race(board, "lost")))
            await until("all to be appended", lambda: service.open_intents(board.partition) == CLIENTS)
            with service.redis() as redis:
                assert redis.llen("rq:queue:dibs") == 1
                redis.delete("rq:queue:dibs", *redis.scan_iter("rq:job:*"))
                service.start_worker(ready=False)
                await asyncio.to_thread(service.wait_ready)
                started = time.monotonic()
                answers = await posted
            assert time.monotonic() - started < 2
            check_race(service.database, answers, "lost")

    asyncio.run(go())


def test_a_web_process_killed_after_its_append_loses_no_window(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(web=1, workers=0)
    agent = board.members[0]
    key = headers_of(agent, Idempotency_Key="the-same")

    async def go() -> None:
        async with service.client() as client:
            posted = asyncio.create_task(client.post(board.path, json={"title": "survives"}, headers=key))
            await until("the append", lambda: service.open_intents(board.partition) == 1)
            (process,) = children_of(service.webs[0].pid)
            os.kill(process, SIGKILL)
            with pytest.raises(httpx.TransportError):
                await posted
            with service.redis() as redis:
                redis.delete("rq:queue:dibs")
        service.start_worker(ready=False)
        await asyncio.to_thread(service.wait_ready)
        started = time.monotonic()
        await until("the window", lambda: service.database.value("SELECT count(*) FROM tasks") == 1, seconds=2)
        assert time.monotonic() - started < 2
        service.wait_ready()
        async with service.client() as client:
            again = await client.post(board.path, json={"title": "survives"}, headers=key)
        assert (again.status_code, again.headers["Idempotent-Replayed"], again.json()["id"]) == (201, "true", 1)
        assert service.database.value("SELECT count(*) FROM tasks") == 1

    asyncio.run(go())


def test_a_worker_asked_to_stop_finishes_its_window(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(web=1, workers=2)

    async def go() -> None:
        async with service.client() as client:
            posted = [asyncio.create_task(post_many(client, race(board, f"round {n}"))) for n in range(4)]
            os.kill(service.workers[0].pid, 15)
            for number, answers in enumerate(await asyncio.gather(*posted)):
                check_race(service.database, answers, f"round {number}")

    asyncio.run(go())
    assert wait_for("the worker to end", lambda: service.workers[0].poll() is not None, seconds=10)
    assert service.workers[0].poll() == 0
