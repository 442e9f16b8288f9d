"""Requests that are sent again, and those that nobody waits for."""

from collections import Counter
from collections.abc import Callable

import httpx

from tests.stack import SLUG, TITLES, Board, Request, Stack, create, headers_of, in_one_window, play, post_many, until

# Idempotency-Key


def test_the_same_key_and_body_bring_the_same_bytes(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        agent, other = board.members[:2]
        first = await create(client, board, agent, {"title": TITLES[91]}, Idempotency_Key="k")
        assert first.status_code == 201
        assert "Idempotent-Replayed" not in first.headers
        # Another spelling of the same request, and a task that has ended since.
        service.database.rows("DELETE FROM occupancies")
        service.database.rows("UPDATE tasks SET status = 'done', revision = 2")
        for body in ({"title": TITLES[91]}, {"body": "", "title": f" {TITLES[91]} ", "delivery_mode": "result"}):
            again = await create(client, board, agent, body, Idempotency_Key="k")
            assert (again.status_code, again.content) == (201, first.content)
            assert again.headers["Idempotent-Replayed"] == "true"
            for name in ("Location", "Dibs-Proposal", "Content-Type"):
                assert again.headers[name] == first.headers[name]
        changed = await create(client, board, agent, {"title": TITLES[95]}, Idempotency_Key="k")
        assert (changed.status_code, changed.json()["code"]) == (422, "idempotency_key_reused")
        # The key is one agent's and one path's.
        elsewhere = await create(client, board, other, {"title": TITLES[95]}, Idempotency_Key="k")
        assert (elsewhere.status_code, elsewhere.json()["created_by"]) == (201, other.id)
        batch = await client.post(
            f"{board.path}/batch", json={"tasks": [{"title": "b"}]}, headers=headers_of(agent, Idempotency_Key="k")
        )
        assert batch.status_code == 200
        assert "Idempotent-Replayed" not in batch.headers

    play(service, scenario)


def test_a_refusal_is_evaluated_again(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        await create(client, board, board.members[1], {"title": "work"})
        lost = await create(client, board, board.members[0], {"title": "work"}, Idempotency_Key="k")
        assert lost.status_code == 409
        service.database.rows("DELETE FROM occupancies")
        service.database.rows("UPDATE tasks SET status = 'rejected'")
        won = await create(client, board, board.members[0], {"title": "work"}, Idempotency_Key="k")
        assert won.status_code == 201
        assert "Idempotent-Replayed" not in won.headers

    play(service, scenario)


def test_one_key_twice_at_once_is_one_task(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        for number in range(5):
            request = Request(board.members[0], board.path, {"title": f"t{number}"}, {"Idempotency-Key": f"k{number}"})
            answers = await post_many(client, [request] * 8)
            assert {answer.status_code for answer in answers} == {201}
            assert len({answer.content for answer in answers}) == 1
            assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
        assert service.database.value("SELECT count(*) FROM tasks") == 5

    play(service, scenario)


def test_another_body_under_a_key_in_flight(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0)

    async def scenario(client: httpx.AsyncClient) -> None:
        key = {"Idempotency-Key": "k"}
        several = [Request(board.members[0], board.path, {"title": title}, key) for title in ("one", "two", "one")]
        first, other, same = await in_one_window(service, client, several)
        assert [first.status_code, other.status_code, same.status_code] == [201, 422, 201]
        assert other.json()["code"] == "idempotency_key_reused"
        assert same.content == first.content

    play(service, scenario)


def test_a_batch_is_replayed_whole(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        headers = headers_of(board.members[0], Idempotency_Key="batch")
        tasks = [{"title": title} for title in TITLES.values()]
        first = await client.post(f"{board.path}/batch", json={"tasks": tasks}, headers=headers)
        assert first.status_code == 200
        assert Counter(one["status"] for one in first.json()["results"]) == {201: 2, 409: 5}
        service.database.rows("DELETE FROM occupancies")
        service.database.rows("UPDATE tasks SET status = 'done'")
        again = await client.post(f"{board.path}/batch", json={"tasks": tasks}, headers=headers)
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["Idempotent-Replayed"] == "true"
        shorter = await client.post(f"{board.path}/batch", json={"tasks": tasks[:-1]}, headers=headers)
        assert (shorter.status_code, shorter.json()["code"]) == (422, "idempotency_key_reused")
        whole = await client.get(f"/v0/proposals/{first.headers['Dibs-Proposal']}", headers=headers)
        assert [one["status"] for one in whole.json()["results"]] == [one["status"] for one in first.json()["results"]]
        for one in first.json()["results"]:
            item = await client.get(f"/v0/proposals/{one['proposal_id']}", headers=headers)
            assert (item.json()["status"], item.json()["answer"]) == (one["status"], one["body"])

    play(service, scenario)


# Waiting


def test_a_request_that_does_not_wait(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0)
    agent, stranger = board.members[:2]

    async def scenario(client: httpx.AsyncClient) -> None:
        refused = await create(client, board, agent, {"title": "work"}, Prefer="respond-async")
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_invalid")
        answer = await create(client, board, agent, {"title": "work"}, Prefer="respond-async", Idempotency_Key="k")
        assert answer.status_code == 202
        assert answer.headers["Preference-Applied"] == "respond-async"
        location = answer.headers["Location"]
        assert location == f"/v0/proposals/{answer.json()['proposal_id']}"
        assert answer.headers["Dibs-Proposal"] == answer.json()["proposal_id"]
        pending = await client.get(location)
        assert (pending.status_code, pending.json()["state"]) == (200, "pending")

        with service.redis() as redis:
            redis.flushall()
        lost = await client.get(location)
        assert (lost.status_code, lost.json()["code"]) == (404, "proposal_unknown")

        again = await create(client, board, agent, {"title": "work"}, Prefer="respond-async", Idempotency_Key="k")
        location = again.headers["Location"]
        service.start_worker(ready=False)

        async def decided() -> bool:
            return (await client.get(location)).json()["state"] == "decided"

        await until("the decision", decided)
        found = (await client.get(location, headers=headers_of(agent))).json()
        assert (found["status"], found["task_id"], found["answer"]["title"]) == (201, 1, "work")
        assert found["conflict_key"]["target"] == f"task:{SLUG}:work"
        lost_race = await create(client, board, stranger, {"title": "work", "body": "mine"})
        proposal = f"/v0/proposals/{lost_race.headers['Dibs-Proposal']}"
        mine, theirs = [(await client.get(proposal, headers=headers_of(one))).json() for one in (stranger, agent)]
        assert mine["payload"]["body"] == "mine"
        assert not {"payload", "answer"} & theirs.keys()
        assert theirs["code"] == "conflict_key_occupied"

    play(service, scenario)


def test_no_worker_in_time(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0, wait_ms=300)
    agent = board.members[0]

    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await create(client, board, agent, {"title": "work"}, Idempotency_Key="k")
        body = answer.json()
        assert (answer.status_code, body["code"]) == (503, "allocation_pending")
        assert (body["write_occurred"], body["retryable"]) == (None, True)
        assert int(answer.headers["Retry-After"]) >= 1
        assert body["proposal_id"] == answer.headers["Dibs-Proposal"]
        found = await client.get(f"/v0/proposals/{body['proposal_id']}")
        assert found.json()["state"] == "pending"
        service.start_worker(ready=False)

        async def resolved() -> httpx.Response | None:
            again = await create(client, board, agent, {"title": "work"}, Idempotency_Key="k")
            return again if again.status_code == 201 else None

        again = await until("the same key to resolve", resolved)
        assert again.json()["id"] == 1
        first = await client.get(f"/v0/proposals/{body['proposal_id']}")
        assert (first.json()["status"], first.json()["task_id"]) == (201, 1)
        assert service.database.value("SELECT count(*) FROM tasks") == 1

    play(service, scenario)
