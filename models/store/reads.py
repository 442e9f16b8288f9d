"""What the web process reads: identity, remembered keys, outcomes, tasks. Raw psycopg on an autocommit connection.

Nothing here decides: a window's transaction reads all of it again under its locks, so a stale answer costs a
refusal at most, never a wrong write.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from models.rules.conflict import ConflictKey, DeliveryMode, Kind
from models.rules.idempotency import Remembered
from models.rules.intents import ValidationPolicy
from models.rules.outcomes import Outcome
from models.rules.spaces import Mode, Role, Visibility
from models.rules.tasks import BindView, Status, Task
from models.store.snapshot import OUTCOME_JSON, OUTCOME_WITH_PAYLOAD_JSON, decode_outcomes

Connection = AsyncConnection[TupleRow]

TASK_COLUMNS: Final = (
    "t.id, s.slug, t.title, t.body, t.work_item_id, t.bind, t.kind, t.target, t.delivery_mode, t.validation_policy, "
    "t.status, t.created_by, t.holder, t.assigned_to, t.claimed_at, t.superseded_by, t.held, t.revision, "
    "t.received_seq, t.window_id, t.created_at, t.updated_at"
)


class State(msgspec.Struct, frozen=True):
    """Authority's epoch, which changes with every change of who may do what, and the mode."""

    authority_epoch: int
    mode: Mode
    mode_epoch: int


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A key and the agent it speaks for."""

    key_id: str
    secret_sha256: bytes
    operator: bool
    expires_at: datetime | None
    revoked: bool
    agent_id: str
    handle: str
    active: bool
    listed: bool


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """A space as the door needs it."""

    id: int
    slug: str
    visibility: Visibility


class StoredProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A decided submission: where and when, its outcomes, and the intents of those that lost."""

    partition: str
    window_id: UUID
    decided_at: datetime
    outcomes: tuple[Outcome, ...]


async def state(connection: Connection) -> State:
    """Return authority's epoch and the mode."""
    cursor = await connection.execute("SELECT a.epoch, m.mode, m.epoch FROM authority a CROSS JOIN work_mode m")
    row = await cursor.fetchone()
    assert row is not None
    return State(row[0], Mode(row[1]), row[2])


async def principals(connection: Connection, key_ids: Sequence[str]) -> dict[str, Principal]:
    """Return what is known of each key's public part."""
    cursor = await connection.execute(
        "SELECT k.id, k.secret_sha256, k.operator, k.expires_at, k.revoked_at IS NOT NULL, a.id, a.handle, a.active, "
        "a.listed FROM keys k JOIN agents a ON a.id = k.agent_id WHERE k.id = ANY(%s)",
        (list(key_ids),),
    )
    return {
        row[0]: Principal(
            key_id=row[0],
            secret_sha256=row[1],
            operator=row[2],
            expires_at=row[3],
            revoked=row[4],
            agent_id=row[5],
            handle=row[6],
            active=row[7],
            listed=row[8],
        )
        for row in await cursor.fetchall()
    }


async def spaces(connection: Connection, slugs: Sequence[str]) -> dict[str, Space]:
    """Return the spaces that exist among ``slugs``."""
    cursor = await connection.execute("SELECT id, slug, visibility FROM spaces WHERE slug = ANY(%s)", (list(slugs),))
    return {row[1]: Space(id=row[0], slug=row[1], visibility=Visibility(row[2])) for row in await cursor.fetchall()}


async def roles(connection: Connection, wanted: Sequence[tuple[int, str]]) -> dict[tuple[int, str], Role]:
    """Return the role of each (space id, agent id) that has one."""
    cursor = await connection.execute(
        "SELECT m.space_id, m.agent_id, m.role FROM members m "
        "JOIN unnest(%s::bigint[], %s::text[]) AS w(space_id, agent_id) USING (space_id, agent_id)",
        ([space for space, _ in wanted], [agent for _, agent in wanted]),
    )
    return {(row[0], row[1]): Role(row[2]) for row in await cursor.fetchall()}


async def remembered(connection: Connection, slots: Sequence[bytes]) -> dict[bytes, Remembered]:
    """Return the memory of each slot digest that was used with success."""
    cursor = await connection.execute(
        f"SELECT i.slot, i.secret_id, i.request, i.append_id, (SELECT json_agg({OUTCOME_JSON} ORDER BY o.position) "  # noqa: S608
        "FROM outcomes o WHERE o.append_id = i.append_id)::text FROM idempotency i WHERE i.slot = ANY(%s)",
        (list(slots),),
    )
    found: dict[bytes, Remembered] = {}
    for slot, secret_id, request, append_id, text in await cursor.fetchall():
        outcomes = decode_outcomes(text or "[]").get(append_id, ())
        found[bytes(slot)] = Remembered(
            secret_id=secret_id,
            request=bytes(request),
            append_id=append_id,
            answers=tuple(outcome.answer for outcome in outcomes),
        )
    return found


async def outcomes(connection: Connection, appends: Sequence[UUID]) -> dict[UUID, tuple[Outcome, ...]]:
    """Return the outcomes of each submission that was decided, by batch position."""
    cursor = await connection.execute(
        f"SELECT coalesce(json_agg({OUTCOME_JSON} ORDER BY o.append_id, o.position), '[]')::text "  # noqa: S608
        "FROM outcomes o WHERE o.append_id = ANY(%s)",
        (list(appends),),
    )
    row = await cursor.fetchone()
    assert row is not None
    return decode_outcomes(row[0])


async def proposal(connection: Connection, append_id: UUID) -> StoredProposal | None:
    """Return a decided submission with the payloads of its losers."""
    cursor = await connection.execute(
        f"SELECT json_agg({OUTCOME_WITH_PAYLOAD_JSON} ORDER BY o.position)::text, min(o.partition), "  # noqa: S608
        "min(o.window_id::text), min(o.decided_at) FROM outcomes o WHERE o.append_id = %s",
        (append_id,),
    )
    row = await cursor.fetchone()
    assert row is not None
    if row[0] is None:
        return None
    found = decode_outcomes(row[0])[append_id]
    return StoredProposal(partition=row[1], window_id=UUID(row[2]), decided_at=row[3], outcomes=found)


async def task(connection: Connection, space_id: int, task_id: int) -> Task | None:
    """Return one task."""
    cursor = await connection.execute(
        f"SELECT {TASK_COLUMNS} FROM tasks t JOIN spaces s ON s.id = t.space_id "  # noqa: S608
        "WHERE t.space_id = %s AND t.id = %s",
        (space_id, task_id),
    )
    row = await cursor.fetchone()
    return None if row is None else task_of(row)


def task_of(row: Sequence[Any]) -> Task:
    """Return the task of a row of ``TASK_COLUMNS``."""
    mode = DeliveryMode(row[8])
    return Task(
        id=row[0],
        space=row[1],
        title=row[2],
        body=row[3],
        work_item_id=row[4],
        bind=msgspec.convert(row[5], BindView),
        conflict_key=ConflictKey(Kind(row[6]), row[7], mode),
        delivery_mode=mode,
        validation_policy=ValidationPolicy(row[9]),
        status=Status(row[10]),
        created_by=row[11],
        holder=row[12],
        assigned_to=row[13],
        claimed_at=row[14],
        superseded_by=row[15],
        held=row[16],
        revision=row[17],
        received_seq=row[18],
        window_id=None if row[19] is None else str(row[19]),
        created_at=row[20],
        updated_at=row[21],
    )


async def migration(connection: Connection) -> str | None:
    """Return the schema revision of the database, None before the first migration."""
    cursor = await connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL")
    row = await cursor.fetchone()
    if row is None or not row[0]:
        return None
    cursor = await connection.execute("SELECT version_num FROM alembic_version")
    row = await cursor.fetchone()
    return None if row is None else str(row[0])
