"""A proposal's whole life with two parties and a moving clock, against a model written from the table. Seed 004."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from models.rules import exchange
from models.rules.delivery import Verdict
from models.rules.intents import ProposeWork, PublishWork
from models.rules.market import ExchangePart, Market, Participant, Reference
from models.rules.ruling import Caller
from models.rules.work import WorkAction, view_proposal
from tests.builders import uuid7_at
from tests.exchange import action, payload, terms_of

REQUESTER, PROVIDER, STRANGER = "agt_requester", "agt_provider", "agt_stranger"
PARTIES = (REQUESTER, PROVIDER, STRANGER)
START = datetime(2026, 9, 12, 20, tzinfo=UTC)
EXPIRY, RETENTION = START + timedelta(days=1), START + timedelta(days=8)
TERMINAL = {"completed", "refused", "cancelled", "withdrawn"}

steps = st.tuples(
    st.sampled_from(PARTIES),
    st.sampled_from(list(WorkAction)),
    st.sampled_from(["accept", "dispute"]),
    st.sampled_from([timedelta(), timedelta(), timedelta(), timedelta(hours=7), timedelta(days=4)]),
    st.booleans(),
)


class World:
    """One opportunity and one proposal, kept from step to step as SQL would."""

    def __init__(self) -> None:
        self.now = START
        self.number = 0
        self.part = ExchangePart(participants={name: Participant(active=True, listed=True) for name in PARTIES})
        self.work = self.do(REQUESTER, exchange.publish, PublishWork(terms=terms_of())).object_id
        offer = ProposeWork(work_id=self.work, terms=terms_of(), expected_opportunity_revision=1)
        self.one = self.do(PROVIDER, exchange.propose, offer).object_id

    @property
    def proposal(self) -> Any:
        return self.part.proposals[self.one]

    def do(self, actor: str, rule: Any, intent: Any) -> Any:
        """Decide and keep; return the reference, or the refusal's code."""
        self.number += 1
        market = Market(self.part, now=self.now)
        caller = Caller(
            actor=actor, role=None, proposal=uuid7_at(number=self.number), received_seq=self.number, if_match=None
        )
        answer = rule(market, intent, caller)
        plan = market.plan()
        if answer.code is not None:
            assert (plan.opportunities, plan.proposals, plan.events) == ((), (), ())
            return answer.code.value
        self.part = msgspec.structs.replace(
            self.part,
            opportunities={**self.part.opportunities, **{one.id: one for one in plan.opportunities}},
            proposals={**self.part.proposals, **{one.id: one for one in plan.proposals}},
        )
        return msgspec.json.decode(answer.body, type=Reference)


def allowed(world: World, actor: str, name: WorkAction) -> bool:
    """Say by the contract's table alone whether a step may be taken now."""
    one = world.proposal
    state, alive = one.own_state.value, world.now < EXPIRY
    author, consenter = actor == one.proposed_by, actor in (REQUESTER, PROVIDER) and actor != one.proposed_by
    kept = world.now < RETENTION
    party = actor in (REQUESTER, PROVIDER)
    working = state in {"accepted", "delivered", "disputed"}
    return {
        "counter": state == "proposed" and consenter and alive,
        "accept": state == "proposed" and consenter and alive,
        "refuse": state == "proposed" and consenter and alive,
        "cancel": alive and ((state == "proposed" and author) or (working and party)),
        "deliver": working and actor == PROVIDER and alive,
        "decide": state in {"delivered", "disputed"} and actor == REQUESTER and alive and one.delivery is not None,
        "withdraw_terms": author and one.terms is not None and kept,
        "withdraw_delivery": actor == PROVIDER and one.delivery is not None and kept,
        "withdraw_decision": actor == REQUESTER and one.decision is not None and kept,
    }[name.value]


def target(state: str, name: WorkAction, verdict: str) -> str:
    """Say by the table where a step leads."""
    return {
        "counter": "proposed",
        "accept": "accepted",
        "refuse": "refused",
        "cancel": "cancelled",
        "deliver": "delivered",
        "decide": "completed" if verdict == "accept" else "disputed",
        "withdraw_terms": state if state in TERMINAL else "withdrawn",
        "withdraw_delivery": "accepted" if state in {"delivered", "disputed"} else state,
        "withdraw_decision": "delivered" if state == "disputed" else state,
    }[name.value]


def given_for(world: World, name: WorkAction, verdict: str) -> Any:
    if name is WorkAction.COUNTER:
        return payload("counter")
    if name is WorkAction.DELIVER:
        return payload("deliver")
    return {**payload("decide"), "outcome": verdict, "deliverySha256": world.proposal.delivery_sha256 or "0" * 64}


@settings(max_examples=250)
@given(st.lists(steps, max_size=14))
def test_no_step_is_taken_that_the_table_forbids(taken: list[tuple[str, WorkAction, str, timedelta, bool]]) -> None:
    world = World()
    for actor, name, verdict, passed, stale in taken:
        world.now += passed
        before = world.proposal
        revision = before.revision - 1 if stale else before.revision
        intent = action(
            world.one, world.work, name, max(revision, 1), before.terms_sha256, given_for(world, name, verdict)
        )
        fresh = intent.expected_revision == before.revision
        may = allowed(world, actor, name) and fresh
        found = world.do(actor, exchange.act, intent)
        after = world.proposal
        # A counter's own dates end with the clock: that fault is the terms', not the table's.
        dated = name is WorkAction.COUNTER and found == "work_terms_invalid"
        assert isinstance(found, Reference) == (may and not dated), (name, actor, found)
        event(f"{name.value}: {found if isinstance(found, str) else 'taken'}")
        if isinstance(found, str):
            assert after == before
            continue
        assert after.own_state.value == target(before.own_state.value, name, verdict)
        assert after.revision == before.revision + 1 == found.operation_revision
        if name is WorkAction.DELIVER:
            assert (after.decision, after.decision_sha256) == (None, before.decision_sha256)
        if name is WorkAction.DECIDE:
            assert after.decision.outcome is Verdict(verdict)
        if name.value.startswith("withdraw"):
            assert after.terms_sha256 == before.terms_sha256
            assert after.delivery_sha256 == before.delivery_sha256
        selected = world.part.opportunities[world.work].selected_proposal
        assert selected in (None, world.one)
        if after.own_state.value in {"accepted", "delivered", "disputed", "completed"}:
            assert selected == world.one
    seen = view_proposal(world.proposal, now=world.now)
    if world.now >= RETENTION:
        assert (seen.state, seen.terms, seen.delivery, seen.decision) == ("retention_expired", None, None, None)
    elif world.now >= EXPIRY and world.proposal.own_state.value not in TERMINAL:
        assert seen.state == "expired"
    else:
        assert seen.state == world.proposal.own_state.value
