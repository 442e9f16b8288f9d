"""What the web process reads of spaces, their charters, members and windows. Raw psycopg, one statement each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from models.rules.charter import CatalogRow, Charter
from models.rules.outcomes import Outcome
from models.rules.snapshot import LiveTask
from models.rules.spaces import CharterView, MemberView, Role, SpaceView, Visibility
from models.rules.windows import WindowView
from models.store.board_part import LIVE_TASKS_JSON, decode_live
from models.store.lists import behind
from models.store.reads import Connection
from models.store.snapshot import OUTCOME_JSON, decode_outcomes
from models.store.tables import LIVE_SQL

_SPACE: Final = "s.slug, s.visibility, s.claim_ttl_seconds, s.charter_revision, s.created_at"
_MEMBER: Final = "m.agent_id, a.handle, m.role, m.since"
_ABOVE_ALL_AGENTS: Final = "~"
"""Above every agent's id: those begin with letters."""
_WINDOW: Final = "w.id, w.first_seq, w.last_seq, w.intents, w.committed_at"


async def space(connection: Connection, space_id: int) -> SpaceView | None:
    """Return one space."""
    cursor = await connection.execute(f"SELECT {_SPACE} FROM spaces s WHERE s.id = %s", (space_id,))  # noqa: S608
    row = await cursor.fetchone()
    return None if row is None else _space_of(row)


async def spaces(
    connection: Connection, agent: str | None, *, before: int | None, limit: int
) -> list[tuple[int, SpaceView]]:
    """Return up to ``limit`` spaces that an agent may read, each behind its id, the latest first."""
    cursor = await connection.execute(
        f"SELECT s.id, {_SPACE} FROM spaces s WHERE s.id < %(before)s AND "  # noqa: S608
        "(s.visibility = 'public' OR EXISTS (SELECT FROM members m WHERE m.space_id = s.id AND m.agent_id = %(agent)s))"
        " ORDER BY s.id DESC LIMIT %(limit)s",
        {"agent": agent, "before": behind(before), "limit": limit},
    )
    return [(row[0], _space_of(row[1:])) for row in await cursor.fetchall()]


def _space_of(row: Sequence[Any]) -> SpaceView:
    return SpaceView(
        slug=row[0],
        visibility=Visibility(row[1]),
        claim_ttl_seconds=row[2],
        charter_revision=row[3],
        created_at=row[4],
    )


async def charter(connection: Connection, space_id: int, revision: int | None) -> CharterView | None:
    """Return a revision of a charter, the one in force for None."""
    cursor = await connection.execute(
        "SELECT s.slug, c.revision, c.catalog::text, c.created_at FROM spaces s JOIN charters c ON c.space_id = s.id "
        "AND c.revision = coalesce(%s, s.charter_revision) WHERE s.id = %s",
        (revision, space_id),
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    return CharterView(
        space=row[0],
        revision=row[1],
        catalog=msgspec.json.decode(row[2], type=tuple[CatalogRow, ...]),
        created_at=row[3],
    )


def charter_of(view: CharterView) -> Charter:
    """Return the charter of its view."""
    return Charter(revision=view.revision, rows=view.catalog)


async def charter_revision(connection: Connection, space_id: int) -> int:
    """Return the revision in force."""
    cursor = await connection.execute("SELECT charter_revision FROM spaces WHERE id = %s", (space_id,))
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def live_tasks(connection: Connection, space_id: int) -> tuple[LiveTask, ...]:
    """Return the live tasks as another charter would bind them."""
    cursor = await connection.execute(
        f"SELECT {LIVE_TASKS_JSON} FROM tasks t WHERE t.space_id = %s AND {LIVE_SQL}",  # noqa: S608 - constants
        (space_id,),
    )
    row = await cursor.fetchone()
    assert row is not None
    return decode_live(row[0])


async def members(connection: Connection, space_id: int, *, before: str | None, limit: int) -> list[MemberView]:
    """Return up to ``limit`` members with agent ids below ``before``, in descending order."""
    cursor = await connection.execute(
        f"SELECT {_MEMBER} FROM members m JOIN agents a ON a.id = m.agent_id "  # noqa: S608 - a constant
        "WHERE m.space_id = %(space)s AND m.agent_id < %(before)s "
        "ORDER BY m.agent_id DESC LIMIT %(limit)s",
        {"space": space_id, "before": _ABOVE_ALL_AGENTS if before is None else before, "limit": limit},
    )
    return [_member_of(row) for row in await cursor.fetchall()]


async def member(connection: Connection, space_id: int, agent: str) -> MemberView | None:
    """Return one member."""
    cursor = await connection.execute(
        f"SELECT {_MEMBER} FROM members m JOIN agents a ON a.id = m.agent_id "  # noqa: S608 - a constant
        "WHERE m.space_id = %s AND m.agent_id = %s",
        (space_id, agent),
    )
    row = await cursor.fetchone()
    return None if row is None else _member_of(row)


def _member_of(row: Sequence[Any]) -> MemberView:
    return MemberView(agent_id=row[0], handle=row[1], role=Role(row[2]), since=row[3])


async def windows(connection: Connection, partition: str, *, before: int | None, limit: int) -> list[WindowView]:
    """Return up to ``limit`` windows whose last number is below ``before``, the latest first."""
    cursor = await connection.execute(
        f"SELECT {_WINDOW} FROM windows w WHERE w.partition = %(partition)s "  # noqa: S608 - a constant
        "AND w.last_seq < %(before)s ORDER BY w.last_seq DESC LIMIT %(limit)s",
        {"partition": partition, "before": behind(before), "limit": limit},
    )
    return [_window_of(row) for row in await cursor.fetchall()]


async def window(
    connection: Connection, partition: str, window_id: UUID
) -> tuple[WindowView, tuple[Outcome, ...], dict[int, bool]] | None:
    """Return a window of a partition, its outcomes, and by place whether a reservation was held."""
    cursor = await connection.execute(
        f"SELECT {_WINDOW}, (SELECT coalesce(json_agg({OUTCOME_JSON} ORDER BY o.place), '[]') "  # noqa: S608
        "FROM outcomes o WHERE o.window_id = w.id)::text, (SELECT coalesce(array_agg(o.place), '{}') FROM outcomes o "
        "WHERE o.window_id = w.id AND o.reservation = 'own') FROM windows w WHERE w.id = %s AND w.partition = %s",
        (window_id, partition),
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    outcomes = tuple(outcome for several in decode_outcomes(row[5]).values() for outcome in several)
    return _window_of(row), outcomes, dict.fromkeys(row[6], True)


def _window_of(row: Sequence[Any]) -> WindowView:
    return WindowView(id=str(row[0]), first_seq=row[1], last_seq=row[2], intents=row[3], committed_at=row[4])
