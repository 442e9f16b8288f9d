"""What a window's decision may depend on: everything is read under the window's locks and then only looked at.

Contract 1.1, steps (c) and (d).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from models.rules.charter import CompiledCharter
from models.rules.conflict import ConflictKey
from models.rules.idempotency import Remembered
from models.rules.market import ExchangePart
from models.rules.notes import Note
from models.rules.outcomes import Outcome
from models.rules.spaces import Role, Visibility
from models.rules.tasks import Status, Task


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """What a key may do now: the agent it speaks for, whether both are in force, and the agent's role here."""

    agent: str
    agent_active: bool
    revoked: bool
    expires_at: datetime | None
    role: Role | None


class SpaceState(msgspec.Struct, frozen=True, kw_only=True):
    """A space as its partition's lock holder sees it."""

    id: int
    slug: str
    visibility: Visibility
    next_task: int
    next_event: int
    next_note: int
    claim_ttl: timedelta | None
    charter: CompiledCharter


class StoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task, and since when it has been terminal (None for a live one)."""

    task: Task
    ended_at: datetime | None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is live or held, as far as its ConflictKey is concerned."""

    key: ConflictKey
    task_id: int
    status: Status
    created_by: str
    created_at: datetime
    held: bool


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that an intent names, and its role here."""

    handle: str
    active: bool
    role: Role | None
    since: datetime | None


class LiveTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a live task would be bound by: ``requested`` is the slot that its creator asked for."""

    id: int
    title: str
    requested: str | None
    conflict_key: ConflictKey


class BoardPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a board that a window's intents name or touch.

    ``tasks`` holds the tasks they name and the expired claims; ``survivors`` the recorded pointers that lead from
    them to their last survivors. ``standings`` has every occupant of a key that may be taken, and for the keys of
    named tasks as many live ones, the oldest first, as can come to their turn. ``live`` is filled for a new charter.
    """

    tasks: Mapping[int, StoredTask] = msgspec.field(default_factory=dict)
    survivors: Mapping[int, int] = msgspec.field(default_factory=dict)
    occupants: Mapping[ConflictKey, int] = msgspec.field(default_factory=dict)
    standings: tuple[Standing, ...] = ()
    expired: tuple[int, ...] = ()
    notes: Mapping[int, Note] = msgspec.field(default_factory=dict)
    note_occupants: Mapping[ConflictKey, int] = msgspec.field(default_factory=dict)
    agents: Mapping[str, AgentState] = msgspec.field(default_factory=dict)
    stewards: frozenset[str] = frozenset()
    live: tuple[LiveTask, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that one window's decision may depend on.

    ``space`` is None in a partition that is no space's; ``slugs`` are those that its creations cannot have.
    """

    space: SpaceState | None
    authorities: Mapping[str, Authority]
    decided: Mapping[UUID, tuple[Outcome, ...]]
    remembered: Mapping[bytes, Remembered]
    board: BoardPart = BoardPart()
    exchange: ExchangePart = ExchangePart()
    slugs: frozenset[str] = frozenset()
