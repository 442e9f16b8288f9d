"""Decisions of the work exchange: publish, correct, withdraw, propose, and the actions of two parties. Seed 004.

Each is a function from the market and an intent to an answer. A success is answered by a reference, from which the web
process makes the current projection; nothing here repeats a payload. Contract 3.
"""

from __future__ import annotations

from typing import Any, Final, assert_never

import msgspec

from models.rules import outcomes, work
from models.rules.code import Code
from models.rules.delivery import Verdict, decision_fault, delivery_fault
from models.rules.intents import ActOnProposal, CorrectWork, ProposeWork, PublishWork, WithdrawWork
from models.rules.market import Market, Reference
from models.rules.outcomes import Answer
from models.rules.proposals import ACTIONS, Contribution, Party, Row
from models.rules.ruling import Caller
from models.rules.terms import Fault, Terms, digest, fault_of, instant
from models.rules.work import (
    EVENTS_MAX,
    EVENTS_ORDINARY,
    TERMINAL,
    ObjectKind,
    Opportunity,
    OpportunityState,
    Proposal,
    ProposalState,
    WorkAction,
    WorkEvent,
)

_CREATED: Final = 201
_DONE: Final = 200


def publish(market: Market, intent: PublishWork, caller: Caller) -> Answer:
    """Publish an opportunity: by a listed agent, within its quota for good."""
    if not market.participant(caller.actor).listed:
        return refuse(Code.ACTOR_NOT_LISTED)
    fault = fault_of(intent.terms, now=market.now)
    if fault is not None:
        return faulty(fault, "/terms")
    if market.counters(caller.actor).opportunities >= work.OPPORTUNITIES_MAX:
        return refuse(Code.WORK_QUOTA_REACHED)
    market.count(caller.actor, opportunities=1)
    made = Opportunity(
        id=work.work_id(caller.proposal_id),
        requester=caller.actor,
        terms=intent.terms,
        terms_sha256=digest(intent.terms),
        revision=1,
        own_state=OpportunityState.OPEN,
        proposal_count=0,
        selected_proposal=None,
        created_at=market.now,
        updated_at=market.now,
        **_times(intent.terms),
    )
    return _put(market, made, "work-create", caller, status=_CREATED)


def correct(market: Market, intent: CorrectWork, caller: Caller) -> Answer:
    """Replace an opportunity's terms; proposals that stand on the earlier ones are not rewritten."""
    one = market.opportunity(intent.work_id)
    if one is None:
        return refuse(Code.WORK_NOT_FOUND)
    code = (
        (Code.PARTICIPANT_REQUIRED if one.requester != caller.actor else None)
        or (Code.WORK_REVISION_STALE if one.revision != intent.expected_revision else None)
        or (Code.WORK_STATE_CONFLICT if one.own_state is OpportunityState.WITHDRAWN else None)
        or (Code.WORK_EXPIRED if market.now >= one.expires_at else None)
        or (Code.WORK_EVENT_LIMIT if one.revision >= EVENTS_ORDINARY else None)
    )
    if code is not None:
        return refuse(code)
    fault = fault_of(intent.terms, now=market.now)
    if fault is not None:
        return faulty(fault, "/terms")
    times = _times(intent.terms)
    if times["retention_until"] > one.retention_until:
        # The same code is a 422 for a counter: a correction changes what others may rely on already.
        return refuse(Code.WORK_RETENTION_INCREASE, status=409)
    after = msgspec.structs.replace(one, terms=intent.terms, terms_sha256=digest(intent.terms), **times)
    return _put(market, after, "work-correct", caller)


def withdraw(market: Market, intent: WithdrawWork, caller: Caller) -> Answer:
    """Withdraw an opportunity and its terms, expired or not; a selected slot stays selected."""
    one = market.opportunity(intent.work_id)
    if one is None:
        return refuse(Code.WORK_NOT_FOUND)
    code = (
        (Code.PARTICIPANT_REQUIRED if one.requester != caller.actor else None)
        or (Code.WORK_REVISION_STALE if one.revision != intent.expected_revision else None)
        or (Code.WORK_STATE_CONFLICT if one.terms is None or market.now >= one.retention_until else None)
        or (Code.WORK_EVENT_LIMIT if one.revision >= EVENTS_MAX else None)
    )
    if code is not None:
        return refuse(code)
    after = msgspec.structs.replace(one, terms=None, own_state=OpportunityState.WITHDRAWN)
    return _put(market, after, "work-withdraw", caller)


def propose(  # noqa: PLR0911 - one return for each question
    market: Market, intent: ProposeWork, caller: Caller
) -> Answer:
    """Propose complete terms for an open opportunity; publication reserves nothing."""
    one = market.opportunity(intent.work_id)
    if one is None:
        return refuse(Code.WORK_NOT_FOUND)
    if not market.participant(caller.actor).listed:
        return refuse(Code.ACTOR_NOT_LISTED)
    if one.requester == caller.actor:
        return refuse(Code.OWN_OPPORTUNITY)
    requester = market.participant(one.requester)
    if not (requester.active and requester.listed):
        return refuse(Code.COUNTERPARTY_UNAVAILABLE)
    refusal = _not_open(market, one, intent.expected_opportunity_revision, one.terms_sha256)
    if refusal is not None:
        return refusal
    fault = fault_of(intent.terms, now=market.now)
    if fault is not None:
        return faulty(fault, "/terms")
    spent = market.counters(caller.actor).proposals >= work.PROPOSALS_MAX
    if spent or one.proposal_count >= work.PROPOSALS_PER_OPPORTUNITY_MAX:
        return refuse(Code.WORK_QUOTA_REACHED)
    market.count(caller.actor, proposals=1)
    market.put(msgspec.structs.replace(one, proposal_count=one.proposal_count + 1), None)
    made = Proposal(
        id=work.work_proposal_id(caller.proposal_id),
        work_id=one.id,
        opportunity_revision=one.revision,
        opportunity_terms_sha256=one.terms_sha256,
        requester=one.requester,
        provider=caller.actor,
        proposed_by=caller.actor,
        terms=intent.terms,
        terms_sha256=digest(intent.terms),
        revision=1,
        own_state=ProposalState.PROPOSED,
        created_at=market.now,
        updated_at=market.now,
        **_times(intent.terms),
    )
    return _put(market, made, "work-propose", caller, status=_CREATED)


def act(  # noqa: PLR0911 - one return for each kind
    market: Market, intent: ActOnProposal, caller: Caller
) -> Answer:
    """Take an action on a proposal, as the table of :mod:`models.rules.proposals` allows it.

    Asked in this order: is there the proposal, is the step the caller's, is it meant for this revision and these terms,
    does time and state allow it, is there a place for one more event, and is the payload sound.
    """
    one = market.proposal(intent.proposal_id)
    if one is None:
        return refuse(Code.WORK_PROPOSAL_NOT_FOUND)
    rows = ACTIONS[intent.action]
    row = next((row for row in rows if one.own_state in row.sources), rows[-1])
    code = (
        _not_yours(row.party, one, caller.actor)
        or (Code.WORK_REVISION_STALE if one.revision != intent.expected_revision else None)
        or (Code.WORK_TERMS_DIGEST_STALE if one.terms_sha256 != intent.expected_terms_sha256 else None)
        or _not_now(market, one, row)
        or (Code.WORK_EVENT_LIMIT if one.revision >= (EVENTS_ORDINARY if row.ordinary else EVENTS_MAX) else None)
    )
    if code is not None:
        return refuse(code)
    match intent.action:
        case WorkAction.COUNTER:
            return _counter(market, one, intent, caller)
        case WorkAction.ACCEPT:
            return _accept(market, one, caller)
        case WorkAction.DELIVER:
            return _deliver(market, one, intent, caller)
        case WorkAction.DECIDE:
            return _decide(market, one, intent, caller)
        case WorkAction.REFUSE | WorkAction.CANCEL:
            assert row.target is not None
            after = msgspec.structs.replace(one, own_state=row.target)
        case WorkAction.WITHDRAW_TERMS | WorkAction.WITHDRAW_DELIVERY | WorkAction.WITHDRAW_DECISION:
            after = _without(one, row)
        case _:
            assert_never(intent.action)
    return _put(market, after, f"work-{intent.action.value}", caller)


def _not_yours(party: Party, one: Proposal, actor: str) -> Code | None:
    if actor not in (one.requester, one.provider):
        return Code.PARTICIPANT_REQUIRED
    match party:
        case Party.CONSENTER:
            return Code.OWN_TERMS if actor == one.proposed_by else None
        case Party.AUTHOR:
            allowed = actor == one.proposed_by
        case Party.PROVIDER:
            allowed = actor == one.provider
        case Party.REQUESTER:
            allowed = actor == one.requester
        case Party.EITHER:
            allowed = True
        case _:
            assert_never(party)
    return None if allowed else Code.PARTICIPANT_REQUIRED


def _not_now(market: Market, one: Proposal, row: Row) -> Code | None:
    if row.takes_back is not None:
        # What retention has ended is gone to everyone, whether or not a purge has been there.
        present = {
            Contribution.TERMS: one.terms,
            Contribution.DELIVERY: one.delivery,
            Contribution.DECISION: one.decision,
        }[row.takes_back]
        return Code.WORK_STATE_CONFLICT if present is None or market.now >= one.retention_until else None
    if one.own_state in TERMINAL or one.own_state not in row.sources:
        return Code.WORK_STATE_CONFLICT
    if market.now >= one.expires_at:
        return Code.WORK_EXPIRED
    return Code.WORK_STATE_CONFLICT if one.terms is None else None


def _not_open(market: Market, one: Opportunity, revision: int, terms_sha256: str) -> Answer | None:
    """Refuse an opportunity that cannot be agreed upon: withdrawn, expired, selected, stale, in this order."""
    if one.own_state is OpportunityState.WITHDRAWN or one.terms is None:
        return refuse(Code.WORK_STATE_CONFLICT)
    if market.now >= one.expires_at:
        return refuse(Code.WORK_EXPIRED)
    if one.selected_proposal is not None:
        return refuse(Code.WORK_SELECTION_CONFLICT, selectedProposalId=one.selected_proposal)
    if (one.revision, one.terms_sha256) != (revision, terms_sha256):
        return refuse(Code.WORK_REVISION_STALE)
    return None


def _counter(market: Market, one: Proposal, intent: ActOnProposal, caller: Caller) -> Answer:
    terms = intent.terms
    assert terms is not None
    fault = fault_of(terms, now=market.now)
    if fault is not None:
        return faulty(fault, "/payload")
    times = _times(terms)
    if times["retention_until"] > one.retention_until:
        return refuse(Code.WORK_RETENTION_INCREASE, pointer="/payload/retentionUntil")
    after = msgspec.structs.replace(one, terms=terms, terms_sha256=digest(terms), proposed_by=caller.actor, **times)
    return _put(market, after, "work-counter", caller)


def _accept(market: Market, one: Proposal, caller: Caller) -> Answer:
    """Select one proposal for good: under the partition's lock, so of several acceptances one finds the slot free."""
    opportunity = market.opportunity(one.work_id)
    assert opportunity is not None
    refusal = _not_open(market, opportunity, one.opportunity_revision, one.opportunity_terms_sha256)
    if refusal is not None:
        return refusal
    if opportunity.revision >= EVENTS_ORDINARY:
        return refuse(Code.WORK_EVENT_LIMIT)
    selected = msgspec.structs.replace(opportunity, own_state=OpportunityState.ASSIGNED, selected_proposal=one.id)
    _put(market, selected, "work-accept", caller)
    return _put(market, msgspec.structs.replace(one, own_state=ProposalState.ACCEPTED), "work-accept", caller)


def _deliver(market: Market, one: Proposal, intent: ActOnProposal, caller: Caller) -> Answer:
    delivery = intent.delivery
    assert delivery is not None
    assert one.terms is not None
    fault = delivery_fault(delivery, one.terms)
    if fault is not None:
        return faulty(fault)
    after = msgspec.structs.replace(
        one,
        delivery=delivery,
        delivery_sha256=digest(delivery),
        decision=None,
        own_state=ProposalState.DELIVERED,
    )
    return _put(market, after, "work-deliver", caller)


def _decide(market: Market, one: Proposal, intent: ActOnProposal, caller: Caller) -> Answer:
    decision = intent.decision
    assert decision is not None
    assert one.terms is not None
    if decision.delivery_sha256 != one.delivery_sha256:
        return refuse(Code.WORK_DELIVERY_DIGEST_STALE)
    fault = decision_fault(decision, one.terms)
    if fault is not None:
        return faulty(fault)
    accepted = decision.outcome is Verdict.ACCEPT
    after = msgspec.structs.replace(
        one,
        decision=decision,
        decision_sha256=digest(decision),
        own_state=ProposalState.COMPLETED if accepted else ProposalState.DISPUTED,
    )
    return _put(market, after, "work-decide", caller)


def _without(one: Proposal, row: Row) -> Proposal:
    """Return a proposal without one contribution; digests stay, and so does what the other party contributed."""
    match row.takes_back:
        case Contribution.TERMS:
            state = one.own_state if one.own_state in TERMINAL else ProposalState.WITHDRAWN
            return msgspec.structs.replace(one, terms=None, decision=None, own_state=state)
        case Contribution.DELIVERY:
            working = one.own_state in (ProposalState.DELIVERED, ProposalState.DISPUTED)
            return msgspec.structs.replace(
                one, delivery=None, own_state=ProposalState.ACCEPTED if working else one.own_state
            )
        case _:
            disputed = one.own_state is ProposalState.DISPUTED
            return msgspec.structs.replace(
                one, decision=None, own_state=ProposalState.DELIVERED if disputed else one.own_state
            )


def _times(terms: Terms) -> dict[str, Any]:
    expires, retained = instant(terms.expires_at), instant(terms.retention_until)
    assert expires is not None
    assert retained is not None
    return {"expires_at": expires, "retention_until": retained}


def _put(market: Market, one: Opportunity | Proposal, operation: str, caller: Caller, *, status: int = _DONE) -> Answer:
    """Give an object its next revision and event, and answer with a reference to it."""
    known = market.opportunity(one.id) or market.proposal(one.id)
    revision = 1 if known is None else one.revision + 1
    after = msgspec.structs.replace(one, revision=revision, updated_at=market.now)
    receipt = work.receipt_id(caller.proposal_id)
    event = WorkEvent(
        revision=revision, operation=operation, actor_agent_id=caller.actor, receipt_id=receipt, at=market.now
    )
    market.put(after, event)
    return applied(
        Reference(
            operation=operation,
            kind=ObjectKind.OPPORTUNITY if isinstance(one, Opportunity) else ObjectKind.PROPOSAL,
            object_id=one.id,
            operation_revision=revision,
            receipt_id=receipt,
            actor=caller.actor,
            status=status,
        )
    )


def applied(reference: Reference) -> Answer:
    """Return a success by its reference."""
    return Answer(status=reference.status, body=outcomes.encode(reference))


def refuse(code: Code, *, status: int | None = None, pointer: str | None = None, **members: str) -> Answer:
    """Return a refusal; ``status`` is another one than the code's where the same code has two."""
    answer = outcomes.refused(code, None, pointer=pointer, **members)  # type: ignore[arg-type]  # members are JSON
    return answer if status is None else msgspec.structs.replace(answer, status=status)


def faulty(fault: Fault, at: str = "") -> Answer:
    """Return the 422 of an object with a fault."""
    return refuse(fault.code, pointer=at + fault.pointer)
