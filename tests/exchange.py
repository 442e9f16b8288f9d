"""The work exchange's fictional requests, and a scene that sends their intents through one pipeline."""

import hashlib
import json
from typing import Any

import msgspec
import psycopg

from models.ids import uuid7
from models.rules import ids
from models.rules.delivery import Delivery, WorkDecision
from models.rules.intents import (
    ActOnProposal,
    Proposal,
    PublishWork,
    ResolveWork,
    SlotDigest,
    Submission,
    WorkIntent,
    actor_partition,
    work_partition,
)
from models.rules.market import Reference
from models.rules.terms import Terms
from models.rules.work import WorkAction
from tests.pipeline import Pipeline
from tests.stack import Agent, Database
from web.work_contract import examples

FIXTURE: dict[str, Any] = json.loads(examples())
REQUESTS: dict[str, dict[str, Any]] = {one["name"]: one for one in FIXTURE["requests"]}
CLOCK = "2026-09-12 20:00:00+00"


def payload(name: str) -> dict[str, Any]:
    """Return the payload of a fictional action."""
    return json.loads(json.dumps(REQUESTS[name]["body"]["payload"]))


def terms_of(name: str = "create", **changes: Any) -> Terms:
    """Return the terms of a fictional request with changes."""
    body = REQUESTS[name]["body"]
    return msgspec.convert({**(body.get("terms") or body["payload"]), **changes}, Terms)


def action(proposal_id: str, work_id: str, name: WorkAction, revision: int, terms_sha256: str, given: Any = None):
    """Return an action with its payload in its place."""
    kinds = {
        WorkAction.COUNTER: ("terms", Terms),
        WorkAction.DELIVER: ("delivery", Delivery),
        WorkAction.DECIDE: ("decision", WorkDecision),
    }
    payload = {kinds[name][0]: msgspec.convert(given, kinds[name][1])} if name in kinds else {}
    return ActOnProposal(
        proposal_id=proposal_id,
        work_id=work_id,
        action=name,
        expected_revision=revision,
        expected_terms_sha256=terms_sha256,
        **payload,
    )


def set_clock(database: Database, moment: str) -> None:
    """Let a database's clock stand still at a moment."""
    with psycopg.connect(database.owner_url, autocommit=True) as connection:
        connection.execute(
            "CREATE OR REPLACE FUNCTION dibs_now() RETURNS timestamptz LANGUAGE sql VOLATILE "  # type: ignore[arg-type]
            f"AS $$SELECT '{moment}'::timestamptz$$"
        )


class Exchange:
    """Agents around one pipeline: each call is a window of its own."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.requester, self.provider, self.other, *_ = pipeline.board.members
        self.clock(CLOCK)

    def clock(self, moment: str) -> None:
        """Set the database's clock."""
        set_clock(self.pipeline.database, moment)

    def slot(self, agent: Agent, key: str, body: str) -> SlotDigest:
        digest = [hashlib.sha256("\0".join(parts).encode()).digest() for parts in ((agent.id, key), (body,))]
        return SlotDigest("k1", *digest)

    def submission(self, agent: Agent, intent: WorkIntent, *, key: str | None = None, body: str = "body") -> Submission:
        work = getattr(intent, "work_id", None)
        key = uuid7().hex if key is None else key
        return Submission(
            id=ids.append_id(uuid7()),
            partition=actor_partition(agent.id) if work is None else work_partition(work),
            space="",
            actor=agent.id,
            key_id=agent.key_id,
            proposals=(Proposal.of(intent),),
            slots=(self.slot(agent, key, body),),
            reply_to="web",
        )

    def send(self, *sent: Submission) -> list[Any]:
        """Run submissions of one partition as one window; return references of successes, (status, code) of others."""
        self.pipeline.append(*sent)
        self.pipeline.work(partition=sent[0].partition)
        found = []
        for one in sent:
            status, code = self.pipeline.outcome(one)
            found.append((status, code) if code else msgspec.convert(self.pipeline.body(one), Reference))
        return found

    def do(self, agent: Agent, intent: WorkIntent, **how: Any) -> Any:
        (found,) = self.send(self.submission(agent, intent, **how))
        return found

    def publish(self, agent: Agent | None = None, **changes: Any) -> str:
        return self.do(agent or self.requester, PublishWork(terms=terms_of(**changes))).object_id

    def resolve(self, agent: Agent, path: str, *, key: str, body: str = "body", partition: str | None = None):
        intent = ResolveWork(
            original_path=path, original=(self.slot(agent, key, body),), original_intent_digest="d" * 64
        )
        sent = self.submission(agent, intent)
        if partition is not None:
            sent = msgspec.structs.replace(sent, partition=partition)
        (found,) = self.send(sent)
        return found

    def opportunity(self, work_id: str) -> dict[str, Any]:
        return self.pipeline.database.rows("SELECT * FROM work_opportunities WHERE id = %s", work_id)[0]

    def proposal(self, proposal_id: str) -> dict[str, Any]:
        return self.pipeline.database.rows("SELECT * FROM work_proposals WHERE id = %s", proposal_id)[0]
