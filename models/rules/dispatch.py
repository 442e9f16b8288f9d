"""Which rules decide which kind of intent."""

from __future__ import annotations

from typing import assert_never

from models.rules import creation, exchange, governance, leftovers, life, resolution, review_notes
from models.rules.desk import Desk
from models.rules.governance import NewCatalog
from models.rules.intents import (
    ActOnProposal,
    CorrectWork,
    CreateSpace,
    CreateTask,
    PostNote,
    ProposeWork,
    PublishWork,
    RemoveMember,
    ResolveWork,
    SetCharter,
    SetMember,
    SpaceIntent,
    SupersedeTask,
    WithdrawNote,
    WithdrawWork,
    WorkIntent,
)
from models.rules.market import Market
from models.rules.outcomes import Answer
from models.rules.ruling import Bound, Caller, Ruling

Binding = Bound | NewCatalog
"""What can be worked out of an intent before its window's transaction: a key, or a catalog that is ready to bind."""


def traded(market: Market, intent: WorkIntent, caller: Caller) -> Answer:
    """Hand an intent of the exchange to its rules."""
    match intent:
        case PublishWork():
            return exchange.publish(market, intent, caller)
        case CorrectWork():
            return exchange.correct(market, intent, caller)
        case WithdrawWork():
            return exchange.withdraw(market, intent, caller)
        case ProposeWork():
            return exchange.propose(market, intent, caller)
        case ActOnProposal():
            return exchange.act(market, intent, caller)
        case ResolveWork():
            return resolution.resolve(market, intent, caller)
        case _:
            assert_never(intent)


def ruled(  # noqa: PLR0911 - one return for each kind
    desk: Desk, intent: SpaceIntent, bound: Binding | None, caller: Caller
) -> Ruling:
    """Hand an intent to the rules of its kind."""
    match intent:
        case CreateTask():
            assert isinstance(bound, Bound)
            return creation.create(desk, intent, bound, caller)
        case SupersedeTask():
            return Ruling(leftovers.close(desk, intent, caller))
        case PostNote():
            return review_notes.post(desk, intent, caller)
        case WithdrawNote():
            return review_notes.withdraw(desk, intent, caller)
        case SetCharter():
            assert isinstance(bound, NewCatalog)
            return Ruling(governance.set_charter(desk, intent, bound, caller))
        case SetMember():
            return Ruling(governance.set_member(desk, intent, caller))
        case RemoveMember():
            return Ruling(governance.remove_member(desk, intent, caller))
        case CreateSpace():
            raise AssertionError("a space is created in no space's partition")
        case _:
            return life.step(desk, intent, caller)
