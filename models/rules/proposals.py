"""The actions on a work proposal: one table of who takes which, from where, to where. Seed 004; Contract 3."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from models.rules.work import ProposalState, WorkAction


class Party(StrEnum):
    """Whose step an action is."""

    CONSENTER = "the party that did not write the present terms"
    AUTHOR = "the party that wrote the present terms"
    PROVIDER = "the provider"
    REQUESTER = "the requester"
    EITHER = "either party"


class Contribution(StrEnum):
    """What an action takes back."""

    TERMS = "terms"
    DELIVERY = "delivery"
    DECISION = "decision"


class Row(NamedTuple):
    """From these own states to that one (None: see the action), for that party.

    ``ordinary`` actions end at the ordinary limit of events; ``timely`` ones need terms that have not expired and a
    state that is not terminal; ``takes_back`` names the contribution that a withdrawal needs and clears.
    """

    sources: frozenset[ProposalState]
    target: ProposalState | None
    party: Party
    ordinary: bool = True
    timely: bool = True
    takes_back: Contribution | None = None


_S = ProposalState
_WORKING: Final = frozenset({_S.ACCEPTED, _S.DELIVERED, _S.DISPUTED})
_ANY: Final = frozenset(ProposalState)


def _back(what: Contribution, party: Party) -> tuple[Row, ...]:
    return (Row(_ANY, None, party, ordinary=False, timely=False, takes_back=what),)


ACTIONS: Final[Mapping[WorkAction, tuple[Row, ...]]] = MappingProxyType(
    {
        WorkAction.COUNTER: (Row(frozenset({_S.PROPOSED}), _S.PROPOSED, Party.CONSENTER),),
        WorkAction.ACCEPT: (Row(frozenset({_S.PROPOSED}), _S.ACCEPTED, Party.CONSENTER),),
        WorkAction.REFUSE: (Row(frozenset({_S.PROPOSED}), _S.REFUSED, Party.CONSENTER, ordinary=False),),
        WorkAction.CANCEL: (
            Row(frozenset({_S.PROPOSED}), _S.CANCELLED, Party.AUTHOR, ordinary=False),
            Row(_WORKING, _S.CANCELLED, Party.EITHER, ordinary=False),
        ),
        WorkAction.DELIVER: (Row(_WORKING, _S.DELIVERED, Party.PROVIDER),),
        WorkAction.DECIDE: (Row(frozenset({_S.DELIVERED, _S.DISPUTED}), None, Party.REQUESTER),),
        WorkAction.WITHDRAW_TERMS: _back(Contribution.TERMS, Party.AUTHOR),
        WorkAction.WITHDRAW_DELIVERY: _back(Contribution.DELIVERY, Party.PROVIDER),
        WorkAction.WITHDRAW_DECISION: _back(Contribution.DECISION, Party.REQUESTER),
    }
)

FRESH: Final = frozenset({WorkAction.COUNTER, WorkAction.ACCEPT, WorkAction.DELIVER, WorkAction.DECIDE})
"""Actions that begin something new: what drain refuses."""

WITHOUT_PAYLOAD: Final = frozenset(WorkAction) - {WorkAction.COUNTER, WorkAction.DELIVER, WorkAction.DECIDE}
"""Actions whose payload is null or left out."""
