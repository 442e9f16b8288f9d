"""The work exchange over HTTP: the seed's requests at the seed's clock, races, lost answers, resolutions. Seed 004."""

import asyncio
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

import httpx
import pytest

from models.ids import uuid7
from tests.exchange import CLOCK, FIXTURE, REQUESTS, set_clock
from tests.stack import Agent, Board, Database, Stack, add_agents, headers_of, play, until

COMMONS = "/api/matm/commons"
DIGESTS = FIXTURE["expected"]
ORIGINAL = DIGESTS["originalTermsSha256"]
ROUNDS = 63
GENEROUS = {"agent_rate": 10_000, "agent_burst": 10_000}


@pytest.fixture
def exchange(database: Database) -> Database:
    """A database whose clock stands where the seed's examples are valid."""
    set_clock(database, CLOCK)
    return database


class Parties:
    """Who talks to the exchange, and what they say."""

    def __init__(self, http: httpx.AsyncClient, board: Board) -> None:
        self.http = http
        self.requester, self.provider, self.other, *_ = board.members

    async def post(self, agent: Agent, path: str, body: Any, *, key: str | None = None) -> httpx.Response:
        headers = headers_of(agent, Idempotency_Key=key or f"key-of-{uuid7().hex}")
        return await self.http.post(COMMONS + path, json=body, headers=headers)

    async def publish(self) -> str:
        answer = await self.post(self.requester, "/work", REQUESTS["create"]["body"])
        assert answer.status_code == 201, answer.text
        return answer.json()["opportunity"]["workId"]

    async def propose(self, work: str, agent: Agent | None = None) -> str:
        answer = await self.post(agent or self.provider, f"/work/{work}/proposals", REQUESTS["propose"]["body"])
        assert answer.status_code == 201, answer.text
        return answer.json()["proposal"]["proposalId"]

    async def act(self, agent: Agent, one: str, name: str, **changes: Any) -> httpx.Response:
        return await self.post(agent, f"/work-proposals/{one}/actions", {**REQUESTS[name]["body"], **changes})


def code(answer: httpx.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    assert error["valuesRedacted"] is True
    return answer.status_code, error["code"]


def test_the_main_flow_as_the_seed_sends_it(service: Stack, exchange: Database, board: Board) -> None:
    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        work = await parties.publish()
        one = await parties.propose(work)
        seen = []
        for name, agent in (
            ("counter", parties.requester),
            ("accept", parties.provider),
            ("deliver", parties.provider),
            ("decide", parties.requester),
        ):
            answer = await parties.act(agent, one, name)
            assert answer.status_code == 200, answer.text
            told = answer.json()
            assert told["schemaVersion"] == "concresca.work_mutation.v1"
            assert (told["idempotentReplay"], told["idempotencyKeyExposed"]) == (False, False)
            assert told["receipt"]["operation"] == f"work-{name}"
            assert (told["receipt"]["objectId"], told["receipt"]["actorAgentId"]) == (one, agent.id)
            assert told["operationRevision"] == told["proposal"]["revision"] == len(told["proposal"]["history"])
            seen.append(told["proposal"])
        assert [view["state"] for view in seen] == ["proposed", "accepted", "delivered", "completed"]
        assert seen[0]["termsSha256"] == DIGESTS["counterTermsSha256"]
        assert seen[2]["deliverySha256"] == DIGESTS["deliveryEnvelopeSha256"]
        assert seen[3]["decisionSha256"] == REQUESTS["decide"]["digests"]["payloadSha256"]
        opportunity = (await http.get(f"{COMMONS}/work/{work}")).json()
        assert (opportunity["termsSha256"], opportunity["state"]) == (DIGESTS["originalTermsSha256"], "assigned")
        assert (opportunity["selectedProposalId"], opportunity["proposalCount"]) == (one, 1)
        listed = (await http.get(f"{COMMONS}/work-proposals", params={"limit": "1"})).json()
        assert (listed["count"], listed["hasMore"], listed["order"]) == (1, False, "id_ascending")
        assert "history" not in listed["items"][0]

    play(service, scenario)


@pytest.mark.parametrize("revision", [True, 1.0, "1", None, "missing", 0, 2**40])
def test_a_revision_is_an_integer(service: Stack, exchange: Database, board: Board, revision: Any) -> None:
    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        one = await parties.propose(await parties.publish())
        body = {**REQUESTS["direct-accept"]["body"], "expectedRevision": revision}
        if revision == "missing":
            del body["expectedRevision"]
        answer = await parties.post(parties.requester, f"/work-proposals/{one}/actions", body)
        assert answer.status_code == 422
        assert (await http.get(f"{COMMONS}/work-proposals/{one}")).json()["revision"] == 1

    play(service, scenario)


def test_of_64_acceptances_one_selects(stack: Callable[..., Stack], exchange: Database, board: Board) -> None:
    service = stack(web=2, workers=2, **GENEROUS)
    providers = add_agents(exchange, [f"provider-{number}" for number in range(64)])

    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        work = await parties.publish()
        proposals = [await parties.propose(work, agent) for agent in providers]
        before = {one: (await http.get(f"{COMMONS}/work-proposals/{one}")).json() for one in proposals}
        answers = await asyncio.gather(
            *(parties.act(parties.requester, one, "direct-accept", expectedRevision=1) for one in proposals)
        )
        assert Counter(answer.status_code for answer in answers) == {200: 1, 409: 63}
        (selected,) = [one for one, answer in zip(proposals, answers, strict=True) if answer.status_code == 200]
        for one, answer in zip(proposals, answers, strict=True):
            if one != selected:
                assert code(answer) == (409, "work_selection_conflict")
                assert answer.json()["selectedProposalId"] == selected
                assert (await http.get(f"{COMMONS}/work-proposals/{one}")).json() == before[one]

    play(service, scenario)


def test_a_key_brings_the_first_receipt_with_the_present_object(
    service: Stack, exchange: Database, board: Board
) -> None:
    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        key = "k" * 32
        body = REQUESTS["create"]["body"]
        first = await parties.post(parties.requester, "/work", body, key=key)
        work = first.json()["opportunity"]["workId"]
        withdrawal = {"schemaVersion": "concresca.work_opportunity_withdrawal.v1", "expectedRevision": 1}
        assert (await parties.post(parties.requester, f"/work/{work}/withdrawal", withdrawal)).status_code == 200
        turned = json.loads(json.dumps(body, sort_keys=True))
        again = await parties.post(parties.requester, "/work", turned, key=key)
        assert (again.status_code, again.json()["idempotentReplay"]) == (201, True)
        assert again.json()["receipt"] == first.json()["receipt"]
        assert (again.json()["opportunity"]["state"], again.json()["opportunity"]["terms"]) == ("withdrawn", None)
        other = json.loads(json.dumps(body))
        other["terms"]["title"] = "FICTIONAL: another"
        assert code(await parties.post(parties.requester, "/work", other, key=key)) == (409, "idempotency_conflict")
        for bad in ("short", "ä" * 40, "x" * 201):
            headers = {**headers_of(parties.requester), "Idempotency-Key": bad.encode()}
            refused = await http.post(f"{COMMONS}/work", json=body, headers=headers)
            assert refused.status_code in {400, 422}
        assert exchange.value("SELECT count(*) FROM work_opportunities") == 1

    play(service, scenario)


def test_a_resolution_proves_or_prevents(service: Stack, exchange: Database, board: Board) -> None:
    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        body = REQUESTS["create"]["body"]
        sent, lost = "sent-" + "s" * 40, "lost-" + "l" * 40
        applied = await parties.post(parties.requester, "/work", body, key=sent)

        def resolving(key: str, **changes: Any) -> dict[str, Any]:
            return {
                "schemaVersion": "concresca.work_resolution.v1",
                "originalPath": f"{COMMONS}/work",
                "originalBody": body,
                "originalIdempotencyKey": key,
                **changes,
            }

        outer = "outer-" + "o" * 40
        for replay in (False, True):
            answer = await parties.post(parties.requester, "/work-resolution", resolving(lost), key=outer)
            told = answer.json()
            assert (answer.status_code, told["idempotentReplay"]) == (200, replay)
            resolution = told["resolution"]
            assert (resolution["outcome"], resolution["originalStatus"], resolution["originalResult"]) == (
                "prevented", 410, None,
            )  # fmt: skip
        parts = [
            "concresca.work_resolution.v1", "https://concresca.com", "commons", "commons", parties.requester.id,
            "POST", f"{COMMONS}/work", body,
        ]  # fmt: skip
        text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        assert resolution["originalIntentDigest"] == hmac.new(lost.encode(), text.encode(), hashlib.sha256).hexdigest()
        assert set(resolution) == {
            "resolutionId", "outcome", "actorAgentId", "workspaceId", "projectId", "originalMethod", "originalPath",
            "originalIntentDigest", "originalStatus", "originalResult",
        }  # fmt: skip
        assert code(await parties.post(parties.requester, "/work", body, key=lost)) == (410, "work_operation_prevented")
        found = (await parties.post(parties.requester, "/work-resolution", resolving(sent))).json()["resolution"]
        assert (found["outcome"], found["originalStatus"]) == ("applied", 201)
        assert found["originalResult"]["receipt"] == applied.json()["receipt"]
        for changes in ({"originalPath": f"{COMMONS}/work-resolution"}, {"originalIdempotencyKey": "short"}):
            refused = await parties.post(parties.requester, "/work-resolution", resolving(sent, **changes))
            assert code(refused) == (422, "work_resolution_invalid")
        with service.redis() as client:
            client.flushall()
        assert code(await parties.post(parties.requester, "/work", body, key=lost)) == (410, "work_operation_prevented")

    play(service, scenario)


def test_resolution_races_its_original(stack: Callable[..., Stack], exchange: Database, board: Board) -> None:
    """Each ends applied or prevented, never both and never neither."""
    service = stack(web=2, workers=2, **GENEROUS)
    racers = add_agents(exchange, [f"racer-{number}" for number in range(16)])
    body = REQUESTS["create"]["body"]
    outcomes: Counter[str] = Counter()

    async def race(parties: Parties, agent: Agent, turn: int) -> None:
        key = f"race-{turn}-{agent.id}"
        resolving = {
            "schemaVersion": "concresca.work_resolution.v1",
            "originalPath": f"{COMMONS}/work",
            "originalBody": body,
            "originalIdempotencyKey": key,
        }
        calls = [
            parties.post(agent, "/work", body, key=key),
            parties.post(agent, "/work-resolution", resolving),
        ]
        original, resolution = await asyncio.gather(*(calls if turn % 2 else calls[::-1]))
        if turn % 2 == 0:
            original, resolution = resolution, original
        outcome = resolution.json()["resolution"]["outcome"]
        outcomes[outcome] += 1
        assert original.status_code == (201 if outcome == "applied" else 410)

    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        for turn in range(ROUNDS):
            await asyncio.gather(*(race(parties, agent, turn) for agent in racers))

    play(service, scenario)
    assert sum(outcomes.values()) == ROUNDS * len(racers) >= 1000
    assert exchange.value("SELECT count(*) FROM work_opportunities") == outcomes["applied"]
    assert exchange.value("SELECT count(*) FROM work_slots WHERE operation IS NULL") == outcomes["prevented"]


def test_an_answer_that_was_lost_is_brought_again(
    stack: Callable[..., Stack], exchange: Database, board: Board, tmp_path: Path
) -> None:
    """The worker dies after COMMIT and the web process before it answers: one event, and a replay for the key."""
    service = stack(workers=0, lease_ms=500)
    service.start_worker("after_commit", "kill", str(tmp_path / "marker"))
    body = REQUESTS["create"]["body"]
    key = "lost-answer-" + "x" * 30

    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        first = asyncio.create_task(parties.post(parties.requester, "/work", body, key=key))
        await until("the commit", lambda: exchange.value("SELECT count(*) FROM work_events") == 1)
        dead = service.webs.pop()
        dead.send(SIGKILL)
        dead.wait(seconds=10)
        with pytest.raises(httpx.HTTPError):
            await first
        service.start_worker(ready=False)
        await asyncio.to_thread(service.start_web)
        again = await parties.post(parties.requester, "/work", body, key=key)
        assert (again.status_code, again.json()["idempotentReplay"]) == (201, True)
        assert len(again.json()["opportunity"]["history"]) == 1

    play(service, scenario)
    assert exchange.value("SELECT count(*) FROM work_opportunities") == 1


def test_drain_keeps_what_ends_and_replays(service: Stack, exchange: Database, board: Board) -> None:
    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        key = "drained-" + "x" * 30
        work = await parties.publish()
        one, two = await parties.propose(work), await parties.propose(work, parties.other)
        assert (await parties.post(parties.requester, "/work", REQUESTS["create"]["body"], key=key)).status_code == 201
        exchange.rows("UPDATE work_mode SET mode = 'drain', epoch = epoch + 1")
        await until("drain to be seen", lambda: drained(http))
        for refused in (
            await parties.post(parties.requester, "/work", REQUESTS["create"]["body"]),
            await parties.act(parties.requester, one, "counter"),
            await parties.act(parties.requester, one, "direct-accept"),
        ):
            assert code(refused) == (503, "work_drain_active")
            assert int(refused.headers["Retry-After"]) >= 1
        assert exchange.value("SELECT count(*) FROM work_slots") == 4
        replay = await parties.post(parties.requester, "/work", REQUESTS["create"]["body"], key=key)
        assert (replay.status_code, replay.json()["idempotentReplay"]) == (201, True)
        assert (await parties.act(parties.requester, one, "refuse")).status_code == 200
        mine = await parties.act(parties.other, two, "withdraw-terms", expectedRevision=1, expectedTermsSha256=ORIGINAL)
        assert mine.status_code == 200

    play(service, scenario)


async def drained(http: httpx.AsyncClient) -> bool:
    return (await http.get(f"{COMMONS}/capabilities")).json()["workExchange"]["recovery"] == "drain"


def test_retention_hides_at_once_and_a_request_purges(service: Stack, exchange: Database, board: Board) -> None:
    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        work = await parties.publish()
        one = await parties.propose(work)
        set_clock(exchange, "2026-09-13 20:00:00+00")
        expired = (await http.get(f"{COMMONS}/work/{work}")).json()
        assert (expired["state"], expired["ownState"], expired["terms"] is None) == ("expired", "open", False)
        set_clock(exchange, "2026-09-20 20:00:00+00")
        for path in (f"/work/{work}", f"/work-proposals/{one}"):
            gone = (await http.get(COMMONS + path)).json()
            assert (gone["state"], gone["terms"]) == ("retention_expired", None)
            assert gone["termsSha256"] == DIGESTS["originalTermsSha256"]
        assert exchange.value("SELECT count(*) FROM work_opportunities WHERE terms IS NOT NULL") == 0
        assert exchange.value("SELECT count(*) FROM work_events") == 2

    play(service, scenario)


def test_what_is_wrong_is_said_in_the_exchanges_words(service: Stack, exchange: Database, board: Board) -> None:
    create = REQUESTS["create"]["body"]

    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)

        async def raw(body: bytes) -> tuple[int, str]:
            headers = headers_of(parties.requester, Idempotency_Key="k" * 40, Content_Type="application/json")
            return code(await http.post(f"{COMMONS}/work", content=body, headers=headers))

        text = json.dumps(create)
        for body, expected in (
            (text.replace('"title"', '"title":"x","title"', 1), (400, "duplicate_json_key")),
            (text.replace("4096", "NaN"), (400, "malformed_json")),
            (text.replace("4096", "1e400"), (400, "malformed_json")),
            (text.replace("4096", "4096.0"), (422, "work_terms_invalid")),
            (text.replace("4096", "true"), (422, "work_terms_invalid")),
            (text.replace("FICTIONAL", "\\ud800", 1), (400, "malformed_json")),
            (text.replace("FICTIONAL", "a\\u202eb", 1), (422, "work_terms_invalid")),
            (text.replace("concresca.work_terms.v1", "concresca.work_terms.v2"), (422, "schema_version_unknown")),
            (text.replace("concresca.work_opportunity.v1", "v9"), (422, "schema_version_unknown")),
            (
                text.replace('"publicationConsent": true', '"publicationConsent": false'),
                (422, "publication_consent_required"),
            ),
            (text.replace('"audience"', '"color": 1, "audience"'), (422, "field_unknown")),
            ("[]", (422, "work_payload_invalid")),
            ("{}", (422, "field_missing")),
        ):
            assert await raw(body.encode()) == expected, body[:80]
        assert code(await http.get(f"{COMMONS}/nothing")) == (404, "work_route_unknown")
        assert code(await http.get(f"{COMMONS}/work/commonswork-1")) == (404, "work_not_found")
        assert code(await http.delete(f"{COMMONS}/work")) == (405, "method_not_allowed")
        assert code(await http.post(f"{COMMONS}/work", json=create)) == (401, "authentication_required")
        bad = {"Authorization": "Bearer dibs_aaaaaaaa_" + "a" * 43}
        assert code(await http.get(f"{COMMONS}/work", headers=bad)) == (401, "credential_invalid")
        assert code(await http.get(f"{COMMONS}/work", params={"limit": "051"})) == (400, "query_invalid")
        assert code(await http.get(f"{COMMONS}/work", params={"after": "x"})) == (400, "cursor_invalid")

    play(service, scenario)


def test_pages_and_their_cursors(service: Stack, exchange: Database, board: Board) -> None:
    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        works = sorted([await parties.publish() for _ in range(7)])
        one = await parties.propose(works[0])
        first = (await http.get(f"{COMMONS}/work", params={"limit": "3"})).json()
        assert [item["workId"] for item in first["items"]] == works[:3]
        assert (first["kind"], first["count"], first["hasMore"]) == ("work_opportunity", 3, True)
        assert (first["schemaVersion"], first["cursorPurpose"]) == ("concresca.work_page.v1", "continuation_only")
        cursor = first["nextCursor"]
        assert len(cursor) <= 2048
        rest = (await http.get(f"{COMMONS}/work", params={"after": cursor})).json()
        assert [item["workId"] for item in rest["items"]] == works[3:]
        assert (rest["hasMore"], rest["nextCursor"]) == (False, None)
        assert code(await http.get(f"{COMMONS}/work-proposals", params={"after": cursor})) == (400, "cursor_invalid")
        for query in ("limit=0", "limit=51", "limit=+1", "limit=01", "limit=1&limit=2", "cursor=x", "after"):
            assert code(await http.get(f"{COMMONS}/work?{query}")) == (400, "query_invalid"), query
        for path in (f"/work/{works[0]}", f"/work-proposals/{one}"):
            assert code(await http.get(f"{COMMONS}{path}?limit=1")) == (400, "query_invalid")

    play(service, scenario)


def test_a_slot_that_was_selected_stays_so(service: Stack, exchange: Database, board: Board) -> None:
    """Neither cancellation nor withdrawal nor correction frees it, and no correction rewrites a proposal."""

    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        work = await parties.publish()
        mine, theirs = await parties.propose(work), await parties.propose(work, parties.other)
        assert (await parties.act(parties.requester, mine, "direct-accept", expectedRevision=1)).status_code == 200
        correction = {**REQUESTS["correct-opportunity"]["body"], "expectedRevision": 2}
        corrected = await parties.post(parties.requester, f"/work/{work}/corrections", correction)
        assert (corrected.status_code, corrected.json()["opportunity"]["ownState"]) == (200, "assigned")
        bound = (await http.get(f"{COMMONS}/work-proposals/{mine}")).json()
        assert (bound["termsSha256"], bound["opportunityRevision"]) == (ORIGINAL, 1)
        cancelled = await parties.act(
            parties.provider, mine, "cancel", expectedRevision=2, expectedTermsSha256=ORIGINAL
        )
        assert (cancelled.status_code, cancelled.json()["proposal"]["ownState"]) == (200, "cancelled")
        late = await parties.act(parties.requester, theirs, "direct-accept", expectedRevision=1)
        assert code(late) == (409, "work_selection_conflict")
        withdrawal = {"schemaVersion": "concresca.work_opportunity_withdrawal.v1", "expectedRevision": 3}
        ended = await parties.post(parties.requester, f"/work/{work}/withdrawal", withdrawal)
        assert ended.json()["opportunity"]["selectedProposalId"] == mine
        assert (await http.get(f"{COMMONS}/work-proposals/{theirs}")).json()["terms"] is not None
        gone = await parties.act(parties.requester, theirs, "direct-accept", expectedRevision=1)
        assert code(gone) == (409, "work_state_conflict")

    play(service, scenario)


def test_a_request_says_no_more_than_it_may(service: Stack, exchange: Database, board: Board) -> None:
    """Size with all its white space, no actor or state of its own, an agent's key and nobody else's."""
    body = REQUESTS["create"]["body"]

    async def scenario(http: httpx.AsyncClient) -> None:
        parties = Parties(http, board)
        headers = headers_of(parties.requester, Idempotency_Key="k" * 40, Content_Type="application/json")
        padded = json.dumps(body).encode().ljust(24_576)
        whole = await http.post(f"{COMMONS}/work", content=padded, headers=headers)
        assert whole.status_code == 201
        larger = await http.post(f"{COMMONS}/work", content=padded + b" ", headers=headers)
        assert code(larger) == (413, "request_too_large")
        for extra in ({"actorAgentId": parties.requester.id}, {"snapshot": {}}, {"revision": 1}):
            assert code(await parties.post(parties.requester, "/work", {**body, **extra})) == (422, "field_unknown")
        work = whole.json()["opportunity"]["workId"]
        one = await parties.propose(work)
        for name, changes, expected in (
            ("counter", {"payload": None}, (422, "work_terms_invalid")),
            ("refuse", {"payload": {}}, (422, "work_payload_invalid")),
            ("refuse", {"action": "approve"}, (422, "work_payload_invalid")),
            ("refuse", {"expectedTermsSha256": ORIGINAL.upper()}, (422, "work_payload_invalid")),
        ):
            answer = await parties.act(parties.requester, one, name, **{"expectedRevision": 1, **changes})
            assert code(answer) == expected, (name, changes)
        bare = {name: value for name, value in REQUESTS["refuse"]["body"].items() if name != "payload"}
        bare |= {"expectedRevision": 1, "expectedTermsSha256": ORIGINAL}
        exchange.rows("UPDATE keys SET operator = true WHERE id = %s", parties.other.key_id)
        exchange.rows("UPDATE authority SET epoch = epoch + 1")
        await until("the operator's key to be seen", lambda: refused_operator(parties, body))
        refused = await parties.post(parties.requester, f"/work-proposals/{one}/actions", bare)
        assert (refused.status_code, refused.json()["proposal"]["state"]) == (200, "refused")

    play(service, scenario)


async def refused_operator(parties: Parties, body: Any) -> bool:
    answer = await parties.post(parties.other, "/work", body)
    return answer.status_code == 403 and answer.json()["error"]["code"] == "agent_bearer_required"
