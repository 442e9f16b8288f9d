"""A board rebuilt from its events alone: what the feed says, folded. Contract 1.2, invariant 10, and 2.7.

It shares no code with the decisions that wrote the events, so that a fault of theirs shows as a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from models.rules.conflict import ConflictKey
from models.rules.notes import Note, NoteStatus
from models.rules.plan import Event
from models.rules.spaces import Role, Visibility
from models.rules.tasks import LIVE, TRANSITIONS, Task

T = TypeVar("T")

_CHANGES: Final = frozenset(
    {row.event for rows in TRANSITIONS.values() for row in rows} | {"task_superseded", "claim_expired"}
)


class FeedError(ValueError):
    """Events that cannot be folded: a gap, an unknown type, a change of something that is not there."""


class CharterSeen(msgspec.Struct, frozen=True):
    """A charter as events name it."""

    revision: int
    rows: int
    catalog_sha256: str


class _Created(msgspec.Struct, frozen=True):
    slug: str
    visibility: Visibility
    claim_ttl_seconds: int | None
    steward: str | None
    charter: CharterSeen


class _Member(msgspec.Struct, frozen=True):
    agent: str
    role: Role


class _Removed(msgspec.Struct, frozen=True):
    agent: str


class _Changed(msgspec.Struct, frozen=True):
    changes: dict[str, Any]
    note: int | str | None = None


class Replayed(msgspec.Struct, kw_only=True):
    """A board: compare it with what is stored by :func:`differences`."""

    visibility: Visibility | None = None
    claim_ttl_seconds: int | None = None
    charter: CharterSeen | None = None
    members: dict[str, Role] = msgspec.field(default_factory=dict)
    tasks: dict[int, Task] = msgspec.field(default_factory=dict)
    notes: dict[int, Note] = msgspec.field(default_factory=dict)
    occupants: dict[ConflictKey, int] = msgspec.field(default_factory=dict)
    note_occupants: dict[ConflictKey, int] = msgspec.field(default_factory=dict)
    events: int = 0


def replay(events: Iterable[Event]) -> Replayed:
    """Fold a space's events, from number 1 on.

    Raises:
        FeedError: at the first event that does not follow.
    """
    board = Replayed()
    for event in events:
        if event.number != board.events + 1:
            raise FeedError(f"event {event.number} comes after event {board.events}")
        try:
            _fold(board, event)
        except (msgspec.MsgspecError, KeyError) as error:
            raise FeedError(f"event {event.number} ({event.type}) does not follow: {error}") from error
        board.events = event.number
    return board


def _fold(board: Replayed, event: Event) -> None:
    match event.type:
        case "space_created":
            made = msgspec.json.decode(event.data, type=_Created)
            board.visibility, board.claim_ttl_seconds = made.visibility, made.claim_ttl_seconds
            board.charter = made.charter
            if made.steward is not None:
                board.members[made.steward] = Role.STEWARD
        case "charter_changed":
            board.charter = msgspec.json.decode(event.data, type=CharterSeen)
        case "member_set":
            member = msgspec.json.decode(event.data, type=_Member)
            board.members[member.agent] = member.role
        case "member_removed":
            del board.members[msgspec.json.decode(event.data, type=_Removed).agent]
        case "task_created" | "task_imported":
            _add_task(board, msgspec.json.decode(event.data, type=Task))
        case "note_posted" | "note_imported":
            note = msgspec.json.decode(event.data, type=Note)
            board.notes[note.id] = note
            if note.status is NoteStatus.POSTED:
                board.note_occupants[note.conflict_key] = note.id
        case "note_withdrawn":
            changed = msgspec.json.decode(event.data, type=_Changed)
            note = board.notes[int(changed.note or 0)]
            board.notes[note.id] = _with(note, changed.changes, Note)
            del board.note_occupants[note.conflict_key]
        case name if name in _CHANGES:
            before = board.tasks[event.task_id or 0]
            after = _with(before, msgspec.json.decode(event.data, type=_Changed).changes, Task)
            board.tasks[after.id] = after
            _pass_on(board, before, after)
        case _:
            raise FeedError(f"event {event.number} has the unknown type {event.type!r}")


def _with(value: T, changes: Mapping[str, Any], kind: type[T]) -> T:
    return msgspec.convert({**msgspec.to_builtins(value), **changes}, kind)


def _add_task(board: Replayed, task: Task) -> None:
    """Put a task on the board; of several on one key, which only an import brings, the oldest live one has it."""
    board.tasks[task.id] = task
    if task.status in LIVE:
        holder = board.occupants.get(task.conflict_key)
        if holder is None or _age(task) < _age(board.tasks[holder]):
            board.occupants[task.conflict_key] = task.id


def _pass_on(board: Replayed, before: Task, after: Task) -> None:
    key = after.conflict_key
    if after.status in LIVE:
        if before.status not in LIVE:
            board.occupants[key] = after.id
        return
    if before.status in LIVE and board.occupants.get(key) == after.id:
        line = [task for task in board.tasks.values() if task.conflict_key == key and task.status in LIVE]
        chosen = [task for task in line if task.id == after.superseded_by] or sorted(line, key=_age)
        if chosen:
            board.occupants[key] = chosen[0].id
        else:
            del board.occupants[key]


def _age(task: Task) -> tuple[datetime, int]:
    return task.created_at, task.id


def differences(told: Replayed, stored: Replayed) -> Iterator[str]:
    """Yield one line for each thing that the feed and the tables say differently."""
    for name in ("visibility", "claim_ttl_seconds", "charter", "events"):
        if getattr(told, name) != getattr(stored, name):
            yield f"{name}: the feed says {getattr(told, name)}, the tables say {getattr(stored, name)}"
    for name in ("members", "tasks", "notes", "occupants", "note_occupants"):
        ours, theirs = getattr(told, name), getattr(stored, name)
        for key in dict.fromkeys((*ours, *theirs)):
            if ours.get(key) != theirs.get(key):
                yield f"{name} {_named(key)}: {_unlike(ours.get(key), theirs.get(key))}"


def _named(key: object) -> str:
    return f"{key.target} ({key.delivery_mode})" if isinstance(key, ConflictKey) else str(key)


def _unlike(ours: Any, theirs: Any) -> str:  # noqa: ANN401 - whatever the two boards hold
    if ours is None or theirs is None:
        return "only in the tables" if ours is None else "only in the feed"
    if not isinstance(ours, msgspec.Struct):
        return f"the feed says {ours}, the tables say {theirs}"
    # Names only: titles, bodies and notes are not for an operator's log.
    names = [name for name in ours.__struct_fields__ if getattr(ours, name) != getattr(theirs, name)]
    return f"{', '.join(names)} differ"
