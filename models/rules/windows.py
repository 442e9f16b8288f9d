"""A window explained: in which order it was decided, and who lost to whom. Contract 2.7."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from models.rules import ids
from models.rules.codes import Code
from models.rules.conflict import ConflictKey
from models.rules.outcomes import Outcome


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """A window as it is listed; the numbers are the received_seq of its first and last intents."""

    id: str
    first_seq: int
    last_seq: int
    intents: int
    committed_at: datetime


class LostTo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who beat a proposal: a proposal of the same window with its place, or what was there before."""

    proposal_id: str | None = None
    place: int | None = None
    task_id: int | None = None
    note_id: int | None = None


class DecidedIntent(msgspec.Struct, frozen=True, kw_only=True):
    """One intent of a window. ``reservation`` is ``own`` where it held its ConflictKey's reservation."""

    place: int
    proposal_id: str
    received_seq: int
    kind: str
    actor: str
    conflict_key: ConflictKey | None
    reservation: str
    status: int
    code: Code | None
    task_id: int | None
    lost_to: LostTo | None
    replay_of: str | None


class ExplainedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A window and its intents in the order in which they were decided."""

    id: str
    space: str | None
    first_seq: int
    last_seq: int
    committed_at: datetime
    intents: tuple[DecidedIntent, ...]


class _Winner(msgspec.Struct, frozen=True):
    type: str
    id: int | str
    task_id: int | None = None
    note_id: int | None = None


class _Body(msgspec.Struct, frozen=True):
    winner: _Winner | None = None
    surviving_task: int | None = None


_body = msgspec.json.Decoder(_Body)
_LOSSES = frozenset({Code.CONFLICT_KEY_OCCUPIED, Code.CONFLICT_KEY_RESERVED, Code.TASK_SUPERSEDED})


def explain(
    view: WindowView, outcomes: Iterable[Outcome], *, space: str | None, reserved: Iterable[int]
) -> ExplainedWindow:
    """Return the window with its intents; ``reserved`` are the places of those whose reservation was held."""
    held = frozenset(reserved)
    ordered = sorted(outcomes, key=lambda outcome: outcome.place)
    places = {_proposal(outcome): outcome.place for outcome in ordered}
    return ExplainedWindow(
        id=view.id,
        space=space,
        first_seq=view.first_seq,
        last_seq=view.last_seq,
        committed_at=view.committed_at,
        intents=tuple(
            DecidedIntent(
                place=outcome.place,
                proposal_id=_proposal(outcome),
                received_seq=outcome.received_seq,
                kind=outcome.kind,
                actor=outcome.actor,
                conflict_key=outcome.key,
                reservation="own" if outcome.place in held else "none",
                status=outcome.answer.status,
                code=outcome.answer.code,
                task_id=outcome.answer.task_id,
                lost_to=_lost_to(outcome, places),
                replay_of=None
                if outcome.answer.replay_of is None
                else ids.format_proposal(ids.item_id(outcome.answer.replay_of, outcome.position, batch=outcome.batch)),
            )
            for outcome in ordered
        ),
    )


def _proposal(outcome: Outcome) -> str:
    return ids.format_proposal(ids.item_id(outcome.append_id, outcome.position, batch=outcome.batch))


def _lost_to(outcome: Outcome, places: dict[str, int]) -> LostTo | None:
    if outcome.answer.code not in _LOSSES:
        return None
    body = _body.decode(outcome.answer.body)
    winner = body.winner
    if winner is None:
        return LostTo(task_id=body.surviving_task)
    if winner.type == "reserved_intent":
        proposal = str(winner.id)
        return LostTo(proposal_id=proposal, place=places.get(proposal), task_id=winner.task_id, note_id=winner.note_id)
    number = int(winner.id)
    return LostTo(note_id=number, task_id=outcome.answer.task_id) if winner.type == "note" else LostTo(task_id=number)
