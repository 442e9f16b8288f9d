"""What a task is, and which of its states occupy a ConflictKey. Seed 000, section 2.1; Contract 2.2."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from models.rules.charter import Bind, Score
from models.rules.conflict import ConflictKey, DeliveryMode
from models.rules.intents import (
    AssignTask,
    ClaimTask,
    Decision,
    HoldTask,
    LifeIntent,
    ReleaseTask,
    ReopenTask,
    ReviewTask,
    SubmitTask,
    UnholdTask,
    ValidationPolicy,
    WithdrawTask,
)


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


class Who(StrEnum):
    """Whom a transition is open to, among the members of the space."""

    MEMBER = "any member"
    STEWARD = "a steward"
    ASSIGNEE = "its assignee"
    HOLDER = "its holder"
    HOLDER_OR_STEWARD = "its holder or a steward"
    CREATOR_OR_STEWARD = "its creator or a steward"
    NOT_SUBMITTER = "a member other than its submitter"


class Transition(NamedTuple):
    """A row of the table: from these states to that one (None: the state stays), for whom, and the event's type."""

    sources: frozenset[Status]
    target: Status | None
    who: Who
    event: str


def _row(sources: str, target: Status | None, who: Who, event: str) -> Transition:
    return Transition(frozenset(map(Status, sources.split())), target, who, event)


_ANY = " ".join(Status)

TRANSITIONS: Final[Mapping[tuple[type[LifeIntent], Decision | None], tuple[Transition, ...]]] = MappingProxyType(
    {
        (ClaimTask, None): (
            _row("open", Status.CLAIMED, Who.MEMBER, "task_claimed"),
            _row("assigned", Status.CLAIMED, Who.ASSIGNEE, "task_claimed"),
        ),
        (AssignTask, None): (_row("open claimed", Status.ASSIGNED, Who.STEWARD, "task_assigned"),),
        (ReleaseTask, None): (_row("claimed assigned", Status.OPEN, Who.HOLDER_OR_STEWARD, "task_released"),),
        (SubmitTask, None): (_row("claimed assigned", Status.IN_REVIEW, Who.HOLDER, "task_submitted"),),
        (ReviewTask, Decision.ACCEPT): (_row("in_review", Status.DONE, Who.NOT_SUBMITTER, "task_reviewed"),),
        (ReviewTask, Decision.CHANGES_REQUESTED): (
            _row("in_review", Status.CLAIMED, Who.NOT_SUBMITTER, "task_reviewed"),
        ),
        (ReviewTask, Decision.REJECT): (_row("in_review", Status.REJECTED, Who.NOT_SUBMITTER, "task_reviewed"),),
        (WithdrawTask, None): (
            _row("open claimed assigned", Status.WITHDRAWN, Who.CREATOR_OR_STEWARD, "task_withdrawn"),
        ),
        (ReopenTask, None): (_row("done rejected withdrawn", Status.OPEN, Who.STEWARD, "task_reopened"),),
        (HoldTask, None): (_row(_ANY, None, Who.STEWARD, "task_held"),),
        (UnholdTask, None): (_row(_ANY, None, Who.STEWARD, "task_unheld"),),
    }
)
"""The life of a task: every step that its members and stewards can take, by kind and, for a review, its decision.

While a task is in review its holder is its submitter. Superseding has rules of its own, in
:mod:`models.rules.leftovers`. Contract 2.2.
"""

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
