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
    """The proposal of the same window that reserved a ConflictKey first, and the task it became."""

    proposal_id: str
    task_id: int
    created_by: str


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
        winner={
            "type": "task",
            "id": occupant.task_id,
            "status": occupant.status.value,
            "created_by": occupant.created_by,
        },
        yours=True if yours else None,
        proposal_id=proposal_id,
    )


def reserved(key: ConflictKey, leader: Leader, *, actor: str, proposal_id: str) -> Answer:
    """Return the 409 of a proposal that another one of the same window was ahead of."""
    yours = leader.created_by == actor
    return refused(
        Code.CONFLICT_KEY_RESERVED,
        f"Your own proposal ahead of this one won the work as task {leader.task_id}: go on with that; file no other."
        if yours
        else f"A proposal ahead of yours won this work as task {leader.task_id}: read it, or take other work; "
        "do not file it under another name.",
        task_id=leader.task_id,
        conflict_key=key,
        outcome="idle",
        winner={
            "type": "reserved_intent",
            "id": leader.proposal_id,
            "task_id": leader.task_id,
            "created_by": leader.created_by,
        },
        reserved_proposal_id=leader.proposal_id,
        retry_after_ms=RETRY_AFTER_MS,
        yours=True if yours else None,
        proposal_id=proposal_id,
    )


def created(task: Task) -> Answer:
    """Return the 201 whose body is the task itself."""
    return Answer(status=201, body=encode(task), task_id=task.id)


def encode(value: object) -> str:
    """Return compact JSON in the order the members were given."""
    return _ENCODER.encode(value).decode()
