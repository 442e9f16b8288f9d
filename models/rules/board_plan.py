"""What a board file's import writes: tasks, notes, occupancies and the events that tell of them. Contract 8 and 2.2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from models.rules import outcomes
from models.rules.board import IMPORTER, Board, BoardError
from models.rules.board_tasks import occupants, utc
from models.rules.conflict import ConflictKey, note_key
from models.rules.notes import NOTE_CHARACTERS_MAX, Note, NoteStatus, is_note_body
from models.rules.plan import Event, Holder, NoteRow, OccupancyRow, Plan, TaskRow
from models.rules.tasks import LIVE, Task


def import_plan(
    board: Board, tasks: Sequence[Task], ids: Mapping[str, str], *, now: datetime, first_event: int
) -> Plan:
    """Return the rows of a board whose tasks were checked and have their agents by id already.

    Reading the space's events from 0 rebuilds the board: those from ``first_event`` on are the tasks and notes.

    Raises:
        BoardError: the first fault of the notes.
    """
    notes = _notes(board, {task.id: task for task in tasks}, ids, now=now)
    ended_at = _ended(board, tasks, now=now)
    holding = occupants(tasks)
    return Plan(
        tasks=tuple(TaskRow(task=task, ended_at=ended_at[task.id], was=None) for task in tasks),
        notes=tuple(NoteRow(note=note, new=True) for note in notes),
        occupancies=(
            *(
                OccupancyRow(key=task.conflict_key, before=None, after=Holder(task_id=task.id))
                for task in tasks
                if task.id in holding
            ),
            *(
                OccupancyRow(key=note.conflict_key, before=None, after=Holder(task_id=note.task_id, note_id=note.id))
                for note in notes
                if note.status is NoteStatus.POSTED
            ),
        ),
        events=tuple(_events(tasks, notes, now=now, first=first_event)),
    )


def _events(tasks: Iterable[Task], notes: Iterable[Note], *, now: datetime, first: int) -> list[Event]:
    told = [("task_imported", task.created_by, task.id, outcomes.encode(task)) for task in tasks]
    told += [("note_imported", note.created_by, note.task_id, outcomes.encode(note)) for note in notes]
    return [
        Event(number=number, type=name, at=now, actor=actor, task_id=task_id, data=data)
        for number, (name, actor, task_id, data) in enumerate(told, start=first)
    ]


def _ended(board: Board, tasks: Sequence[Task], *, now: datetime) -> dict[int, datetime | None]:
    """Return since when each task has been terminal, as far as the file tells.

    Where it gives no time to one of the tasks of a key, they all count as overlapping: leftovers among them are as old
    as this import and not younger than any task that has ended. Contract 2.5.
    """
    undated = {given.id for given in board.tasks if given.created_at is None}
    vague: set[ConflictKey] = {task.conflict_key for task in tasks if task.id in undated}
    return {
        task.id: None if task.status in LIVE else now if task.conflict_key in vague else task.updated_at
        for task in tasks
    }


def _notes(board: Board, tasks: Mapping[int, Task], ids: Mapping[str, str], *, now: datetime) -> list[Note]:
    notes: dict[int, Note] = {}
    taken: set[ConflictKey] = set()
    for index, given in enumerate(board.notes):
        at = f"/notes/{index}"
        task = tasks.get(given.task_id)
        if given.id in notes:
            raise BoardError(f"{at}/id", f"{given.id} is an earlier note's id as well")
        if task is None:
            raise BoardError(f"{at}/task_id", f"task {given.task_id} is not in this file")
        if not is_note_body(given.body):
            raise BoardError(f"{at}/body", f"is empty, has more than {NOTE_CHARACTERS_MAX} characters, or holds NUL")
        author = ids[given.created_by or IMPORTER]
        key = note_key(
            space_slug=board.space,
            task_id=task.id,
            criterion_index=given.criterion_index,
            principal=author,
            body=given.body,
            delivery_mode=task.delivery_mode,
        )
        if given.status is NoteStatus.POSTED:
            if key in taken:
                raise BoardError(at, "says the same as an earlier note of its author")
            taken.add(key)
        notes[given.id] = Note(
            id=given.id,
            space=board.space,
            task_id=task.id,
            kind=given.kind,
            body=given.body,
            criterion_index=given.criterion_index,
            delivery_mode=task.delivery_mode,
            status=given.status,
            conflict_key=key,
            created_by=author,
            received_seq=given.received_seq,
            window_id=None if given.window_id is None else str(given.window_id),
            created_at=now if given.created_at is None else utc(given.created_at, f"{at}/created_at"),
            updated_at=now if given.updated_at is None else utc(given.updated_at, f"{at}/updated_at"),
        )
    return [notes[number] for number in sorted(notes)]
