"""Pages of a space's tasks and notes: one statement each, whatever the board's size. Contract 2.6.

Pages go down by id. An id is given once and never changes, so a row that is there throughout is on exactly one page,
whatever is written between two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from models.rules.conflict import ConflictKey, DeliveryMode, Kind
from models.rules.notes import Note, NoteStatus
from models.rules.tasks import LIVE, Status, Task
from models.store.reads import TASK_COLUMNS, Connection, task_of
from models.store.tables import LIVE_SQL

_NOTE_COLUMNS: Final = (
    "n.id, s.slug, n.task_id, n.kind, n.body, n.criterion_index, n.delivery_mode, n.status, n.target, n.created_by, "
    "n.received_seq, n.window_id, n.created_at, n.updated_at"
)
_ABOVE_ALL: Final = 2**63 - 1


async def tasks(
    connection: Connection,
    space_id: int,
    *,
    statuses: frozenset[Status],
    stale_seconds: int | None,
    before: int | None,
    limit: int,
) -> list[Task]:
    """Return up to ``limit`` tasks in one of the states with ids below ``before``, the latest first.

    ``stale_seconds`` leaves those that were claimed at least so long ago and are still.
    """
    # The live board has an index of its own, which a query finds by its very words.
    live = LIVE_SQL if statuses <= LIVE else "true"
    # The clock is read once in a sub-select: as a volatile function it would be called for every row, without an index.
    stale = (
        "true"
        if stale_seconds is None
        else "t.status = 'claimed' AND t.claimed_at <= (SELECT dibs_now()) - make_interval(secs => %(stale)s)"
    )
    cursor = await connection.execute(
        f"SELECT {TASK_COLUMNS} FROM tasks t JOIN spaces s ON s.id = t.space_id "  # noqa: S608 - constants
        f"WHERE t.space_id = %(space)s AND {live} AND t.status = ANY(%(statuses)s) AND {stale} "
        "AND t.id < %(before)s ORDER BY t.id DESC LIMIT %(limit)s",
        {
            "space": space_id,
            "statuses": [status.value for status in statuses],
            "before": behind(before),
            "stale": stale_seconds,
            "limit": limit,
        },
    )
    return [task_of(row) for row in await cursor.fetchall()]


async def notes(
    connection: Connection, space_id: int, task_id: int, *, before: int | None, limit: int
) -> list[Note] | None:
    """Return up to ``limit`` notes of a task with ids below ``before``, the latest first; None: no such task."""
    cursor = await connection.execute(
        f"SELECT {_NOTE_COLUMNS} FROM tasks t JOIN spaces s ON s.id = t.space_id LEFT JOIN LATERAL ("  # noqa: S608
        "  SELECT * FROM notes n WHERE n.space_id = t.space_id AND n.task_id = t.id "
        "  AND n.id < %(before)s ORDER BY n.id DESC LIMIT %(limit)s) n ON true "
        "WHERE t.space_id = %(space)s AND t.id = %(task)s ORDER BY n.id DESC",
        {"space": space_id, "task": task_id, "before": behind(before), "limit": limit},
    )
    rows = await cursor.fetchall()
    return [_note_of(row) for row in rows if row[0] is not None] if rows else None


async def note(connection: Connection, space_id: int, task_id: int, note_id: int) -> Note | None:
    """Return one note of a task."""
    cursor = await connection.execute(
        f"SELECT {_NOTE_COLUMNS} FROM notes n JOIN spaces s ON s.id = n.space_id "  # noqa: S608 - a constant
        "WHERE n.space_id = %s AND n.task_id = %s AND n.id = %s",
        (space_id, task_id, note_id),
    )
    row = await cursor.fetchone()
    return None if row is None else _note_of(row)


def behind(before: int | None) -> int:
    """Return the id that all ids of a page are below.

    A number, never null: a plan that PostgreSQL keeps for every page then goes to the page's place in the index. With
    a condition that may be absent such a plan begins at the top and reads down to it.
    """
    return _ABOVE_ALL if before is None else before


def _note_of(row: Sequence[Any]) -> Note:
    kind, mode = Kind(row[3]), DeliveryMode(row[6])
    return Note(
        id=row[0],
        space=row[1],
        task_id=row[2],
        kind=kind,
        body=row[4],
        criterion_index=row[5],
        delivery_mode=mode,
        status=NoteStatus(row[7]),
        conflict_key=ConflictKey(kind=kind, target=row[8], delivery_mode=mode),
        created_by=row[9],
        received_seq=row[10],
        window_id=None if row[11] is None else str(row[11]),
        created_at=row[12],
        updated_at=row[13],
    )
