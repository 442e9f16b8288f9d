"""A board that everyone works on at once while workers die and Redis forgets: its events still tell all of it."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from signal import SIGKILL

import httpx

from models.rules.spaces import Role
from models.store.database import admin_engine
from models.store.spaces import set_members
from models.store.verify import verify_space
from tests.stack import Board, Stack, add_agents, headers_of, until

TITLES = tuple(f"Work number {number} of the lagoon" for number in range(12))
AGENTS = 12
CALLS = 60
TASKS = 8
STEPS = {
    "claim": {},
    "release": {},
    "submit": {"evidence": ["https://example.test/a"]},
    "review": {"decision": "accept"},
    "withdraw": {"reason": "Moot"},
    "reopen": {},
    "hold": {"reason": "Wait"},
    "unhold": {"reason": "Go on"},
}


def call(choice: random.Random, agents: list) -> tuple[str, str, dict]:
    """Return method, path below the space, and body of some write."""
    task = choice.randint(1, TASKS)
    match choice.choice(("create", "step", "step", "step", "step", "close", "note", "note", "role", "charter")):
        case "create":
            return "POST", "/tasks", {"title": choice.choice(TITLES)}
        case "step":
            name = choice.choice(tuple(STEPS))
            return "POST", f"/tasks/{task}/{name}", STEPS[name]
        case "close":
            body = {
                "surviving_task": choice.randint(1, TASKS),
                "reason": choice.choice(("allocation_duplicate", "steward_close")),
            }
            return "POST", f"/tasks/{task}/close", body
        case "note":
            return "POST", f"/tasks/{task}/notes", {"kind": "post_review_note", "body": choice.choice(TITLES)}
        case "role":
            return "PUT", f"/members/{choice.choice(agents).id}", {"role": choice.choice(("member", "steward"))}
        case _:
            rows = [{"work_item_id": "T1", "canonical_title": choice.choice(TITLES)}]
            return "PUT", "/charter", {"catalog": rows}


def test_a_board_under_fire(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(web=2, workers=3, agent_rate=10_000, agent_burst=10_000, lease_ms=1_000)
    database = service.database
    agents = list(add_agents(database, [f"worker-{number}" for number in range(AGENTS)]))
    with admin_engine(database.owner_url).begin() as connection:
        # Every second one is a steward: every kind of step is taken and refused.
        roles = {agent.id: Role.STEWARD if number % 2 else Role.MEMBER for number, agent in enumerate(agents)}
        set_members(connection, board.space_id, roles)
    space = f"/v0/spaces/{board.slug}"
    answers: Counter[int] = Counter()

    async def work(http: httpx.AsyncClient, number: int) -> None:
        choice = random.Random(number)
        for turn in range(CALLS):
            method, path, body = call(choice, agents)
            headers = headers_of(agents[number], Idempotency_Key=f"{number}-{turn}")
            for _ in range(5):
                answer = await http.request(method, space + path, json=body, headers=headers)
                if answer.status_code != 503:
                    break
            answers[answer.status_code] += 1

    async def fire() -> None:
        await until("half the work", lambda: sum(answers.values()) > AGENTS * CALLS // 3)
        service.workers[0].send(SIGKILL)
        await until("more of the work", lambda: sum(answers.values()) > AGENTS * CALLS // 2)
        with service.redis() as client:
            client.flushall()
        service.workers[1].send(SIGKILL)
        service.start_worker(ready=False)

    async def go() -> None:
        async with service.client() as http, asyncio.TaskGroup() as group:
            group.create_task(fire())
            for number in range(AGENTS):
                group.create_task(work(http, number))

    asyncio.run(go())
    assert sum(answers.values()) == AGENTS * CALLS
    assert answers.keys() <= {200, 201, 403, 404, 409, 422}, answers
    assert answers[200] > CALLS, answers
    with admin_engine(database.service_url).connect() as connection:
        verified = verify_space(connection, board.slug)
    assert verified.differences == ()
    assert verified.events > CALLS
    assert database.value("SELECT count(*) FROM outcomes WHERE code = 'intent_failed'") == 0
    closed = database.value("SELECT count(*) FROM events WHERE type = 'task_superseded'")
    assert database.value("SELECT count(*) FROM leftover_close_events WHERE event = 'task_superseded'") == closed
