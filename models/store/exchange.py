"""The work exchange in SQL: what a window names, locked in one order, and what it writes. Contract 1.1 and 3.

Order of locks: counters by agent, opportunities by id, proposals by id. A key's place is not locked beforehand: its
primary key arbitrates when it is written, and whoever comes second decides again with the first one's row in view.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, text

from models.rules.delivery import Delivery, WorkDecision
from models.rules.market import Counters, ExchangePart, Participant, Reference, WorkPlan, WorkSlot
from models.rules.needs import WorkNeeds
from models.rules.terms import Terms
from models.rules.work import ObjectKind, Opportunity, OpportunityState, Proposal, ProposalState

_COUNT: Final = text(
    "INSERT INTO work_actors (agent_id) SELECT id FROM agents WHERE id = ANY(:actors) ORDER BY id "
    "ON CONFLICT (agent_id) DO NOTHING"
)
_COUNTERS: Final = text(
    "SELECT agent_id, opportunities, proposals, fences, resolutions FROM work_actors WHERE agent_id = ANY(:actors) "
    "ORDER BY agent_id FOR UPDATE"
)
_OPPORTUNITIES: Final = text("SELECT o.* FROM work_opportunities o WHERE o.id = ANY(:ids) ORDER BY o.id FOR UPDATE")
_PROPOSALS: Final = text("SELECT p.* FROM work_proposals p WHERE p.id = ANY(:ids) ORDER BY p.id FOR UPDATE")
SLOT_JSON: Final = (
    "json_build_object('slot', encode(s.slot, 'hex'), 'secret_id', s.secret_id, 'request', encode(s.request, 'hex'), "
    "'actor', s.actor, 'operation', s.operation, 'kind', s.kind, 'object_id', s.object_id, 'operation_revision', "
    "s.operation_revision, 'receipt_id', s.receipt_id, 'status', s.status)"
)
"""A key's place as :func:`decode_slots` reads it."""

_REST: Final = text(f"""
SELECT (SELECT coalesce(json_agg({SLOT_JSON}), '[]') FROM work_slots s WHERE s.slot = ANY(:slots))::text AS slots,
  (SELECT coalesce(json_agg(json_build_object('id', a.id, 'active', a.active, 'listed', a.listed)), '[]')
   FROM agents a WHERE a.id = ANY(:agents))::text AS agents
""")  # noqa: S608 - the only interpolation is a constant
_WRITE: Final = text("""
WITH opportunities AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(:opportunities AS json)) AS r(id text, requester text, terms json,
    terms_sha256 text, revision integer, own_state text, proposal_count integer, selected_proposal text,
    expires_at timestamptz, retention_until timestamptz, created_at timestamptz, updated_at timestamptz, was integer)
), proposals AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(:proposals AS json)) AS r(id text, work_id text, opportunity_revision integer,
    opportunity_terms_sha256 text, requester text, provider text, proposed_by text, terms json, terms_sha256 text,
    delivery json, delivery_sha256 text, decision json, decision_sha256 text, revision integer, own_state text,
    expires_at timestamptz, retention_until timestamptz, created_at timestamptz, updated_at timestamptz, was integer)
), published AS (
  INSERT INTO work_opportunities (id, requester, terms, terms_sha256, revision, own_state, proposal_count,
    selected_proposal, expires_at, retention_until, created_at, updated_at)
  SELECT id, requester, terms, terms_sha256, revision, own_state, proposal_count,
    selected_proposal, expires_at, retention_until, created_at, updated_at FROM opportunities WHERE was IS NULL
), changed AS (
  UPDATE work_opportunities o SET terms = r.terms, terms_sha256 = r.terms_sha256,
    revision = r.revision, own_state = r.own_state, proposal_count = r.proposal_count,
    selected_proposal = r.selected_proposal, expires_at = r.expires_at, retention_until = r.retention_until,
    updated_at = r.updated_at
  FROM opportunities r WHERE o.id = r.id AND o.revision = r.was RETURNING 1
), proposed AS (
  INSERT INTO work_proposals (id, work_id, opportunity_revision, opportunity_terms_sha256, requester, provider,
    proposed_by, terms, terms_sha256, delivery, delivery_sha256, decision, decision_sha256, revision, own_state,
    expires_at, retention_until, created_at, updated_at)
  SELECT id, work_id, opportunity_revision, opportunity_terms_sha256, requester, provider, proposed_by,
    terms, terms_sha256, delivery, delivery_sha256,
    decision, decision_sha256, revision, own_state, expires_at, retention_until,
    created_at, updated_at FROM proposals WHERE was IS NULL
), moved AS (
  UPDATE work_proposals p SET proposed_by = r.proposed_by, terms = r.terms,
    terms_sha256 = r.terms_sha256, delivery = r.delivery,
    delivery_sha256 = r.delivery_sha256, decision = r.decision,
    decision_sha256 = r.decision_sha256, revision = r.revision, own_state = r.own_state, expires_at = r.expires_at,
    retention_until = r.retention_until, updated_at = r.updated_at
  FROM proposals r WHERE p.id = r.id AND p.revision = r.was RETURNING 1
), told AS (
  INSERT INTO work_events (object_id, revision, operation, actor, receipt_id, at)
  SELECT object_id, revision, operation, actor, receipt_id, :now FROM json_to_recordset(CAST(:events AS json))
    AS r(object_id text, revision integer, operation text, actor text, receipt_id text)
), kept AS (
  INSERT INTO work_slots (slot, secret_id, request, actor, operation, kind, object_id, operation_revision, receipt_id,
    status, created_at)
  SELECT decode(slot, 'hex'), secret_id, decode(request, 'hex'), actor, operation, kind, object_id,
    operation_revision, receipt_id, status, :now FROM json_to_recordset(CAST(:slots AS json)) AS r(slot text,
    secret_id text, request text, actor text, operation text, kind text, object_id text, operation_revision integer,
    receipt_id text, status smallint)
  ON CONFLICT DO NOTHING RETURNING 1
), resolved AS (
  INSERT INTO work_resolutions (id, actor, applied, original_path, original_intent_digest, original_slot,
    original_status, at)
  SELECT id, actor, applied, original_path, original_intent_digest, decode(original_slot, 'hex'), original_status,
    :now FROM json_to_recordset(CAST(:resolutions AS json)) AS r(id text, actor text, applied boolean,
    original_path text, original_intent_digest text, original_slot text, original_status smallint)
), counted AS (
  UPDATE work_actors a SET opportunities = r.opportunities, proposals = r.proposals, fences = r.fences,
    resolutions = r.resolutions
  FROM json_to_recordset(CAST(:counters AS json)) AS r(agent_id text, opportunities integer, proposals integer,
    fences integer, resolutions integer) WHERE a.agent_id = r.agent_id
)
SELECT (SELECT count(*) FROM changed) + (SELECT count(*) FROM moved) AS changed, (SELECT count(*) FROM kept) AS kept
""")


class _SlotRow(msgspec.Struct, frozen=True):
    slot: str
    secret_id: str
    request: str | None
    actor: str
    operation: str | None
    kind: ObjectKind | None
    object_id: str | None
    operation_revision: int | None
    receipt_id: str | None
    status: int | None

    def kept(self) -> WorkSlot:
        reference = None
        if self.operation is not None:
            assert self.kind is not None
            reference = Reference(
                operation=self.operation,
                kind=self.kind,
                object_id=self.object_id or "",
                operation_revision=self.operation_revision or 0,
                receipt_id=self.receipt_id or "",
                actor=self.actor,
                status=self.status or 0,
            )
        return WorkSlot(
            slot=bytes.fromhex(self.slot),
            secret_id=self.secret_id,
            request=None if self.request is None else bytes.fromhex(self.request),
            actor=self.actor,
            reference=reference,
        )


class _AgentRow(msgspec.Struct, frozen=True):
    id: str
    active: bool
    listed: bool


_slots: Final = msgspec.json.Decoder(tuple[_SlotRow, ...])
_agents: Final = msgspec.json.Decoder(tuple[_AgentRow, ...])


def load_exchange(connection: Connection, needs: WorkNeeds) -> ExchangePart:
    """Load and lock what a window names; the statements' number does not depend on its size."""
    if not needs.actors:
        return ExchangePart()
    # Two statements: the second one sees the row that another partition's window has just made or counted up.
    connection.execute(_COUNT, {"actors": list(needs.actors)})
    counters = {
        row.agent_id: Counters(
            opportunities=row.opportunities, proposals=row.proposals, fences=row.fences, resolutions=row.resolutions
        )
        for row in connection.execute(_COUNTERS, {"actors": list(needs.actors)})
    }
    opportunities = {
        row["id"]: opportunity_of(row)
        for row in connection.execute(_OPPORTUNITIES, {"ids": list(needs.opportunities)}).mappings()
    }
    proposals = {
        row["id"]: proposal_of(row) for row in connection.execute(_PROPOSALS, {"ids": list(needs.proposals)}).mappings()
    }
    agents = {*needs.actors, *(one.requester for one in opportunities.values())}
    rest = connection.execute(_REST, {"slots": list(needs.slots), "agents": sorted(agents)}).one()
    return ExchangePart(
        opportunities=opportunities,
        proposals=proposals,
        slots={row.kept().slot: row.kept() for row in _slots.decode(rest.slots)},
        counters=counters,
        participants={row.id: Participant(active=row.active, listed=row.listed) for row in _agents.decode(rest.agents)},
    )


def write_exchange(connection: Connection, plan: WorkPlan, *, now: datetime) -> bool:
    """Write what a window made of the exchange; False where something was written below the partition's lock.

    Then the transaction is to be rolled back and decided again.
    """
    if not (plan.opportunities or plan.proposals or plan.slots or plan.counters):
        return True
    row = connection.execute(
        _WRITE,
        {
            "now": now,
            "opportunities": _json([_object(one, plan) for one in plan.opportunities]),
            "proposals": _json([_object(one, plan) for one in plan.proposals]),
            "events": _json(
                [
                    {
                        "object_id": one.object_id,
                        "revision": one.event.revision,
                        "operation": one.event.operation,
                        "actor": one.event.actor_agent_id,
                        "receipt_id": one.event.receipt_id,
                    }
                    for one in plan.events
                ]
            ),
            "slots": _json([_slot(one) for one in plan.slots]),
            "resolutions": _json(
                [{**msgspec.structs.asdict(one), "original_slot": one.original_slot.hex()} for one in plan.resolutions]
            ),
            "counters": _json(
                [{"agent_id": actor, **msgspec.structs.asdict(counters)} for actor, counters in plan.counters.items()]
            ),
        },
    ).one()
    return bool(row.changed == len(plan.before) and row.kept == len(plan.slots))


def opportunity_of(row: Any) -> Opportunity:  # noqa: ANN401 - a row's mapping, of either driver
    """Return the opportunity of a row of its table."""
    return Opportunity(
        id=row["id"],
        requester=row["requester"],
        terms=None if row["terms"] is None else msgspec.convert(row["terms"], Terms),
        terms_sha256=row["terms_sha256"],
        revision=row["revision"],
        own_state=OpportunityState(row["own_state"]),
        proposal_count=row["proposal_count"],
        selected_proposal=row["selected_proposal"],
        expires_at=row["expires_at"],
        retention_until=row["retention_until"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def proposal_of(row: Any) -> Proposal:  # noqa: ANN401 - a row's mapping, of either driver
    """Return the proposal of a row of its table."""
    return Proposal(
        id=row["id"],
        work_id=row["work_id"],
        opportunity_revision=row["opportunity_revision"],
        opportunity_terms_sha256=row["opportunity_terms_sha256"],
        requester=row["requester"],
        provider=row["provider"],
        proposed_by=row["proposed_by"],
        terms=None if row["terms"] is None else msgspec.convert(row["terms"], Terms),
        terms_sha256=row["terms_sha256"],
        delivery=None if row["delivery"] is None else msgspec.convert(row["delivery"], Delivery),
        delivery_sha256=row["delivery_sha256"],
        decision=None if row["decision"] is None else msgspec.convert(row["decision"], WorkDecision),
        decision_sha256=row["decision_sha256"],
        revision=row["revision"],
        own_state=ProposalState(row["own_state"]),
        expires_at=row["expires_at"],
        retention_until=row["retention_until"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def decode_slots(document: str) -> list[WorkSlot]:
    """Return keys' places from the JSON of their rows."""
    return [row.kept() for row in _slots.decode(document)]


def _object(one: Opportunity | Proposal, plan: WorkPlan) -> dict[str, Any]:
    return {**msgspec.structs.asdict(one), "was": plan.before.get(one.id)}


def _slot(one: WorkSlot) -> dict[str, Any]:
    reference = {} if one.reference is None else msgspec.structs.asdict(one.reference)
    return {
        **reference,
        "slot": one.slot.hex(),
        "secret_id": one.secret_id,
        "request": None if one.request is None else one.request.hex(),
        "actor": one.actor,
    }


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
