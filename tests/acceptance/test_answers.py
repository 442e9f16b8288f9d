"""What a client is told, case by case, over real HTTP."""

import asyncio
import time
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx
import pytest

from models.rules.window import Role, Visibility
from models.store import agents as store_agents
from models.store.database import admin_engine
from tests.stack import (
    SLUG,
    TITLES,
    Agent,
    Board,
    Request,
    Stack,
    add_agents,
    add_board,
    fresh_database,
    headers_of,
    post_many,
    until,
)

Scenario = Callable[[httpx.AsyncClient], Awaitable[None]]


def play(service: Stack, scenario: Scenario) -> None:
    async def go() -> None:
        async with service.client() as client:
            await scenario(client)

    asyncio.run(go())


@pytest.fixture
def service(stack: Callable[..., Stack]) -> Stack:
    return stack()


async def create(client: httpx.AsyncClient, board: Board, agent: Agent, body: object, **headers: str) -> httpx.Response:
    return await client.post(board.path, json=body, headers=headers_of(agent, **headers))


async def held(service: Stack, client: httpx.AsyncClient, several: list[Request]) -> list[httpx.Response]:
    """Send requests so that they stand in one window in this order; the service's worker starts after the last."""
    async with asyncio.TaskGroup() as group:
        posted = []
        for number, request in enumerate(several, start=1):
            call = client.post(
                request.path, json=request.body, headers=headers_of(request.agent) | dict(request.headers)
            )
            posted.append(group.create_task(call))
            partition = "space:" + request.path.split("/")[3]
            await until("the append", lambda number=number, at=partition: service.open_intents(at) >= number)
        service.start_worker(ready=False)
        return list(await asyncio.gather(*posted))


# Who wins, and who is who


def test_two_in_one_window(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0)

    async def scenario(client: httpx.AsyncClient) -> None:
        several = [Request(board.members[n], board.path, {"title": TITLES[91 + n]}) for n in (0, 1)]
        won, lost = await held(service, client, several)
        assert (won.status_code, lost.status_code) == (201, 409)
        body = lost.json()
        assert (body["code"], body["outcome"]) == ("conflict_key_reserved", "idle")
        assert body["reserved_proposal_id"] == won.headers["Dibs-Proposal"]
        assert body["winner"] == {
            "type": "reserved_intent",
            "id": won.headers["Dibs-Proposal"],
            "task_id": won.json()["id"],
            "created_by": board.members[0].id,
        }
        assert (body["retry_after_ms"], lost.headers["Retry-After"]) == (200, "1")
        assert (body["write_occurred"], body["retryable"]) == (False, True)
        assert body["proposal_id"] == lost.headers["Dibs-Proposal"]

    play(service, scenario)


def test_delivery_modes_do_not_meet(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        for mode in ("result", "repository_change"):
            answer = await create(client, board, board.members[0], {"title": TITLES[91], "delivery_mode": mode})
            assert (answer.status_code, answer.json()["delivery_mode"]) == (201, mode)
        again = await create(client, board, board.members[0], {"title": TITLES[91]})
        assert (again.status_code, again.json()["yours"]) == (409, True)

    play(service, scenario)


def test_one_title_in_two_normal_forms(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        title = "Übersicht über Café-Muster für 각 Agenten"
        forms = [unicodedata.normalize(form, title) for form in ("NFC", "NFD")]
        assert forms[0] != forms[1]
        several = [Request(board.members[n % 8], board.path, {"title": forms[n % 2]}) for n in range(8)]
        answers = await post_many(client, several)
        assert Counter(answer.status_code for answer in answers) == {201: 1, 409: 7}
        (won,) = (answer.json() for answer in answers if answer.status_code == 201)
        assert won["title"] == forms[0]

    play(service, scenario)


def test_who_an_agent_is_says_its_id(service: Stack, board: Board) -> None:
    """Handles that look alike are two agents: one does not own the other's task."""
    twins = add_agents(service.database, ["ada", "аda"])
    with admin_engine(service.database.owner_url).begin() as connection:
        store_agents.change_authority(connection)
        store_agents.set_members(connection, board.space_id, {agent.id: Role.MEMBER for agent in twins})

    async def scenario(client: httpx.AsyncClient) -> None:
        key = {"Idempotency_Key": "shared"}
        won = await create(client, board, twins[0], {"title": "one work"}, **key)
        lost = await create(client, board, twins[1], {"title": "one work"}, **key)
        assert (won.status_code, lost.status_code) == (201, 409)
        assert won.json()["created_by"] == lost.json()["winner"]["created_by"] == twins[0].id
        assert "yours" not in lost.json()
        for agent in twins:
            who = (await client.get("/v0/whoami", headers=headers_of(agent))).json()
            assert (who["agent_id"], who["handle"], who["key_id"]) == (agent.id, agent.handle, agent.key_id)

    play(service, scenario)


# What cannot be formed


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"title": ""}, "title_empty", "/title"),
        ({"title": " \t\n "}, "title_empty", "/title"),
        ({"title": "a" * 301}, "title_invalid", "/title"),
        ({"title": "nul\0byte"}, "title_invalid", "/title"),
        ({"title": "right\u202eleft"}, "title_invalid", "/title"),
        ({"title": "ok", "delivery_mode": "pigeon"}, "delivery_mode_unknown", "/delivery_mode"),
        ({"title": "ok", "validation_policy": "trust"}, "validation_policy_unknown", "/validation_policy"),
        ({"title": "ok", "work_item_id": "X1"}, "work_item_id_invalid", "/work_item_id"),
        ({"title": "ok", "body": "b" * 8001}, "body_invalid", "/body"),
        ({"title": "ok", "status": "done"}, "field_unknown", None),
        ({"body": "ok"}, "field_missing", None),
        ({"title": 7}, "field_invalid", "/title"),
    ],
)
def test_a_body_that_cannot_be_taken(
    shared_service: tuple[Stack, Board], body: object, code: str, pointer: str | None
) -> None:
    service, board = shared_service

    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await create(client, board, board.members[0], body)
        assert (answer.status_code, answer.json()["code"]) == (422, code)
        assert answer.json()["write_occurred"] is False
        if pointer is not None:
            assert answer.json()["pointer"] == pointer
        batch = {"tasks": [{"title": "a good neighbour"}, body]}
        answer = await client.post(f"{board.path}/batch", json=batch, headers=headers_of(board.members[0]))
        assert (answer.status_code, answer.json()["code"]) == (422, code)
        if pointer is not None:
            assert answer.json()["pointer"] == f"/tasks/1{pointer}"
        assert service.database.value("SELECT count(*) FROM outcomes") == 0

    play(service, scenario)


@pytest.fixture(scope="module")
def shared_service(servers, tmp_path_factory):
    """One service for cases that write nothing."""
    with fresh_database(servers) as database:
        board = add_board(database)
        service = Stack(tmp_path_factory.mktemp("shared-stack"), database=database, redis_url=servers.valkey.url)
        service.start_web()
        yield service, board
        service.close()


def test_a_bad_title_does_not_harm_its_window(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0)

    async def scenario(client: httpx.AsyncClient) -> None:
        refused = asyncio.create_task(create(client, board, board.members[0], {"title": "nul\0byte"}))
        answers = await held(
            service, client, [Request(board.members[n], board.path, {"title": f"t{n}"}) for n in (1, 2)]
        )
        assert [answer.status_code for answer in answers] == [201, 201]
        assert (await refused).status_code == 422

    play(service, scenario)


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
        first, other, same = await held(service, client, several)
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


# Too much


def test_a_full_partition(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0, window_max_open=3)

    async def scenario(client: httpx.AsyncClient) -> None:
        several = [Request(board.members[n], board.path, {"title": f"t{n}"}) for n in range(3)]
        posted = asyncio.create_task(post_many(client, several))
        await until("three to wait", lambda: service.open_intents(board.partition) == 3)
        answer = await create(client, board, board.members[3], {"title": "one more"})
        assert (answer.status_code, answer.json()["code"]) == (503, "window_full")
        assert answer.json()["write_occurred"] is False
        assert int(answer.headers["Retry-After"]) >= 1
        service.start_worker(ready=False)
        assert [one.status_code for one in await posted] == [201] * 3
        assert (await create(client, board, board.members[3], {"title": "one more"})).status_code == 201

    play(service, scenario)


def test_an_agent_over_its_rate(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(agent_rate=1, agent_burst=3)
    greedy, modest = board.members[:2]

    async def scenario(client: httpx.AsyncClient) -> None:
        answers = [await create(client, board, greedy, {"title": f"t{n}"}) for n in range(4)]
        assert [one.status_code for one in answers[:3]] == [201] * 3
        assert (answers[3].status_code, answers[3].json()["code"]) == (429, "rate_limited")
        assert answers[3].json()["write_occurred"] is False
        assert int(answers[3].headers["Retry-After"]) >= 1
        assert (await create(client, board, modest, {"title": "another's"})).status_code == 201

    play(service, scenario)


def test_an_agent_with_too_many_open(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0, agent_max_open=2)
    greedy, modest = board.members[:2]

    async def scenario(client: httpx.AsyncClient) -> None:
        posted = asyncio.create_task(
            post_many(client, [Request(greedy, board.path, {"title": f"t{n}"}) for n in range(2)])
        )
        await until("two to wait", lambda: service.open_intents(board.partition) == 2)
        answer = await create(client, board, greedy, {"title": "one more"})
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
        assert int(answer.headers["Retry-After"]) >= 1
        (other,) = await held(service, client, [Request(modest, board.path, {"title": "another's"})])
        assert other.status_code == 201
        assert [one.status_code for one in await posted] == [201] * 2

    play(service, scenario)


# Who may


def test_a_revoked_key_is_refused_within_a_second(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(web=2)
    agent, other = board.members[:2]

    async def scenario(client: httpx.AsyncClient) -> None:
        for number in range(8):
            assert (await create(client, board, agent, {"title": f"before {number}"})).status_code == 201
        with admin_engine(service.database.owner_url).begin() as connection:
            store_agents.revoke_key(connection, agent.key_id)
        revoked_at = time.monotonic()
        # The window's transaction knows at once, whatever the door believes.
        answer = await create(client, board, agent, {"title": "after"})
        assert (answer.status_code, answer.json()["code"]) == (401, "credential_invalid")
        assert service.database.value("SELECT count(*) FROM tasks WHERE title = 'after'") == 0
        in_a_row = 0

        async def refused() -> bool:
            nonlocal in_a_row
            who = await client.get("/v0/whoami", headers=headers_of(agent) | {"Connection": "close"})
            in_a_row = in_a_row + 1 if who.status_code == 401 else 0
            return in_a_row == 12

        await until("both processes to refuse the key", refused, seconds=1.2 - (time.monotonic() - revoked_at))
        assert (await client.get("/v0/whoami", headers=headers_of(other))).status_code == 200

    play(service, scenario)


def test_a_space_for_members_is_as_if_absent_to_others(service: Stack, board: Board) -> None:
    secret = add_board(service.database, slug="secret", members=1, visibility=Visibility.MEMBERS)
    (insider,), outsider = secret.members, board.members[0]
    absent = Board("absent", 0, ())

    async def scenario(client: httpx.AsyncClient) -> None:
        won = await create(client, secret, insider, {"title": "hidden work"})
        assert won.status_code == 201
        proposal = f"/v0/proposals/{won.headers['Dibs-Proposal']}"
        assert (await client.get(f"{secret.path}/1", headers=headers_of(insider))).status_code == 200
        assert (await client.get(proposal, headers=headers_of(insider))).status_code == 200
        for headers in (headers_of(outsider), {}):
            hidden, missing = [await client.get(f"{where.path}/1", headers=headers) for where in (secret, absent)]
            assert (hidden.status_code, hidden.content) == (404, missing.content)
            hidden, missing = [await client.get(path, headers=headers) for path in (proposal, f"{proposal[:-2]}00")]
            assert (hidden.status_code, hidden.content) == (404, missing.content)
        for path in ("", "/batch"):
            body = {"tasks": [{"title": "t"}]} if path else {"title": "t"}
            hidden, missing = [
                await client.post(f"{where.path}{path}", json=body, headers=headers_of(outsider))
                for where in (secret, absent)
            ]
            assert (hidden.status_code, hidden.content) == (404, missing.content)
            assert {*hidden.headers} == {*missing.headers}
        stranger = await create(client, board, insider, {"title": "t"})
        assert (stranger.status_code, stranger.json()["code"]) == (403, "not_a_member")

    play(service, scenario)


def test_what_a_failed_intent_held_is_in_no_log(stack: Callable[..., Stack], board: Board) -> None:
    service = stack()
    service.database.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RAISE EXCEPTION ''no'' USING DETAIL = NEW.title; END'"
    )
    service.database.rows("CREATE TRIGGER refuse BEFORE INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION refuse()")

    async def scenario(client: httpx.AsyncClient) -> None:
        body = {"title": "canary title", "body": "canary body"}
        answer = await create(client, board, board.members[0], body, Idempotency_Key="canary-key")
        assert (answer.status_code, answer.json()["code"]) == (500, "intent_failed")
        assert answer.json()["proposal_id"] == answer.headers["Dibs-Proposal"]
        assert "canary" not in answer.text

    play(service, scenario)
    logged = "".join(log.read_text() for log in service.folder.glob("*.log"))
    assert "intents_failed" in logged
    assert "canary" not in logged
    assert board.members[0].key.rpartition("_")[2] not in logged
