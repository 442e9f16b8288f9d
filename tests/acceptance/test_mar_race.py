"""The MAR board's figures over HTTP: who wins, who loses and what a loser is told (Seed 000, section 6)."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import httpx
import pytest

from tests.stack import MAR, SLOTS, TITLES, Board, Request, Stack, headers_of, in_one_window, post_many

T1 = [task for task, slot in SLOTS.items() if slot == "T1"]
T3 = [task for task, slot in SLOTS.items() if slot == "T3"]
GENEROUS = {"agent_rate": 10_000, "agent_burst": 10_000}


def requests(board: Board, titles: Sequence[str], *, clients: int | None = None) -> list[Request]:
    """Return one request a client, the titles in turns."""
    count = clients or len(titles)
    return [
        Request(board.members[n % len(board.members)], board.path, {"title": titles[n % len(titles)]})
        for n in range(count)
    ]


async def check_losers(client: httpx.AsyncClient, board: Board, bodies: list[tuple[int, dict]]) -> dict[str, int]:
    """Return the winner of each slot, after each loser's pointer was followed to it."""
    won = {body["conflict_key"]["target"]: body["id"] for status, body in bodies if status == 201}
    assert len(won) == sum(status == 201 for status, _ in bodies), "two winners for one key"
    for status, body in bodies:
        if status == 201:
            assert body["status"] == "open"
            continue
        assert (status, body["error"], body["write_occurred"]) == (409, "allocation_conflict", False)
        winner = body["winner"]
        if body["code"] == "conflict_key_occupied":
            assert (body["outcome"], winner["type"], winner["status"]) == ("redirect", "task", "open")
            task = winner["id"]
        else:
            assert (body["code"], body["outcome"]) == ("conflict_key_reserved", "idle")
            assert (winner["type"], body["retry_after_ms"]) == ("reserved_intent", 200)
            assert winner["id"] == body["reserved_proposal_id"]
            task = winner["task_id"]
        assert task == won[body["conflict_key"]["target"]]
    for target, task in won.items():
        found = await client.get(f"{board.path}/{task}")
        assert (found.status_code, found.json()["conflict_key"]["target"]) == (200, target)
    return {target.rpartition(":")[2]: task for target, task in won.items()}


@pytest.mark.parametrize(
    ("titles", "expected"),
    [
        ([TITLES[task] for task in T1], [201, 409, 409, 409]),
        ([TITLES[task] for task in T3], [201, 409, 409]),
        ([TITLES[task] for task in (*T1, *T3)], [201, 409, 409, 409, 201, 409, 409]),
        ([row["title"] for row in MAR["negative"]], [201, 201]),
    ],
    ids=["four T1", "three T3", "combined", "negative 483"],
)
def test_one_window(stack: Callable[..., Stack], board: Board, titles: list[str], expected: list[int]) -> None:
    service = stack(workers=0)

    async def go() -> list[httpx.Response]:
        async with service.client() as client:
            return await in_one_window(service, client, requests(board, titles))

    answers = asyncio.run(go())
    assert [answer.status_code for answer in answers] == expected
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["code"] == "conflict_key_reserved"
            assert answer.headers["Retry-After"] == "1"
    assert service.database.value("SELECT count(*) FROM tasks") == expected.count(201)
    assert service.database.value("SELECT count(*) FROM windows") == 1


def test_the_table(stack: Callable[..., Stack], board: Board) -> None:
    """All at once and in batches: the same slots, whoever asks with however many others."""
    service = stack(web=2, workers=2, **GENEROUS)

    async def go() -> None:
        async with service.client(patience=60) as client:
            for clients in (8, 64, 256):
                several = requests(board, list(TITLES.values()), clients=clients)
                answers = await post_many(client, several)
                won = await check_losers(client, board, [(one.status_code, one.json()) for one in answers])
                assert set(won) == {"T1", "T3"}
                assert Counter(one.status_code for one in answers) == {201: 2, 409: clients - 2}
                check_table(board, several, answers)
                with_key_free_again(service)

    asyncio.run(go())


def check_table(board: Board, several: list[Request], answers: list[httpx.Response]) -> None:
    """The slot column, whatever the answer: it stands in the ConflictKey."""
    for request, answer in zip(several, answers, strict=True):
        task = next(number for number, title in TITLES.items() if title == request.body["title"])
        assert answer.json()["conflict_key"] == {
            "kind": "create_task",
            "target": f"task:{board.slug}:slot:{SLOTS[task]}",
            "delivery_mode": "result",
        }


def with_key_free_again(service: Stack) -> None:
    """End all tasks, as their review would."""
    service.database.rows("DELETE FROM occupancies")
    service.database.rows("UPDATE tasks SET status = 'done'")


@pytest.mark.parametrize("clients", [8, 64, 256])
def test_the_negative_case_at_any_width(stack: Callable[..., Stack], board: Board, clients: int) -> None:
    service = stack(web=2, workers=2, **GENEROUS)
    titles = [row["title"] for row in MAR["negative"]]

    async def go() -> None:
        async with service.client(patience=60) as client:
            answers = await post_many(client, requests(board, titles, clients=clients))
            won = await check_losers(client, board, [(one.status_code, one.json()) for one in answers])
            assert set(won) == {"T1", "T3"}

    asyncio.run(go())


def test_batches(stack: Callable[..., Stack], board: Board) -> None:
    service = stack()

    async def go() -> None:
        async with service.client() as client:
            for titles, slots in (
                ([TITLES[task] for task in T1], {"T1"}),
                ([TITLES[task] for task in T3], {"T3"}),
                (list(TITLES.values()), {"T1", "T3"}),
                ([row["title"] for row in MAR["negative"]], {"T1", "T3"}),
            ):
                answer = await client.post(
                    f"{board.path}/batch",
                    json={"tasks": [{"title": title} for title in titles]},
                    headers=headers_of(board.members[0]),
                )
                assert answer.status_code == 200
                results = [(one["status"], one["body"]) for one in answer.json()["results"]]
                assert len(results) == len(titles)
                assert set(await check_losers(client, board, results)) == slots
                for title, (status, body) in zip(titles, results, strict=True):
                    if status == 201:
                        assert body["title"] == " ".join(title.split())
                with_key_free_again(service)

    asyncio.run(go())


def test_fifty_identical_requests(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(web=2, workers=2)

    async def go() -> None:
        async with service.client() as client:
            answers = await post_many(client, requests(board, ["the same work"], clients=50))
            assert Counter(one.status_code for one in answers) == {201: 1, 409: 49}
            won = await check_losers(client, board, [(one.status_code, one.json()) for one in answers])
            for answer in answers:
                task = answer.json().get("winner", {})
                number = task.get("task_id", task.get("id", next(iter(won.values()))))
                assert (await client.get(f"{board.path}/{number}")).status_code == 200
                pointer = await client.get(f"/v0/proposals/{answer.headers['Dibs-Proposal']}")
                assert (pointer.status_code, pointer.json()["state"]) == (200, "decided")

    asyncio.run(go())
    assert service.database.value("SELECT count(*) FROM tasks") == 1


def test_one_after_the_other(stack: Callable[..., Stack], board: Board) -> None:
    service = stack()

    async def go() -> None:
        async with service.client() as client:
            first, second = [
                await client.post(board.path, json={"title": TITLES[task]}, headers=headers_of(agent))
                for task, agent in zip((91, 93), board.members, strict=False)
            ]
            assert (first.status_code, first.headers["Location"]) == (201, f"{board.path}/1")
            assert second.status_code == 409
            assert second.headers["Content-Type"] == "application/problem+json"
            body = second.json()
            assert body["code"] == "conflict_key_occupied"
            assert body["conflict_key"] == {
                "kind": "create_task",
                "target": "task:multi-agent-research:slot:T1",
                "delivery_mode": "result",
            }
            assert body["winner"] == {"type": "task", "id": 1, "status": "open", "created_by": board.members[0].id}
            assert (body["outcome"], body["write_occurred"], body["retryable"]) == ("redirect", False, False)
            assert (body["status"], body["type"]) == (409, "urn:dibs:problem:conflict_key_occupied")
            assert {"title", "detail", "proposal_id"} <= body.keys()
            assert "Retry-After" not in second.headers

    asyncio.run(go())
