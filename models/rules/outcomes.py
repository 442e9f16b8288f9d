"""What became of a proposal: accepted, refused or replayed, as values that carry their own answer.

A refusal is never an exception. The body is rendered here, once, inside the decision, so that the stored outcome
and the answer are the same bytes for ever. Seed 000, section 4; Contract 2.4.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import msgspec

from models.rules.codes import ADVICE, RETRYABLE, STATUS, TITLE, Code, error_class
from models.rules.conflict import ConflictKey
from models.rules.notes import NoteStatus
from models.rules.tasks import Status, Task

PROBLEM_TYPE: Final = "urn:dibs:problem:"
RETRY_AFTER_MS: Final = 200
"""When a loser of the same window may look again for the durable winner, in milliseconds."""

WHOLE: Final = frozenset(
    {
        Code.CREDENTIAL_INVALID,
        Code.ACTOR_NOT_ACTIVE,
        Code.IDEMPOTENCY_KEY_REUSED,
        Code.WORK_DRAIN_ACTIVE,
        Code.SPACE_NOT_FOUND,
        Code.NOT_A_MEMBER,
    }
)
"""Refusals of a submission as a whole: a batch that meets one has no answers of its items."""

_ENCODER: Final = msgspec.json.Encoder()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one proposal: status, JSON body, and the task it speaks of (the winner's, for a loser).

    ``replay_of`` is the submission that was answered first, when an Idempotency-Key brings its answer again.
    """

    status: int
    body: str
    code: Code | None = None
    task_id: int | None = None
    replay_of: UUID | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the ledger: what was decided about the proposal at ``position`` of submission ``append_id``.

    ``place`` is its place in the window's order, from 0. ``payload`` is the intent of a refused proposal, kept for
    its author and the stewards; a winner's payload is the task itself.
    """

    append_id: UUID
    position: int
    batch: bool
    place: int
    received_seq: int
    kind: str
    actor: str
    answer: Answer
    key: ConflictKey | None = None
    payload: str | None = None


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """The live task that occupies a ConflictKey."""

    task_id: int
    status: Status
    created_by: str


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The proposal of the same window that reserved a ConflictKey first, and the task or the task's note it became."""

    proposal_id: str
    task_id: int
    created_by: str
    note_id: int | None = None


def problem(code: Code, detail: str, **members: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON members
    """Return a problem document: RFC 9457's members, the product's own, and ``members`` (None is left out).

    ``write_occurred`` is False unless the caller says that it is unknown (null).
    """
    write_occurred = members.pop("write_occurred", False)
    return {
        "type": PROBLEM_TYPE + code.value,
        "title": TITLE[code],
        "status": STATUS[code],
        "detail": detail,
        "error": error_class(code),
        "code": code.value,
        "retryable": code in RETRYABLE,
        **{name: value for name, value in members.items() if value is not None},
        "write_occurred": write_occurred,
    }


def refused(code: Code, detail: str | None = None, *, task_id: int | None = None, **members: Any) -> Answer:  # noqa: ANN401
    """Return a refusal as an answer, with the code's own advice unless ``detail`` has more exact one.

    ``task_id`` is the winner's; ``members`` are further JSON members.
    """
    body = encode(problem(code, ADVICE[code] if detail is None else detail, **members))
    return Answer(status=STATUS[code], body=body, code=code, task_id=task_id)


def occupied(key: ConflictKey, occupant: Occupant, *, actor: str, proposal_id: str) -> Answer:
    """Return the 409 of a proposal whose ConflictKey was occupied before its window."""
    yours = occupant.created_by == actor
    return refused(
        Code.CONFLICT_KEY_OCCUPIED,
        f"You already created this work as task {occupant.task_id}: go on with it; do not file another."
        if yours
        else f"Task {occupant.task_id} already is this work: read it and build on it, or take other work; "
        "do not file it under another name.",
        task_id=occupant.task_id,
        conflict_key=key,
        outcome="redirect",
        winner=_winner(occupant),
        yours=True if yours else None,
        proposal_id=proposal_id,
    )


def held(key: ConflictKey, holding: Occupant, *, actor: str, proposal_id: str) -> Answer:
    """Return the 409 of a proposal whose ConflictKey a steward keeps from new tasks. Contract 2.2."""
    return refused(
        Code.CONFLICT_KEY_OCCUPIED,
        f"A steward holds this work at task {holding.task_id}: read it and take other work until the hold ends; "
        "do not file it under another name.",
        task_id=holding.task_id,
        conflict_key=key,
        outcome="idle",
        held=True,
        winner=_winner(holding),
        yours=True if holding.created_by == actor else None,
        proposal_id=proposal_id,
    )


def _winner(occupant: Occupant) -> dict[str, Any]:
    return {
        "type": "task",
        "id": occupant.task_id,
        "status": occupant.status.value,
        "created_by": occupant.created_by,
    }


def reserved(key: ConflictKey, leader: Leader, *, actor: str, proposal_id: str) -> Answer:
    """Return the 409 of a proposal that another one of the same window was ahead of."""
    yours = leader.created_by == actor
    work = f"task {leader.task_id}" if leader.note_id is None else f"note {leader.note_id}"
    return refused(
        Code.CONFLICT_KEY_RESERVED,
        f"Your own proposal ahead of this one became {work}: go on with that; file no other."
        if yours
        else f"A proposal ahead of yours won this work as {work}: read it, or take other work; "
        "do not file it under another name.",
        task_id=leader.task_id,
        conflict_key=key,
        outcome="idle",
        winner={
            "type": "reserved_intent",
            "id": leader.proposal_id,
            "task_id": leader.task_id,
            **({} if leader.note_id is None else {"note_id": leader.note_id}),
            "created_by": leader.created_by,
        },
        reserved_proposal_id=leader.proposal_id,
        retry_after_ms=RETRY_AFTER_MS,
        yours=True if yours else None,
        proposal_id=proposal_id,
    )


def noted(key: ConflictKey, note_id: int, *, task_id: int, author: str, proposal_id: str) -> Answer:
    """Return the 409 of a note that its author posted before the window. Contract 2.3."""
    return refused(
        Code.CONFLICT_KEY_OCCUPIED,
        f"You said this already in note {note_id}: nothing is left to do; withdraw that one to say it anew.",
        task_id=task_id,
        conflict_key=key,
        outcome="redirect",
        winner={"type": "note", "id": note_id, "status": NoteStatus.POSTED.value, "created_by": author},
        yours=True,
        proposal_id=proposal_id,
    )


def created(task: Task) -> Answer:
    """Return the 201 whose body is the task itself."""
    return Answer(status=201, body=encode(task), task_id=task.id)


def done(body: object, *, task_id: int | None = None) -> Answer:
    """Return a 200 with what the change has made."""
    return Answer(status=200, body=encode(body), task_id=task_id)


def encode(value: object) -> str:
    """Return compact JSON in the order the members were given."""
    return _ENCODER.encode(value).decode()
