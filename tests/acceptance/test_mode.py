"""Drain under load, and when the word may be said. Contract 4."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import httpx
import psycopg
import pytest

from tests.stack import ROOT, Board, Request, Stack, create, headers_of, play, until

CLIENTS = 256
SAMPLE = "deploy/boards/multi-agent-research.json"


def dibs(service: Stack, *arguments: str, **more: str) -> tuple[int, Any]:
    """Run a command beside the service; return its status and its JSON."""
    ran = subprocess.run(
        [sys.executable, "-m", "deploy.cli", *arguments, "--json"],
        cwd=ROOT, env={**service.environment, **more}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, json.loads(ran.stdout) if ran.stdout else ran.stderr


async def run(service: Stack, *arguments: str) -> tuple[int, Any]:
    return await asyncio.to_thread(dibs, service, *arguments)


def test_nothing_fresh_commits_once_it_is_drained(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(web=2, workers=2, agent_rate=100_000, agent_burst=100_000)
    refused: list[Request] = []
    answers: Counter[tuple[int, str | None]] = Counter()
    stop = asyncio.Event()

    async def burst(http: httpx.AsyncClient, number: int) -> None:
        agent = board.members[number % len(board.members)]
        turn = 0
        while not stop.is_set():
            turn += 1
            body, key = {"title": f"Work {number} {turn}"}, f"{number}-{turn}"
            answer = await create(http, board, agent, body, Idempotency_Key=key)
            answers[answer.status_code, answer.json().get("code")] += 1
            if answer.status_code == 503:
                assert answer.json()["code"] == "work_drain_active"
                assert int(answer.headers["Retry-After"]) >= 1
                refused.append(Request(agent, board.path, body, {"Idempotency-Key": key}))
                await asyncio.sleep(0.2)

    async def scenario(http: httpx.AsyncClient) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(burst(http, number))
            await until("some tasks", lambda: answers[201, None] > CLIENTS)
            status, found = await run(service, "mode", "drain", "--reason", "test", "--wait")
            assert (status, found["drained"], found["waiting_for"]) == (0, True, [])
            committed = service.database.value("SELECT count(*) FROM tasks")
            await until("refusals", lambda: len(refused) > CLIENTS)
            assert service.database.value("SELECT count(*) FROM tasks") == committed
            stop.set()
        tasks = service.database.value("SELECT count(*) FROM tasks")
        assert tasks == answers[201, None] == service.database.value("SELECT count(*) FROM idempotency")
        agent = board.members[0]
        replay = await create(http, board, agent, {"title": "Work 0 1"}, Idempotency_Key="0-1")
        assert (replay.status_code, replay.headers["Idempotent-Replayed"]) == (201, "true")
        claim = await http.post(f"{board.path}/1/claim", headers=headers_of(agent))
        assert (claim.status_code, claim.json()["code"]) == (503, "work_drain_active")
        made = (await http.get(f"{board.path}/1")).json()
        creator = next(one for one in board.members if one.id == made["created_by"])
        kept = await http.post(f"{board.path}/1/withdraw", json={"reason": "Moot"}, headers=headers_of(creator))
        assert kept.status_code == 200
        assert (await run(service, "mode", "active", "--reason", "done"))[0] == 0
        for request in refused[:32]:
            for expected in (None, "true"):
                answer = await http.post(
                    request.path, json=request.body, headers=headers_of(request.agent) | dict(request.headers)
                )
                assert (answer.status_code, answer.headers.get("Idempotent-Replayed")) == (201, expected)

    play(service, scenario)
    history = dibs(service, "mode", "history")[1]
    assert [(one["mode"], one["reason"], one["epoch"]) for one in history] == [
        ("active", "done", 3),
        ("drain", "test", 2),
    ]


def test_what_was_queued_when_the_mode_flips_is_refused(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0)

    async def scenario(http: httpx.AsyncClient) -> None:
        waiting = asyncio.create_task(create(http, board, board.members[0], {"title": "Too late"}))
        await until("the append", lambda: service.open_intents(board.partition) == 1)
        await run(service, "mode", "drain", "--reason", "test")
        with service.redis() as client:
            assert client.exists(f"dibs:p:{board.partition}")
        service.start_worker(ready=False)
        answer = await waiting
        assert (answer.status_code, answer.json()["code"]) == (503, "work_drain_active")

    play(service, scenario)
    assert service.database.value("SELECT count(*) FROM tasks") == 0


def test_a_stopped_worker_keeps_the_claim_until_it_is_accounted_for(stack: Callable[..., Stack]) -> None:
    service = stack(workers=2)

    async def scenario(_: httpx.AsyncClient) -> None:
        await until("three registrations", lambda: len(dibs(service, "fleet")[1]) == 3)
        service.workers[0].send(SIGSTOP)
        status, found = await run(service, "mode", "drain", "--reason", "test", "--wait", "--timeout", "1")
        assert (status, found["drained"]) == (3, False)
        (line,) = found["waiting_for"]
        assert f"pid {service.workers[0].pid}" in line
        service.workers[0].send(SIGKILL)
        service.workers[0].send(SIGCONT)
        status, found = await run(service, "mode", "drain", "--reason", "again", "--wait", "--timeout", "20")
        assert (status, found["drained"]) == (0, True)
        assert len(dibs(service, "fleet")[1]) == 2

    play(service, scenario)


def test_a_vanished_process_with_open_sessions_is_acknowledged_by_hand(service: Stack) -> None:
    name = "vanished-1-00000000"
    service.database.rows(
        "INSERT INTO fleet VALUES (%s, 'worker', 'elsewhere', 7, '0', 'active', 1, 1, now(), now() - interval '1 h')",
        name,
    )
    with psycopg.connect(service.database.service_url, application_name=f"dibs-worker-{name}"):
        status, found = dibs(service, "mode", "drain", "--reason", "test", "--wait", "--timeout", "2")
        assert (status, found["drained"], name in found["waiting_for"][0]) == (3, False, True)
        assert dibs(service, "mode", "status")[0] == 3
        assert dibs(service, "fleet", "forget", "nobody")[0] == 1
        assert dibs(service, "fleet", "forget", name) == (0, {"forgotten": name})
        assert dibs(service, "mode", "status")[0] == 0


def test_a_process_with_a_floor_of_drain_admits_nothing(
    stacks: Callable[..., Stack], database, redis_url, board
) -> None:
    class Drained(Stack):
        @property
        def environment(self) -> dict[str, str]:
            return {**super().environment, "CONCRESCA_WORK_MODE": "drain"}

    service = stacks(database=database, redis_url=redis_url, workers=0, web=0)
    service.__class__ = Drained
    service.start_web(ready=False)
    service.start_worker(ready=False)
    service.wait_ready()

    async def scenario(http: httpx.AsyncClient) -> None:
        answer = await create(http, board, board.members[0], {"title": "Nothing"})
        assert (answer.status_code, answer.json()["code"]) == (503, "work_drain_active")
        assert dibs(service, "mode", "show")[1]["mode"] == "active"

    play(service, scenario)


@pytest.mark.parametrize("value", ["Active", "", "drain ", "on"])
def test_no_other_word_is_a_mode(service: Stack, value: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "worker"],
        cwd=ROOT, env={**service.environment, "CONCRESCA_WORK_MODE": value}, capture_output=True, text=True,
        check=False, timeout=30,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "active or drain" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_operators_make_no_spaces_in_drain(service: Stack) -> None:
    assert dibs(service, "space", "create", "lagoon")[0] == 0
    assert dibs(service, "mode", "drain", "--reason", "test")[0] in {0, 3}
    for arguments in (("space", "create", "reef"), ("space", "import", str(ROOT / SAMPLE))):
        status, line = dibs(service, *arguments)
        assert (status, line) == (1, "dibs: the service drains: dibs mode active ends that\n")
    assert service.database.value("SELECT count(*) FROM spaces WHERE slug = 'reef'") == 0


def test_an_emptied_redis_stays_drained(service: Stack, board: Board) -> None:
    async def scenario(http: httpx.AsyncClient) -> None:
        assert (await run(service, "mode", "drain", "--reason", "test", "--wait"))[0] == 0
        with service.redis() as client:
            client.flushall()
        answer = await create(http, board, board.members[0], {"title": "Nothing"})
        assert answer.json()["code"] == "work_drain_active"

    play(service, scenario)
