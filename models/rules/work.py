"""Opportunities and proposals of the work exchange: what is stored, and what anyone reads of it. Seed 004; Contract 3.

A stored object keeps its own state for ever; what is read is projected from it and the clock, so nothing depends on
when a purge has run.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

import msgspec

from models.rules.canonical import sha256_hex
from models.rules.delivery import Delivery, WorkDecision
from models.rules.terms import Terms

EVENTS_ORDINARY: Final = 128
"""Revision from which only what ends or withdraws is done."""
EVENTS_MAX: Final = 136
OPPORTUNITIES_MAX: Final = 256
"""Opportunities of one requester, withdrawn and expired ones too."""
PROPOSALS_MAX: Final = 1024
"""Proposals of one provider, likewise."""
PROPOSALS_PER_OPPORTUNITY_MAX: Final = 64
FENCES_MAX: Final = 64
RESOLUTIONS_MAX: Final = 256

_ID_DIGITS: Final = 24


class ObjectKind(StrEnum):
    """What a receipt speaks of."""

    OPPORTUNITY = "work_opportunity"
    PROPOSAL = "work_proposal"
    RESOLUTION = "work_resolution"


class OpportunityState(StrEnum):
    """An opportunity's own state."""

    OPEN = "open"
    ASSIGNED = "assigned"
    WITHDRAWN = "withdrawn"


class ProposalState(StrEnum):
    """A proposal's own state."""

    PROPOSED = "proposed"
    ACCEPTED = "accepted"
    DELIVERED = "delivered"
    DISPUTED = "disputed"
    COMPLETED = "completed"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"


TERMINAL: Final = frozenset(
    {ProposalState.COMPLETED, ProposalState.REFUSED, ProposalState.CANCELLED, ProposalState.WITHDRAWN}
)


class WorkAction(StrEnum):
    """What parties do with a proposal."""

    COUNTER = "counter"
    ACCEPT = "accept"
    REFUSE = "refuse"
    CANCEL = "cancel"
    DELIVER = "deliver"
    DECIDE = "decide"
    WITHDRAW_TERMS = "withdraw_terms"
    WITHDRAW_DELIVERY = "withdraw_delivery"
    WITHDRAW_DECISION = "withdraw_decision"


class WorkEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One change of an object: metadata for ever, never a payload."""

    revision: int
    operation: str
    actor_agent_id: str
    receipt_id: str
    at: datetime


class Opportunity(msgspec.Struct, frozen=True, kw_only=True):
    """An opportunity as it is stored; ``terms`` is None once they were withdrawn or purged, their digest stays."""

    id: str
    requester: str
    terms: Terms | None
    terms_sha256: str
    revision: int
    own_state: OpportunityState
    proposal_count: int
    selected_proposal: str | None
    expires_at: datetime
    retention_until: datetime
    created_at: datetime
    updated_at: datetime


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal as it is stored; a payload that is gone is None, and its digest stays."""

    id: str
    work_id: str
    opportunity_revision: int
    opportunity_terms_sha256: str
    requester: str
    provider: str
    proposed_by: str
    terms: Terms | None
    terms_sha256: str
    delivery: Delivery | None = None
    delivery_sha256: str | None = None
    decision: WorkDecision | None = None
    decision_sha256: str | None = None
    revision: int
    own_state: ProposalState
    expires_at: datetime
    retention_until: datetime
    created_at: datetime
    updated_at: datetime


class OpportunityView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An opportunity as anyone reads it now; lists leave ``history`` out."""

    schema_version: Literal["concresca.work_opportunity_view.v1"] = "concresca.work_opportunity_view.v1"
    work_id: str
    requester_agent_id: str
    terms: Terms | None
    terms_sha256: str
    revision: int
    own_state: OpportunityState
    state: str
    proposal_count: int
    selected_proposal_id: str | None
    expires_at: datetime
    retention_until: datetime
    created_at: datetime
    updated_at: datetime
    history: tuple[WorkEvent, ...] | msgspec.UnsetType = msgspec.UNSET


class ProposalView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A proposal as anyone reads it now; lists leave ``history`` out."""

    schema_version: Literal["concresca.work_proposal_view.v1"] = "concresca.work_proposal_view.v1"
    proposal_id: str
    work_id: str
    opportunity_revision: int
    opportunity_terms_sha256: str
    requester_agent_id: str
    provider_agent_id: str
    proposed_by_agent_id: str
    terms: Terms | None
    terms_sha256: str
    delivery: Delivery | None
    delivery_sha256: str | None
    decision: WorkDecision | None
    decision_sha256: str | None
    revision: int
    own_state: ProposalState
    state: str
    expires_at: datetime
    retention_until: datetime
    created_at: datetime
    updated_at: datetime
    history: tuple[WorkEvent, ...] | msgspec.UnsetType = msgspec.UNSET


def view_opportunity(
    one: Opportunity, *, now: datetime, history: tuple[WorkEvent, ...] | msgspec.UnsetType = msgspec.UNSET
) -> OpportunityView:
    """Project an opportunity: retention before withdrawn before expired before its own state."""
    retained = now < one.retention_until
    if not retained:
        state = "retention_expired"
    elif one.own_state is not OpportunityState.WITHDRAWN and now >= one.expires_at:
        state = "expired"
    else:
        state = one.own_state.value
    return OpportunityView(
        work_id=one.id,
        requester_agent_id=one.requester,
        terms=one.terms if retained else None,
        terms_sha256=one.terms_sha256,
        revision=one.revision,
        own_state=one.own_state,
        state=state,
        proposal_count=one.proposal_count,
        selected_proposal_id=one.selected_proposal,
        expires_at=one.expires_at,
        retention_until=one.retention_until,
        created_at=one.created_at,
        updated_at=one.updated_at,
        history=history,
    )


def view_proposal(
    one: Proposal, *, now: datetime, history: tuple[WorkEvent, ...] | msgspec.UnsetType = msgspec.UNSET
) -> ProposalView:
    """Project a proposal: retention first; after expiry, what is not terminal is expired."""
    retained = now < one.retention_until
    if not retained:
        state = "retention_expired"
    elif one.own_state not in TERMINAL and now >= one.expires_at:
        state = "expired"
    else:
        state = one.own_state.value
    return ProposalView(
        proposal_id=one.id,
        work_id=one.work_id,
        opportunity_revision=one.opportunity_revision,
        opportunity_terms_sha256=one.opportunity_terms_sha256,
        requester_agent_id=one.requester,
        provider_agent_id=one.provider,
        proposed_by_agent_id=one.proposed_by,
        terms=one.terms if retained else None,
        terms_sha256=one.terms_sha256,
        delivery=one.delivery if retained else None,
        delivery_sha256=one.delivery_sha256,
        decision=one.decision if retained else None,
        decision_sha256=one.decision_sha256,
        revision=one.revision,
        own_state=one.own_state,
        state=state,
        expires_at=one.expires_at,
        retention_until=one.retention_until,
        created_at=one.created_at,
        updated_at=one.updated_at,
        history=history,
    )


def work_id(proposal_id: str) -> str:
    """Return the id of the opportunity that a proposal of the pipeline makes: a rerun makes the same."""
    return f"commonswork-{_digits('work', proposal_id)}"


def work_proposal_id(proposal_id: str) -> str:
    """Return the id of the work proposal that a proposal of the pipeline makes."""
    return f"commonsproposal-{_digits('proposal', proposal_id)}"


def receipt_id(proposal_id: str) -> str:
    """Return the id of the receipt of a proposal of the pipeline."""
    return f"commonsreceipt-{_digits('receipt', proposal_id)}"


def resolution_id(proposal_id: str) -> str:
    """Return the id of the resolution that a proposal of the pipeline makes."""
    return f"commonsworkresolution-{_digits('resolution', proposal_id)}"


def _digits(purpose: str, proposal_id: str) -> str:
    """Return 24 hexadecimal digits; sixty-six random bits of the proposal's id stand behind them."""
    return sha256_hex(f"{purpose}:{proposal_id}".encode())[:_ID_DIGITS]
