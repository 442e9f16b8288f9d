"""What the web process reads of the work exchange, and the purge that every request brings along. Seed 004.

Raw psycopg on an autocommit connection: each statement is a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from psycopg.rows import dict_row

from models.rules.market import Resolution, WorkSlot
from models.rules.work import (
    OpportunityView,
    ProposalView,
    WorkEvent,
    view_opportunity,
    view_proposal,
)
from models.store.exchange import SLOT_JSON, decode_slots, opportunity_of, proposal_of
from models.store.purge import REQUEST_BATCH, purge_statement
from models.store.reads import Connection

_HISTORY: Final = (
    "(SELECT coalesce(json_agg(json_build_object('revision', e.revision, 'operation', e.operation, 'actorAgentId', "
    "e.actor, 'receiptId', e.receipt_id, 'at', e.at) ORDER BY e.revision), '[]') FROM work_events e "
    "WHERE e.object_id = o.id)::text AS history"
)
_events: Final = msgspec.json.Decoder(tuple[WorkEvent, ...])


async def purge(connection: Connection, *, batch: int = REQUEST_BATCH) -> int:
    """Clear payloads whose retention is over, opportunities first, and return of how many objects.

    No row goes: ids, digests, states, events, receipts and the selected slot stay.
    """
    cursor = await connection.execute(purge_statement(batch))
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def opportunity(connection: Connection, work_id: str) -> OpportunityView | None:
    """Return an opportunity as it reads now, with its history."""
    row = await _one(connection, f"SELECT o.*, dibs_now() AS now, {_HISTORY} FROM work_opportunities o", work_id)  # noqa: S608
    if row is None:
        return None
    return view_opportunity(opportunity_of(row), now=row["now"], history=_events.decode(row["history"]))


async def proposal(connection: Connection, proposal_id: str) -> ProposalView | None:
    """Return a proposal as it reads now, with its history."""
    row = await _one(connection, f"SELECT o.*, dibs_now() AS now, {_HISTORY} FROM work_proposals o", proposal_id)  # noqa: S608
    if row is None:
        return None
    return view_proposal(proposal_of(row), now=row["now"], history=_events.decode(row["history"]))


async def opportunities(connection: Connection, after: str | None, limit: int) -> list[OpportunityView]:
    """Return up to ``limit`` opportunities with ids above ``after``, without their histories."""
    rows = await _many(connection, "work_opportunities", after, limit)
    return [view_opportunity(opportunity_of(row), now=row["now"]) for row in rows]


async def proposals(connection: Connection, after: str | None, limit: int) -> list[ProposalView]:
    """Return up to ``limit`` proposals with ids above ``after``, without their histories."""
    rows = await _many(connection, "work_proposals", after, limit)
    return [view_proposal(proposal_of(row), now=row["now"]) for row in rows]


async def work_id_of(connection: Connection, proposal_id: str) -> str | None:
    """Return the opportunity of a proposal; the two never part."""
    row = await _one(connection, "SELECT o.work_id FROM work_proposals o", proposal_id)
    return None if row is None else str(row["work_id"])


async def slots(connection: Connection, wanted: Sequence[bytes]) -> dict[bytes, WorkSlot]:
    """Return what is kept under keys."""
    cursor = await connection.execute(
        f"SELECT coalesce(json_agg({SLOT_JSON}), '[]')::text FROM work_slots s WHERE s.slot = ANY(%s)",  # noqa: S608
        (list(wanted),),
    )
    row = await cursor.fetchone()
    assert row is not None
    return {one.slot: one for one in decode_slots(row[0])}


async def resolution(connection: Connection, resolution_id: str) -> Resolution | None:
    """Return a resolution as it was kept."""
    row = await _one(connection, "SELECT o.* FROM work_resolutions o", resolution_id)
    return None if row is None else msgspec.convert({**row, "original_slot": bytes(row["original_slot"])}, Resolution)


async def clock(connection: Connection) -> datetime:
    """Return the database's time."""
    cursor = await connection.execute("SELECT dibs_now()")
    row = await cursor.fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


async def _one(connection: Connection, select: str, name: str) -> dict[str, Any] | None:
    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(f"{select} WHERE o.id = %s", (name,))
        return await cursor.fetchone()


async def _many(connection: Connection, table: str, after: str | None, limit: int) -> list[dict[str, Any]]:
    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(
            f"SELECT o.*, dibs_now() AS now FROM {table} o WHERE o.id > %s "  # noqa: S608 - one of two names
            "ORDER BY o.id LIMIT %s",
            (after or "", limit),
        )
        return await cursor.fetchall()
