"""A space's events, read by position. Raw psycopg on an autocommit connection.

Why a position says it all: whoever writes events of a space holds its partition's row until it commits, takes the
numbers from ``spaces.next_event`` below that lock and writes them on in the same transaction. So the transaction that
gives out n + 1 begins to count after the one that gave out n has committed, however slow that commit was: a snapshot
that shows a number shows all below it, and ``number > seen`` neither skips nor repeats one. A sequence would not do:
its numbers are given out in one order and committed in another. Contract 1.2, invariant 10.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from models.rules.plan import Event


class Page(msgspec.Struct, frozen=True):
    """Events in ascending order, and whether there were more behind them at that moment."""

    events: tuple[Event, ...]
    has_more: bool


async def heads(connection: AsyncConnection[TupleRow], space_ids: Sequence[int]) -> dict[int, int]:
    """Return the number of each space's latest event, 0 before the first; unknown spaces are left out."""
    cursor = await connection.execute("SELECT id, next_event - 1 FROM spaces WHERE id = ANY(%s)", (list(space_ids),))
    return dict(await cursor.fetchall())


async def page(connection: AsyncConnection[TupleRow], space_id: int, after: int, *, limit: int, max_bytes: int) -> Page:
    """Return the events behind number ``after``: at most ``limit`` with ``max_bytes`` of data, but at least one."""
    cursor = await connection.execute(
        "SELECT number, type, at, actor, task_id, data::text, found FROM ("
        "SELECT p.*, row_number() OVER w AS place, sum(octet_length(p.data::text)) OVER w AS bytes, "
        "count(*) OVER () AS found FROM (SELECT number, type, at, actor, task_id, data FROM events "
        "WHERE space_id = %s AND number > %s ORDER BY number LIMIT %s) AS p WINDOW w AS (ORDER BY number)) AS q "
        "WHERE place <= %s AND (place = 1 OR bytes <= %s) ORDER BY number",
        (space_id, after, limit + 1, limit, max_bytes),
    )
    rows = await cursor.fetchall()
    events = tuple(
        Event(number=row[0], type=row[1], at=row[2], actor=row[3], task_id=row[4], data=row[5]) for row in rows
    )
    return Page(events, has_more=bool(rows) and rows[0][6] > len(rows))
