"""What a client is told, case by case, over real HTTP."""

import asyncio
import time
import unicodedata
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from models.rules.spaces import Role, Visibility
from models.store import agents as store_agents
from models.store import spaces as store_spaces
from models.store.database import admin_engine
from tests.stack import (
    TITLES,
    Board,
    Request,
    Stack,
    add_agents,
    add_board,
    create,
    fresh_database,
    headers_of,
    in_one_window,
    play,
    post_many,
    until,
)

# Who wins, and who is who


def test_two_in_one_window(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(workers=0)

    async def scenario(client: httpx.AsyncClient) -> None:
        several = [Request(board.members[n], board.path, {"title": TITLES[91 + n]}) for n in (0, 1)]
        won, lost = await in_one_window(service, client, several)
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


SAME_WORK = [
    ("Straße zum Riff", "STRASSE ZUM RIFF"),
    ("ὈΔΥΣΣΕΎΣ", "ὀδυσσεύς"),
    ("ΣΊΣΥΦΟΣ", "Σίσυφος"),
    ("हिन्दी में रीफ़ का नक्शा", "हिन्दी  में\tरीफ़ का नक्शा"),
    ("แผนที่แนวปะการัง", " แผนที่แนวปะการัง "),
    ("Ship 👩\u200d🚀 reports", "SHIP 👩\u200d🚀 REPORTS"),
    ("\uff21\uff42\uff43 reef", "\uff41\uff42\uff43 Reef"),
    ("Map\u3000the\u00a0reef", "Map the reef"),
]
OTHER_WORK = [
    ("ISPARTA \u0131rma\u011f\u0131", "isparta irmagi"),
    ("\uff21\uff42\uff43", "Abc"),
    ("Ship 👩\u200d🚀", "Ship 👩🚀"),
    ("คน", "คนํ"),
]


def test_titles_of_many_scripts_are_one_work_or_two(service: Stack, board: Board) -> None:
    """Composed and folded forms name one work; dotless i, full-width forms, joiners and marks make another."""

    async def scenario(client: httpx.AsyncClient) -> None:
        alpha, beta, *_ = board.members
        for first, second in SAME_WORK:
            won = await create(client, board, alpha, {"title": first})
            lost = await create(client, board, beta, {"title": second})
            assert (won.status_code, lost.status_code) == (201, 409), (first, second)
            assert lost.json()["winner"]["id"] == won.json()["id"]
        for pair in OTHER_WORK:
            answers = [await create(client, board, alpha, {"title": title}) for title in pair]
            assert [answer.status_code for answer in answers] == [201, 201], pair
        for hidden in ("\u202e", "\u200b", "\u00ad", "\ufeff", "\u0007", "\u0000", "\u0378", "\ue000"):
            refused = await create(client, board, alpha, {"title": f"Reef{hidden} map"})
            assert (refused.status_code, refused.json()["code"]) == (422, "title_invalid"), repr(hidden)

    play(service, scenario)


def test_who_an_agent_is_says_its_id(service: Stack, board: Board) -> None:
    """Handles that look alike are two agents: one does not own the other's task."""
    twins = add_agents(service.database, ["alpha", "\u0430da"])
    with admin_engine(service.database.owner_url).begin() as connection:
        store_agents.change_authority(connection)
        store_spaces.set_members(connection, board.space_id, {agent.id: Role.MEMBER for agent in twins})

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
        answers = await in_one_window(
            service, client, [Request(board.members[n], board.path, {"title": f"t{n}"}) for n in (1, 2)]
        )
        assert [answer.status_code for answer in answers] == [201, 201]
        assert (await refused).status_code == 422

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
        (other,) = await in_one_window(service, client, [Request(modest, board.path, {"title": "another's"})])
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
            store_agents.revoke_keys(connection, [agent.key_id])
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
