"""A board's life over HTTP: leftovers, claims, notes, charters and members. Contract 2.2 to 2.7; Seed 003."""

import asyncio
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import httpx
import pytest

from models.rules.board import decode_board
from models.rules.spaces import Role, Visibility
from models.store.boards import export_board, import_board
from models.store.database import admin_engine
from models.store.spaces import set_members
from tests.stack import (
    SLUG,
    TITLES,
    Agent,
    Board,
    Database,
    Request,
    Stack,
    add_agents,
    add_board,
    headers_of,
    play,
    post_many,
)

GENEROUS = {"agent_rate": 10_000, "agent_burst": 10_000}
MAR = "mar"
CANONICAL = {91: 94, 93: 94, 96: 95, 97: 95}


@pytest.fixture
def mar(database: Database) -> Board:
    """The MAR board with its leftovers, as its file has it; the first agent is its steward, the last no member."""
    agents = add_agents(database, ["mas-steward", "mas-driver", "mas-other", "mas-stranger"])
    file = (files("deploy") / f"boards/{SLUG}.json").read_bytes()
    with admin_engine(database.owner_url).begin() as connection:
        import_board(connection, decode_board(file.replace(SLUG.encode(), MAR.encode())))
    space_id = database.value("SELECT id FROM spaces WHERE slug = %s", MAR)
    roles = {agents[0].id: Role.STEWARD, agents[1].id: Role.MEMBER, agents[2].id: Role.MEMBER}
    with admin_engine(database.owner_url).begin() as connection:
        set_members(connection, space_id, roles)
    return Board(MAR, space_id, agents)


class Client:
    """One agent's calls on one board."""

    def __init__(self, http: httpx.AsyncClient, board: Board) -> None:
        self.http = http
        self.board = board

    async def post(self, agent: Agent, path: str, body: object = None, **headers: str) -> httpx.Response:
        sent = {} if body is None else {"json": body}
        return await self.http.post(f"{self.board.path}/{path}", headers=headers_of(agent, **headers), **sent)

    async def close(self, agent: Agent, leftover: int, survivor: Any, reason: str = "allocation_duplicate", **at: str):
        body = {"surviving_task": survivor, "reason": reason}
        return await self.post(agent, f"{leftover}/{at.get('route', 'supersede')}", body)

    async def task(self, task_id: int) -> dict[str, Any]:
        return (await self.http.get(f"{self.board.path}/{task_id}")).json()

    async def live(self) -> list[int]:
        return [task["id"] for task in (await self.http.get(self.board.path)).json()["tasks"]]


def seen(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json().get("code")


def test_the_leftovers_of_mar_are_closed_by_a_member(service: Stack, mar: Board) -> None:
    _, driver, *_ = mar.members

    async def scenario(http: httpx.AsyncClient) -> None:
        client = Client(http, mar)
        assert await client.live() == [97, 96, 93, 91]
        for leftover, survivor in CANONICAL.items():
            route = "close" if leftover == 96 else "supersede"
            answer = await client.close(driver, leftover, survivor, route=route)
            assert answer.status_code == 200
            assert answer.json() == {
                "id": leftover,
                "status": "superseded",
                "superseded_by": survivor,
                "reason": "allocation_duplicate",
                "attributed_to": driver.id,
                "history_preserved": True,
                "write_occurred": True,
                "event": "task_superseded",
            }
        assert await client.live() == []
        assert {number: (await client.task(number))["superseded_by"] for number in CANONICAL} == CANONICAL
        claim = await client.post(driver, "91/claim")
        body = claim.json()
        assert (claim.status_code, body["error"], body["code"]) == (409, "task_superseded", "task_superseded")
        assert (body["surviving_task"], body["write_occurred"], body["retryable"]) == (94, False, False)
        listed = (await http.get(mar.path, params={"include_superseded": "true"})).json()["tasks"]
        assert [task["id"] for task in listed] == [97, 96, 93, 91]
        # Both slots are free now: what was left over is gone, what is done does not occupy.
        assert (await http.post(mar.path, json={"title": TITLES[93]}, headers=headers_of(driver))).status_code == 201

    play(service, scenario)


def test_denials_change_nothing_and_are_on_record(service: Stack, mar: Board) -> None:
    steward, driver, _, stranger = mar.members
    before = service.database.rows("SELECT * FROM tasks ORDER BY id")

    async def scenario(http: httpx.AsyncClient) -> None:
        client = Client(http, mar)
        for answer, status, code in (
            (await client.close(driver, 91, 95), 403, "not_occupancy_duplicate"),
            (await client.close(driver, 91, 94, "steward_close"), 403, "steward_only_reason"),
            (await client.close(driver, 91, 94, "canonical_pointer"), 403, "steward_only_reason"),
            (await client.close(stranger, 91, 94), 403, "not_a_member"),
            (await client.close(driver, 91, 94, ""), 422, "reason_empty"),
            (await client.close(driver, 91, 94, "because"), 422, "reason_unknown"),
            (await client.close(driver, 91, 91), 422, "surviving_task_invalid"),
            (await client.close(driver, 91, 4000), 404, "surviving_task_not_found"),
            (await client.close(driver, 4000, 94), 404, "task_not_found"),
            (await client.close(steward, 91, 95), 403, "not_occupancy_duplicate"),
            (await client.close(steward, 92, 94, "steward_close"), 409, "task_state_conflict"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            assert answer.json()["write_occurred"] is False
            assert answer.json()["error"] == ("not_authorized" if status == 403 else answer.json()["error"])

    play(service, scenario)
    assert service.database.rows("SELECT * FROM tasks ORDER BY id") == before
    audit = service.database.rows("SELECT * FROM leftover_close_events ORDER BY number")
    assert {row["event"] for row in audit} == {"task_supersede_denied"}
    assert [row["code"] for row in audit] == [
        "not_occupancy_duplicate", "steward_only_reason", "steward_only_reason", "not_a_member", "reason_empty",
        "reason_unknown", "surviving_task_invalid", "surviving_task_not_found", "task_not_found",
        "not_occupancy_duplicate", "task_state_conflict",
    ]  # fmt: skip
    assert service.database.value("SELECT count(*) FROM events WHERE type = 'task_superseded'") == 0


def test_prevention_stays_on_the_key(service: Stack, board: Board) -> None:
    """Seed 003, AC-4: on a fresh board the second title of a slot is refused, not closed afterwards."""
    alpha, beta, *_ = board.members

    async def scenario(http: httpx.AsyncClient) -> None:
        first = await http.post(board.path, json={"title": TITLES[91]}, headers=headers_of(alpha))
        second = await http.post(board.path, json={"title": TITLES[93]}, headers=headers_of(beta))
        assert (first.status_code, seen(second)) == (201, (409, "conflict_key_occupied"))
        assert second.json()["write_occurred"] is False

    play(service, scenario)


def test_nobody_but_a_steward_closes_work_that_is_not_left_over(service: Stack, mar: Board) -> None:
    steward, driver, other, _ = mar.members

    async def scenario(http: httpx.AsyncClient) -> None:
        client = Client(http, mar)
        assert (await client.post(driver, "93/claim")).status_code == 200
        claimed = await client.close(other, 93, 94)
        assert seen(claimed) == (403, "not_occupancy_duplicate")
        assert (await client.post(driver, "93/withdraw", {"reason": "Not mine"})).status_code == 403
        assert (await client.close(driver, 91, 94)).status_code == 200
        assert (await client.close(steward, 93, 94)).status_code == 200
        # Slot T1 is free: this task is new work, however much it looks like the old.
        fresh = (await http.post(mar.path, json={"title": TITLES[94]}, headers=headers_of(driver))).json()
        for survivor in (94, 92):
            answer = await client.close(other, fresh["id"], survivor)
            assert seen(answer) == (403, "not_occupancy_duplicate")
        rejected = (await http.post(mar.path, json={"title": "Another thing"}, headers=headers_of(driver))).json()["id"]
        await client.post(driver, f"{rejected}/claim")
        await client.post(driver, f"{rejected}/submit", {"evidence": ["https://example.test/a"]})
        assert (await client.post(other, f"{rejected}/review", {"decision": "reject"})).json()["status"] == "rejected"
        again = (await http.post(mar.path, json={"title": "Another thing"}, headers=headers_of(driver))).json()["id"]
        assert seen(await client.close(other, again, rejected)) == (409, "surviving_task_terminal")
        assert (await client.task(fresh["id"]))["status"] == "open"
        assert (await client.task(again))["status"] == "open"
        # A by B, then B by A: refused, whoever asks.
        assert (await client.close(steward, again, fresh["id"], "canonical_pointer")).status_code == 200
        back = await client.close(steward, fresh["id"], again, "canonical_pointer")
        assert seen(back) == (409, "surviving_task_superseded")
        assert back.json()["surviving_task"] == fresh["id"]

    play(service, scenario)


def test_one_claim_wins_each_race(stack: Callable[..., Stack], database: Database, board: Board) -> None:
    """64 claimants, 100 rounds: one winner each, and every loser learns who holds the task."""
    service = stack(web=2, workers=2, **GENEROUS)
    claimants = add_agents(database, [f"claimant-{number}" for number in range(64)])
    with admin_engine(database.owner_url).begin() as connection:
        set_members(connection, board.space_id, {agent.id: Role.MEMBER for agent in claimants})

    async def scenario(http: httpx.AsyncClient) -> None:
        for number in range(1, 101):
            made = await http.post(
                board.path, json={"title": f"Round number {number}"}, headers=headers_of(board.members[0])
            )
            path = f"{board.path}/{made.json()['id']}/claim"
            answers = await post_many(http, [Request(agent, path, {}) for agent in claimants])
            (winner,) = [answer.json()["holder"] for answer in answers if answer.status_code == 200]
            for agent, answer in zip(claimants, answers, strict=True):
                body = answer.json()
                if answer.status_code != 200:
                    assert (answer.status_code, body["code"], body["holder"]) == (409, "task_already_claimed", winner)
                    assert (body["yours"], body["write_occurred"]) == (False, False)
                else:
                    assert (body["holder"], body["status"]) == (agent.id, "claimed")

    play(service, scenario)
    assert service.database.value("SELECT count(*) FROM events WHERE type = 'task_claimed'") == 100


def test_finished_work_may_be_proposed_again_unless_it_is_held(service: Stack, board: Board) -> None:
    alpha, beta, gamma, *_ = board.members
    service.database.rows("UPDATE members SET role = 'steward' WHERE agent_id = %s", gamma.id)

    async def scenario(http: httpx.AsyncClient) -> None:
        client = Client(http, board)
        proposal = {"title": "Count the fish", "validation_policy": "none"}
        assert (await http.post(board.path, json=proposal, headers=headers_of(alpha))).json()["id"] == 1
        claim = await client.post(alpha, "1/claim", **{"If-Match": '"1"'})
        assert (claim.status_code, claim.headers["ETag"]) == (200, '"2"')
        assert seen(await client.post(alpha, "1/submit", **{"If-Match": '"1"'})) == (412, "revision_mismatch")
        assert (await client.post(alpha, "1/submit", **{"If-Match": '"1", "2"'})).json()["status"] == "in_review"
        assert seen(await client.post(alpha, "1/review", {"decision": "accept"})) == (
            403,
            "independent_review_required",
        )
        assert (await client.post(beta, "1/review", {"decision": "accept"})).json()["status"] == "done"
        assert (await client.post(gamma, "1/hold", {"reason": "Look first"})).json()["held"] is True
        held = await http.post(board.path, json=proposal, headers=headers_of(beta))
        assert (seen(held), held.json()["held"], held.json()["outcome"]) == (
            (409, "conflict_key_occupied"),
            True,
            "idle",
        )
        assert (await client.post(gamma, "1/unhold", {"reason": "Fine"})).status_code == 200
        again = await http.post(board.path, json=proposal, headers=headers_of(beta))
        assert (again.status_code, again.json()["id"]) == (201, 2)
        reopened = await client.post(gamma, "1/reopen")
        assert (seen(reopened), reopened.json()["winner"]["id"]) == ((409, "conflict_key_occupied"), 2)

    play(service, scenario)


def test_a_note_is_said_once(service: Stack, mar: Board) -> None:
    _, driver, other, _ = mar.members
    note = {"kind": "post_review_note", "body": "Criterion met", "criterion_index": 1}

    async def scenario(http: httpx.AsyncClient) -> None:
        client = Client(http, mar)
        two = await post_many(http, [Request(driver, f"{mar.path}/95/notes", note)] * 2)
        assert sorted(answer.status_code for answer in two) == [201, 409]
        (made,) = [answer for answer in two if answer.status_code == 201]
        found = await http.get(made.headers["Location"])
        assert found.json() == made.json()
        assert (await client.post(driver, "95/notes", {**note, "criterion_index": 2})).status_code == 201
        assert (await client.post(other, "95/notes", note)).status_code == 201
        lost = await client.post(driver, "95/notes", {**note, "body": " Criterion\r\nmet "})
        assert (seen(lost), lost.json()["winner"]["type"]) == ((409, "conflict_key_occupied"), "note")
        gone = await client.post(driver, f"95/notes/{made.json()['id']}/withdraw")
        assert (gone.status_code, gone.json()["status"]) == (200, "withdrawn")
        assert (await client.post(driver, "95/notes", note)).status_code == 201
        listed = (await http.get(f"{mar.path}/95/notes")).json()["notes"]
        assert [one["status"] for one in listed].count("posted") == 3

    play(service, scenario)


def test_a_steward_makes_and_rules_a_space(service: Stack, database: Database) -> None:
    founder, guest = add_agents(database, ["founder", "guest"])
    space = "/v0/spaces/lagoon"

    async def scenario(http: httpx.AsyncClient) -> None:
        mine, theirs = headers_of(founder), headers_of(guest)
        made = await http.post("/v0/spaces", json={"slug": "lagoon"}, headers=mine)
        assert (made.status_code, made.headers["Location"]) == (201, space)
        assert seen(await http.post("/v0/spaces", json={"slug": "lagoon"}, headers=theirs)) == (409, "slug_taken")
        keyed = mine | {"Idempotency-Key": "one"}
        assert seen(await http.post("/v0/spaces", json={"slug": "reef"}, headers=keyed)) == (201, None)
        reused = await http.post("/v0/spaces", json={"slug": "atoll"}, headers=keyed)
        assert seen(reused) == (422, "idempotency_key_reused")
        assert seen(await http.post(f"{space}/tasks", json={"title": "x"}, headers=theirs)) == (403, "not_a_member")
        member = f"{space}/members/{guest.id}"
        assert seen(await http.put(member, json={"role": "steward"}, headers=theirs)) == (403, "not_a_member")
        assert (await http.put(member, json={"role": "member"}, headers=mine)).json()["role"] == "member"
        created = await http.post(f"{space}/tasks", json={"title": "Gauge the lagoon tides"}, headers=theirs)
        assert (created.status_code, created.json()["bind"]["charter_revision"]) == (201, 1)
        catalog = {"catalog": [{"work_item_id": "T7", "canonical_title": "Gauge tides", "aliases": ["lagoon tides"]}]}
        denied = await http.put(f"{space}/charter", json=catalog, headers=theirs)
        # At the door: a catalog is tried on no board, and kept in no window, for whoever may not set it.
        assert (*seen(denied), "Dibs-Proposal" in denied.headers) == (403, "steward_required", False)
        dry = await http.put(f"{space}/charter", json=catalog, params={"dry_run": "true"}, headers=mine)
        stale = await http.put(f"{space}/charter", json=catalog, headers=mine | {"If-Match": '"7"'})
        change = await http.put(f"{space}/charter", json=catalog, headers=mine | {"If-Match": '"1"'})
        assert (seen(stale), change.headers["ETag"]) == ((412, "revision_mismatch"), '"2"')
        assert dry.json() == {**change.json(), "dry_run": True}
        assert [one["task"] for one in change.json()["rebinds"]] == [1]
        preview = await http.post(f"{space}/bind-preview", json={"title": "Tides of the lagoon"})
        assert preview.json()["conflict_key"]["target"] == "task:lagoon:slot:T7"
        assert (await http.get(f"{space}/tasks/1")).json()["bind"]["charter_revision"] == 1
        assert seen(await http.delete(f"{space}/members/{founder.id}", headers=mine)) == (409, "last_steward")
        assert (await http.delete(member, headers=mine)).status_code == 200
        assert seen(await http.post(f"{space}/tasks", json={"title": "y"}, headers=theirs)) == (403, "not_a_member")

    play(service, scenario)


def test_a_board_comes_back_from_its_file(service: Stack, mar: Board) -> None:
    """Claims, holds, notes and leftovers: a second export is the first, byte for byte."""
    steward, driver, other, _ = mar.members

    async def scenario(http: httpx.AsyncClient) -> None:
        client = Client(http, mar)
        for agent, path, body in (
            (driver, "91/claim", None),
            (steward, "93/assign", {"assignee": other.id}),
            (steward, "96/hold", {"reason": "Wait"}),
            (driver, "95/notes", {"kind": "post_review_note", "body": "Met", "criterion_index": 3}),
            (other, "95/notes", {"kind": "post_review_note", "body": "Gone"}),
            (other, "95/notes/2/withdraw", None),
            (driver, "97/supersede", {"surviving_task": 95, "reason": "allocation_duplicate"}),
        ):
            answer = await client.post(agent, path, body)
            assert answer.status_code in {200, 201}, answer.text

    play(service, scenario)
    with admin_engine(service.database.owner_url).connect() as connection:
        first = export_board(connection, MAR)
    with admin_engine(service.database.owner_url).begin() as connection:
        import_board(connection, decode_board(first.replace(b"mar", b"second-board")))
        second = export_board(connection, "second-board")
    assert second.replace(b"second-board", b"mar") == first
    assert [one["status"] for one in json.loads(first)["notes"]] == ["posted", "withdrawn"]


def test_an_outsider_cannot_tell_a_closed_space_from_none(service: Stack, database: Database) -> None:
    """Every route that names a space, read and write: the same answer but for the ids of the request."""
    hidden = add_board(database, slug="hidden", members=2, visibility=Visibility.MEMBERS)
    (outsider,) = add_agents(database, ["outsider"])

    async def scenario(http: httpx.AsyncClient) -> None:
        insider = headers_of(hidden.members[0])
        await http.post(hidden.path, json={"title": "Secret work"}, headers=insider)
        window = service.database.value("SELECT id FROM windows")
        routes = [route for route in (await http.get("/v0/openapi.json")).json()["paths"] if "{slug}" in route]
        assert len(routes) > 20
        for route in routes:
            path = route.replace("{task_id}", "1").replace("{note_id}", "1").replace("{window_id}", str(window))
            path = path.replace("{agent}", hidden.members[0].id)
            for method in ("GET", "POST", "PUT", "DELETE"):
                for headers in ({}, headers_of(outsider)):
                    answers = [
                        await http.request(method, path.replace("{slug}", slug), json={}, headers=headers)
                        if method in {"POST", "PUT"}
                        else await http.request(method, path.replace("{slug}", slug), headers=headers)
                        for slug in ("hidden", "absent")
                    ]
                    there, absent = ((one.status_code, one.content) for one in answers)
                    assert there == absent, (method, route)

    play(service, scenario)


def test_concurrent_closers_leave_one_trace(stack: Callable[..., Stack], mar: Board) -> None:
    """Two members close one leftover at once: one 200, one 409 that names the survivor, one event."""
    service = stack(web=2, workers=2)
    _, driver, other, _ = mar.members
    body = {"surviving_task": 94, "reason": "allocation_duplicate"}

    async def go() -> list[httpx.Response]:
        async with service.client() as http:
            return await post_many(http, [Request(agent, f"{mar.path}/91/close", body) for agent in (driver, other)])

    answers = asyncio.run(go())
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    (lost,) = [answer.json() for answer in answers if answer.status_code == 409]
    assert (lost["code"], lost["surviving_task"]) == ("task_superseded", 94)
    assert service.database.value("SELECT count(*) FROM events WHERE type = 'task_superseded'") == 1
