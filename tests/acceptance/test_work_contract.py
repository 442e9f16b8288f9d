"""An agent that has read nothing but the machine contract completes the flow, and tries every branch. Seed 004."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from models.ids import uuid7
from tests.exchange import CLOCK, set_clock
from tests.stack import Agent, Board, Database, Stack, headers_of, play


def sha256(value: Any) -> str:
    """Hash as the contract's ``hashing`` says."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Reader:
    """What the contract says, and requests made of its examples with dates and ids of now."""

    def __init__(self, http: httpx.AsyncClient, contract: dict[str, Any], *, dated: bool) -> None:
        self.http = http
        self.examples = {one["name"]: one for one in contract["examples"]["requests"]}
        self.prefix = next(one["path"] for one in contract["routes"] if one["path"].endswith("/work"))
        now = datetime.now(UTC).replace(microsecond=0)
        # With the examples' own clock their dates are good as they are.
        dates = {"expiresAt": now + timedelta(days=1), "retentionUntil": now + timedelta(days=8)}
        self.dates = {name: f"{at:%Y-%m-%dT%H:%M:%SZ}" for name, at in dates.items()} if dated else {}

    def dated(self, value: Any) -> Any:
        """Return an example with dates of now in the place of its own."""
        if isinstance(value, dict):
            return {name: self.dates.get(name) or self.dated(one) for name, one in value.items()}
        return [self.dated(one) for one in value] if isinstance(value, list) else value

    async def send(self, agent: Agent, name: str, path: str, **changes: Any) -> dict[str, Any]:
        body = {**self.dated(self.examples[name]["body"]), **changes}
        headers = headers_of(agent, Idempotency_Key=f"contract-reader-{uuid7().hex}")
        answer = await self.http.post(path, json=body, headers=headers)
        assert answer.status_code in {200, 201}, (name, answer.text)
        return answer.json()

    async def start(self, requester: Agent, provider: Agent) -> tuple[dict[str, Any], dict[str, Any]]:
        work = (await self.send(requester, "create", self.prefix))["opportunity"]
        path = f"{self.prefix}/{work['workId']}/proposals"
        made = await self.send(provider, "propose", path, expectedOpportunityRevision=work["revision"])
        return work, made["proposal"]

    async def act(self, agent: Agent, one: dict[str, Any], name: str) -> dict[str, Any]:
        """Take an example's action on a proposal as it reads now."""
        changes: dict[str, Any] = {
            "expectedRevision": one["revision"],
            "expectedTermsSha256": one["termsSha256"],
        }
        payload = self.dated(self.examples[name]["body"]["payload"])
        if payload is not None and "deliverySha256" in payload:
            changes["payload"] = {**payload, "deliverySha256": one["deliverySha256"]}
        path = f"{self.prefix}-proposals/{one['proposalId']}/actions"
        told = await self.send(agent, name, path, **changes)
        if payload is not None and name == "counter":
            assert told["proposal"]["termsSha256"] == sha256(payload)
        return told["proposal"]


BRANCHES = {
    "main": "counter:requester accept:provider deliver:provider decide:requester",
    "direct": "direct-accept:requester",
    "refused": "refuse:requester",
    "cancelled": "direct-accept:requester cancel:provider",
    "disputed": "counter:requester accept:provider deliver:provider dispute:requester replace-delivery:provider",
    "delivery taken back": "counter:requester accept:provider deliver:provider withdraw-delivery:provider",
    "terms taken back": "withdraw-terms:provider",
    "decision taken back": (
        "counter:requester accept:provider deliver:provider dispute:requester withdraw-decision:requester"
    ),
}
ENDS = {
    "main": "completed", "direct": "accepted", "refused": "refused", "cancelled": "cancelled", "disputed": "delivered",
    "delivery taken back": "accepted", "terms taken back": "withdrawn", "decision taken back": "delivered",
}  # fmt: skip


@pytest.fixture(params=["now", "at the examples' clock"])
def read(service: Stack, database: Database, request: pytest.FixtureRequest):
    if request.param != "now":
        set_clock(database, CLOCK)

    def go(scenario) -> None:
        async def reading(http: httpx.AsyncClient) -> None:
            offered = (await http.get("/api/matm/commons/capabilities")).json()
            assert offered["workExchange"]["supported"] is True
            (route,) = [one for one in offered["workExchange"]["routes"] if one.endswith("work-contract")]
            contract = (await http.get(route.removeprefix("GET "))).json()
            await scenario(contract, Reader(http, contract, dated=request.param == "now"))

        play(service, reading)

    return go


def test_every_branch_of_the_examples(read, board: Board) -> None:
    requester, provider, *_ = board.members
    parties = {"requester": requester, "provider": provider}

    async def scenario(contract: dict[str, Any], reader: Reader) -> None:
        used = {"create", "propose"}
        for branch, steps in BRANCHES.items():
            _, one = await reader.start(requester, provider)
            for step in steps.split():
                name, _, party = step.partition(":")
                used.add(name)
                one = await reader.act(parties[party], one, name)
            assert one["ownState"] == ENDS[branch], branch
        work, _ = await reader.start(requester, provider)
        place = f"{reader.prefix}/{work['workId']}"
        corrected = await reader.send(
            requester, "correct-opportunity", f"{place}/corrections", expectedRevision=work["revision"]
        )
        revision = corrected["opportunity"]["revision"]
        ended = await reader.send(requester, "withdraw-opportunity", f"{place}/withdrawal", expectedRevision=revision)
        assert ended["opportunity"]["state"] == "withdrawn"
        resolved = await reader.send(requester, "resolve-create", f"{reader.prefix}-resolution")
        assert resolved["resolution"]["outcome"] == "prevented"
        used |= {"correct-opportunity", "withdraw-opportunity", "resolve-create"}
        assert used == reader.examples.keys()

    read(scenario)


def test_the_contract_says_what_there_is(read) -> None:
    async def scenario(contract: dict[str, Any], reader: Reader) -> None:
        assert set(contract["proposal"]["actions"]) == {
            "counter", "accept", "refuse", "cancel", "deliver", "decide", "withdraw_terms", "withdraw_delivery",
            "withdraw_decision",
        }  # fmt: skip
        assert [name for name, one in contract["proposal"]["actions"].items() if one["cleanup"]] == [
            "refuse", "cancel", "withdraw_terms", "withdraw_delivery", "withdraw_decision",
        ]  # fmt: skip
        assert len(contract["schemas"]["Terms"]["required"]) == 14
        for one in contract["routes"]:
            for body in one["bodies"]:
                assert body.removeprefix("#/schemas/") in contract["schemas"]
            assert set(one["errors"]) <= contract["errors"].keys()
        assert contract["bounds"]["requestBytes"] == 24_576
        for name, digest in (
            ("create", contract["examples"]["expected"]["originalTermsSha256"]),
            ("correct-opportunity", reader.examples["correct-opportunity"]["digests"]["termsSha256"]),
        ):
            assert sha256(reader.examples[name]["body"]["terms"]) == digest

    read(scenario)
