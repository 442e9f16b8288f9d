"""What a task is, and which of its states occupy a ConflictKey. Seed 000, section 2.1; Contract 2.2."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from models.rules.charter import Bind, Score
from models.rules.conflict import ConflictKey, DeliveryMode
from models.rules.intents import ValidationPolicy


class Status(StrEnum):
    """A task's state."""

    OPEN = "open"
    CLAIMED = "claimed"
    ASSIGNED = "assigned"
    IN_REVIEW = "in_review"
    DONE = "done"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    SUPERSEDED = "superseded"


LIVE: frozenset[Status] = frozenset({Status.OPEN, Status.CLAIMED, Status.ASSIGNED, Status.IN_REVIEW})
"""States in which a task occupies its ConflictKey."""


BODY_CHARACTERS_MAX: Final = 8000


def is_body(text: str) -> bool:
    """Tell whether a text may be a task's body: up to 8000 characters, without NUL, which PostgreSQL cannot keep."""
    return len(text) <= BODY_CHARACTERS_MAX and "\0" not in text


class BindView(msgspec.Struct, frozen=True):
    """How a task was bound, as answered: scores are fractions of shared by all tokens, rounded for reading only."""

    provenance: str
    slot: str | None
    score: float | None
    runner_up: float | None
    charter_revision: int

    @classmethod
    def of(cls, bind: Bind) -> BindView:
        """Return the answer's form of a binding."""

        def ratio(score: Score | None) -> float | None:
            return None if score is None else round(float(score.jaccard), 4)

        return cls(
            provenance=bind.provenance.value,
            slot=bind.slot,
            score=ratio(bind.score),
            runner_up=ratio(bind.runner_up),
            charter_revision=bind.charter_revision,
        )


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it is stored and answered: exactly these members, no more (Contract 2.2)."""

    id: int
    space: str
    title: str
    body: str
    work_item_id: str | None
    bind: BindView
    delivery_mode: DeliveryMode
    validation_policy: ValidationPolicy
    status: Status
    conflict_key: ConflictKey
    created_by: str
    holder: str | None = None
    assigned_to: str | None = None
    claimed_at: datetime | None = None
    superseded_by: int | None = None
    held: bool = False
    revision: int = 1
    received_seq: int | None = None
    window_id: str | None = None
    created_at: datetime
    updated_at: datetime
