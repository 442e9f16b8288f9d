"""One space's board while a window is decided: what is stored, and what the window has made of it so far.

The only mutable state of a decision. Every change of a task goes through :meth:`Desk.add` or :meth:`Desk.change`, so
occupancy, event and revision follow it in one place. Contract 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from models.rules.charter import CatalogRow
from models.rules.codes import Code
from models.rules.conflict import ConflictKey
from models.rules.notes import Note, NoteStatus
from models.rules.outcomes import Leader, Occupant, encode
from models.rules.plan import AuditRow, Event, Holder, MemberRow, NoteRow, OccupancyRow, TaskRow
from models.rules.snapshot import BoardPart, SpaceState, Standing, StoredTask
from models.rules.tasks import LIVE, Task

SYSTEM = "dibs"
"""The actor of events that no agent caused; agents' ids begin with ``agt_``."""


class Desk:
    """The board's state as the next intent finds it."""

    def __init__(self, space: SpaceState, board: BoardPart, *, now: datetime, window_id: UUID) -> None:
        self.space = space
        self.board = board
        self.now = now
        self.window_id = str(window_id)
        self.leaders: dict[ConflictKey, Leader] = {}
        self.catalog: tuple[CatalogRow, ...] | None = None
        self.members: list[MemberRow] = []
        self.audits: list[AuditRow] = []
        self.events: list[Event] = []
        self._tasks = dict(board.tasks)
        self._survivors = dict(board.survivors)
        self._lines: dict[ConflictKey, dict[int, Standing]] = {}
        for standing in board.standings:
            self._lines.setdefault(standing.key, {})[standing.task_id] = standing
        for stored in board.tasks.values():
            self._stand(stored.task)
        self._occupants = dict(board.occupants)
        self._notes = dict(board.notes)
        self._note_occupants = dict(board.note_occupants)
        self._written: dict[int, None] = {}
        self._noted: dict[int, None] = {}
        self._made = 0

    # Reading.

    def task(self, task_id: int) -> Task | None:
        """Return a task that an intent of this window names."""
        stored = self._tasks.get(task_id)
        return None if stored is None else stored.task

    def ended_at(self, task_id: int) -> datetime | None:
        """Return since when a task has been terminal, None for a live one."""
        return self._tasks[task_id].ended_at

    def last_survivor(self, task_id: int) -> int:
        """Follow the recorded pointers to the task that goes on with the work.

        They form no cycle: a survivor is not superseded when it is named, and what is superseded stays so.
        """
        while task_id in self._survivors:
            task_id = self._survivors[task_id]
        return task_id

    def held_on(self, key: ConflictKey) -> Occupant | None:
        """Return the oldest held task of a key, which keeps new tasks from taking it."""
        return _first(standing for standing in self._lines.get(key, {}).values() if standing.held)

    def occupant(self, key: ConflictKey) -> Occupant | None:
        """Return the live task that occupies a key."""
        task_id = self._occupants.get(key)
        return None if task_id is None else _occupant(self._lines[key][task_id])

    def note(self, note_id: int) -> Note | None:
        """Return a note that an intent of this window names."""
        return self._notes.get(note_id)

    def note_on(self, key: ConflictKey) -> int | None:
        """Return the id of the note that occupies a key."""
        return self._note_occupants.get(key)

    # Writing.

    @property
    def next_task_id(self) -> int:
        """The id of the next new task."""
        return self.space.next_task + self._made

    def add(self, task: Task) -> None:
        """Put a new task on the board; its key must be free."""
        self._made += 1
        self._put(task, ended_at=None)
        self._occupants[task.conflict_key] = task.id
        self.tell("task_created", actor=task.created_by, task_id=task.id, data=encode(task))

    def change(self, task: Task, *, event: str, actor: str, **data: Any) -> Task:  # noqa: ANN401 - JSON members
        """Put a task's next state in place of the present one and return it as it is stored.

        ``data`` joins the changed members in the event; None is left out.
        """
        before = self._tasks[task.id].task
        after = msgspec.structs.replace(task, revision=before.revision + 1, updated_at=self.now)
        was_live, is_live = before.status in LIVE, after.status in LIVE
        since = self.now if was_live else self._tasks[task.id].ended_at
        self._put(after, ended_at=None if is_live else since)
        if after.superseded_by is not None:
            self._survivors[after.id] = after.superseded_by
        if was_live and not is_live:
            self._vacate(after)
        elif is_live and not was_live:
            self._occupants[after.conflict_key] = after.id
        changes = {
            name: getattr(after, name)
            for name in after.__struct_fields__
            if getattr(after, name) != getattr(before, name)
        }
        told = {name: value for name, value in data.items() if value is not None}
        self.tell(event, actor=actor, task_id=after.id, data=encode({"changes": changes, **told}))
        return after

    def _put(self, task: Task, *, ended_at: datetime | None) -> None:
        self._tasks[task.id] = StoredTask(task=task, ended_at=ended_at)
        self._written[task.id] = None
        self._stand(task)

    def _stand(self, task: Task) -> None:
        line = self._lines.setdefault(task.conflict_key, {})
        if task.status in LIVE or task.held:
            line[task.id] = Standing(
                key=task.conflict_key,
                task_id=task.id,
                status=task.status,
                created_by=task.created_by,
                created_at=task.created_at,
                held=task.held,
            )
        else:
            line.pop(task.id, None)

    def _vacate(self, task: Task) -> None:
        """Let the key of a task that has ended pass to the survivor that is live, else to the oldest live task."""
        key = task.conflict_key
        if self._occupants.get(key) != task.id:
            return
        live = {number: one for number, one in self._lines[key].items() if one.status in LIVE}
        following = live.get(task.superseded_by or 0) or min(live.values(), key=_age, default=None)
        if following is None:
            del self._occupants[key]
        else:
            self._occupants[key] = following.task_id

    def post(
        self, body: str, task: Task, *, key: ConflictKey, criterion_index: int | None, author: str, seq: int
    ) -> Note:
        """Put a new note under a task; its key must be free."""
        made = sum(note_id not in self.board.notes for note_id in self._noted)
        note = Note(
            id=self.space.next_note + made,
            space=self.space.slug,
            task_id=task.id,
            body=body,
            criterion_index=criterion_index,
            delivery_mode=task.delivery_mode,
            status=NoteStatus.POSTED,
            conflict_key=key,
            created_by=author,
            received_seq=seq,
            window_id=self.window_id,
            created_at=self.now,
            updated_at=self.now,
        )
        self._notes[note.id] = note
        self._noted[note.id] = None
        self._note_occupants[key] = note.id
        self.tell("note_posted", actor=author, task_id=task.id, data=encode(note))
        return note

    def withdraw_note(self, note: Note, *, actor: str) -> Note:
        """Withdraw a posted note, which frees its key."""
        after = msgspec.structs.replace(note, status=NoteStatus.WITHDRAWN, updated_at=self.now)
        self._notes[note.id] = after
        self._noted[note.id] = None
        del self._note_occupants[note.conflict_key]
        changes = {"status": after.status, "updated_at": after.updated_at}
        self.tell(
            "note_withdrawn", actor=actor, task_id=note.task_id, data=encode({"note": note.id, "changes": changes})
        )
        return after

    def tell(self, event: str, *, actor: str, task_id: int | None, data: str) -> None:
        """Add the next event of the space."""
        number = self.space.next_event + len(self.events)
        self.events.append(Event(number=number, type=event, at=self.now, actor=actor, task_id=task_id, data=data))

    def audit(
        self, *, actor: str, leftover: int, survivor: int, reason: str, code: Code | None, proposal: UUID
    ) -> None:
        """Put a closed leftover, or its denial, on record."""
        self.audits.append(
            AuditRow(
                actor=actor,
                leftover_task=leftover,
                surviving_task=survivor,
                reason=reason,
                code=code,
                proposal_id=proposal,
            )
        )

    # What is to be written.

    def task_rows(self) -> tuple[TaskRow, ...]:
        """Return the tasks that are new or changed, as they are at the window's end."""
        return tuple(
            TaskRow(
                task=self._tasks[number].task,
                ended_at=self._tasks[number].ended_at,
                was=self.board.tasks[number].task.revision if number in self.board.tasks else None,
            )
            for number in self._written
        )

    def note_rows(self) -> tuple[NoteRow, ...]:
        """Return the notes that are new or changed."""
        return tuple(NoteRow(note=self._notes[number], new=number not in self.board.notes) for number in self._noted)

    def occupancy_rows(self) -> tuple[OccupancyRow, ...]:
        """Return the keys that have another holder now than before the window."""
        tasks = _passed(self.board.occupants, self._occupants)
        notes = _passed(self.board.note_occupants, self._note_occupants)
        return (
            *(
                OccupancyRow(
                    key=key,
                    before=None if before is None else Holder(task_id=before),
                    after=None if after is None else Holder(task_id=after),
                )
                for key, before, after in tasks
            ),
            *(
                OccupancyRow(key=key, before=self._holder(before), after=self._holder(after))
                for key, before, after in notes
            ),
        )

    def _holder(self, note_id: int | None) -> Holder | None:
        return None if note_id is None else Holder(task_id=self._notes[note_id].task_id, note_id=note_id)


def _passed(
    before: Mapping[ConflictKey, int], after: Mapping[ConflictKey, int]
) -> list[tuple[ConflictKey, int | None, int | None]]:
    return [
        (key, before.get(key), after.get(key))
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    ]


def _age(standing: Standing) -> tuple[datetime, int]:
    return standing.created_at, standing.task_id


def _occupant(standing: Standing) -> Occupant:
    return Occupant(task_id=standing.task_id, status=standing.status, created_by=standing.created_by)


def _first(standings: Iterable[Standing]) -> Occupant | None:
    found = min(standings, key=_age, default=None)
    return None if found is None else _occupant(found)
