"""What a window's transaction writes: the decision as data, in its final state row by row.

A row appears once however often the window changed it, so that each table is written by one set-based statement.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from models.rules.charter import CatalogRow
from models.rules.codes import Code
from models.rules.conflict import ConflictKey
from models.rules.intents import SlotDigest
from models.rules.market import WorkPlan
from models.rules.notes import Note
from models.rules.outcomes import Outcome
from models.rules.spaces import Role, Visibility
from models.rules.tasks import Task


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a space's board, numbered without gaps. ``data`` is JSON that rebuilds the change."""

    number: int
    type: str
    at: datetime
    actor: str
    task_id: int | None
    data: str


class SlotRow(msgspec.Struct, frozen=True, kw_only=True):
    """An Idempotency-Key to remember, under the secret that signs."""

    digest: SlotDigest
    append_id: UUID


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A task to write. ``was`` is the revision that is stored now, None for a task that is new."""

    task: Task
    ended_at: datetime | None
    was: int | None


class NoteRow(msgspec.Struct, frozen=True, kw_only=True):
    """A note to write, new or withdrawn."""

    note: Note
    new: bool


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What occupies a ConflictKey: a task, or a note on one."""

    task_id: int
    note_id: int | None = None


class OccupancyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A ConflictKey that passes from one holder to another; None is nobody."""

    key: ConflictKey
    before: Holder | None
    after: Holder | None


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """A leftover that was closed, or (with a code) was not. Seed 003."""

    actor: str
    leftover_task: int
    surviving_task: int
    reason: str
    code: Code | None
    proposal_id: UUID


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's role from now on; None takes it away."""

    agent: str
    role: Role | None


class NewSpace(msgspec.Struct, frozen=True, kw_only=True):
    """A space to create, with its first steward (None: an operator made it) and what its first event tells."""

    slug: str
    visibility: Visibility
    claim_ttl_seconds: int | None
    catalog: tuple[CatalogRow, ...]
    steward: str | None
    event: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the transaction writes, and what it answers from before.

    ``fresh`` outcomes are new rows; ``known`` ones were committed by an earlier run of the same submission.
    """

    tasks: tuple[TaskRow, ...] = ()
    occupancies: tuple[OccupancyRow, ...] = ()
    notes: tuple[NoteRow, ...] = ()
    events: tuple[Event, ...] = ()
    audits: tuple[AuditRow, ...] = ()
    members: tuple[MemberRow, ...] = ()
    catalog: tuple[CatalogRow, ...] | None = None
    spaces: tuple[NewSpace, ...] = ()
    work: WorkPlan = WorkPlan()
    slots: tuple[SlotRow, ...] = ()
    fresh: tuple[Outcome, ...] = ()
    known: tuple[Outcome, ...] = ()
