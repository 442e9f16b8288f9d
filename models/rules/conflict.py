"""What two writes must not both do: ConflictKeys and their targets (Seed 000, sections 1 and 2)."""

from enum import StrEnum

import msgspec

from models.rules.canonical import sha256_hex
from models.rules.text import fold_title, normalize_note_body

_BODY_DIGITS = 16


class Kind(StrEnum):
    """The kinds of write that occupy a key."""

    CREATE_TASK = "create_task"
    POST_REVIEW_NOTE = "post_review_note"


class DeliveryMode(StrEnum):
    """How a task's work is handed over; the same work in both modes is no conflict."""

    RESULT = "result"
    REPOSITORY_CHANGE = "repository_change"


class ConflictKey(msgspec.Struct, frozen=True, order=True):
    """Two writes conflict exactly when their keys are equal. The target names its space.

    Hashable; ordered by kind, target, delivery mode, so that locks are taken in one order.
    """

    kind: Kind
    target: str
    delivery_mode: DeliveryMode


def task_key(space_slug: str, cleaned_title: str, bind_slot: str | None, delivery_mode: DeliveryMode) -> ConflictKey:
    """Name the work of a new task: its slot, or its folded title where no slot was bound.

    A title that reads ``slot:T1`` cannot pass for that slot, since folding leaves no ASCII capital.
    Seed 000, section 2.1.
    """
    name = f"slot:{bind_slot}" if bind_slot is not None else fold_title(cleaned_title)
    return ConflictKey(kind=Kind.CREATE_TASK, target=f"task:{space_slug}:{name}", delivery_mode=delivery_mode)


def note_key(
    *,
    space_slug: str,
    task_id: int,
    criterion_index: int | None,
    principal: str,
    body: str,
    delivery_mode: DeliveryMode,
) -> ConflictKey:
    """Name a review note: task, criterion, author (by agent id, not handle) and what it says.

    ``body`` is the text as posted. Raises ValueError for a lone surrogate in it.
    Seed 000, section 2.2; Contract 2.3.
    """
    criterion = "none" if criterion_index is None else str(criterion_index)
    digest = sha256_hex(normalize_note_body(body).encode())[:_BODY_DIGITS]
    return ConflictKey(
        kind=Kind.POST_REVIEW_NOTE,
        target=(f"note:{space_slug}:task:{task_id}:criterion:{criterion}:principal:{principal}:body:{digest}"),
        delivery_mode=delivery_mode,
    )
