"""Spaces, their charters and members, as operators change them. Contract 1.1, 2.7 and 8.

A change of charter or members locks the space's partition row, as each of its windows does: a window is decided with
what was in force before the change or with what is after it, never with some of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import Connection, text

from models.rules.charter import CatalogRow, Charter
from models.rules.intents import partition_of
from models.rules.spaces import Role, Visibility
from models.store.agents import TakenError, UnknownError, change_authority


class LastStewardError(ValueError):
    """A change that would leave a space without a steward."""


_LOCK: Final = text(
    "SELECT s.id FROM partitions p JOIN spaces s ON s.slug = :slug WHERE p.name = 'space:' || :slug FOR UPDATE OF p"
)
_CHARTER: Final = text(
    "SELECT c.revision, c.catalog::text AS catalog FROM spaces s JOIN charters c ON c.space_id = s.id "
    "AND c.revision = s.charter_revision WHERE s.slug = :slug"
)
_NEXT_CHARTER: Final = text("""
WITH raised AS (
  UPDATE spaces SET charter_revision = charter_revision + 1 WHERE id = :space RETURNING id, charter_revision
)
INSERT INTO charters (space_id, revision, catalog, created_at)
SELECT id, charter_revision, CAST(:catalog AS json), dibs_now() FROM raised RETURNING revision
""")
_STANDING: Final = text(
    "SELECT a.id, m.role, (SELECT count(*) FROM members o WHERE o.space_id = :space AND o.role = 'steward' "
    "AND o.agent_id <> a.id) AS other_stewards "
    "FROM agents a LEFT JOIN members m ON m.agent_id = a.id AND m.space_id = :space WHERE a.handle = :handle"
)


class _Standing(msgspec.Struct, frozen=True):
    agent: str
    role: Role | None


def create_space(connection: Connection, slug: str, *, visibility: Visibility, catalog: tuple[CatalogRow, ...]) -> int:
    """Create a space with its partition and its first charter, and return its id.

    It takes no authority from anyone and no process remembers that it was not there, so nothing needs to wait.

    Raises:
        TakenError: the slug is another space's.
    """
    row = connection.execute(
        text(
            "INSERT INTO spaces (slug, visibility, charter_revision, created_at) VALUES (:slug, :visibility, 1, "
            "dibs_now()) ON CONFLICT (slug) DO NOTHING RETURNING id"
        ),
        {"slug": slug, "visibility": visibility.value},
    ).one_or_none()
    if row is None:
        raise TakenError(f"there is a space {slug!r} already")
    connection.execute(
        text("INSERT INTO partitions (name, last_at) VALUES (:name, dibs_now())"), {"name": partition_of(slug)}
    )
    connection.execute(
        text(
            "INSERT INTO charters (space_id, revision, catalog, created_at) "
            "VALUES (:space, 1, CAST(:catalog AS json), dibs_now())"
        ),
        {"space": row.id, "catalog": msgspec.json.encode(catalog).decode()},
    )
    return int(row.id)


def set_members(connection: Connection, space_id: int, members: dict[str, Role]) -> None:
    """Give agents (by id) their roles in a space; authority's lock must be held unless the space is new."""
    connection.execute(
        text(
            "INSERT INTO members (space_id, agent_id, role, since) SELECT :space, agent, role, dibs_now() "
            "FROM unnest(CAST(:agents AS text[]), CAST(:roles AS text[])) AS n(agent, role) "
            "ON CONFLICT (space_id, agent_id) DO UPDATE SET role = excluded.role"
        ),
        {"space": space_id, "agents": list(members), "roles": [role.value for role in members.values()]},
    )


def read_charter(connection: Connection, slug: str) -> Charter:
    """Return the charter in force.

    Raises:
        UnknownError: there is no such space.
    """
    row = connection.execute(_CHARTER, {"slug": slug}).one_or_none()
    if row is None:
        raise UnknownError(f"there is no space {slug!r}")
    return Charter(row.revision, msgspec.json.decode(row.catalog, type=tuple[CatalogRow, ...]))


def set_charter(connection: Connection, slug: str, rows: Sequence[CatalogRow]) -> int:
    """Put a catalog that was validated in force and return its revision; earlier revisions are kept.

    Raises:
        UnknownError: there is no such space.
    """
    space_id = _lock(connection, slug)
    found = connection.execute(_NEXT_CHARTER, {"space": space_id, "catalog": msgspec.json.encode(rows).decode()})
    return int(found.scalar_one())


def set_member(connection: Connection, slug: str, handle: str, role: Role) -> None:
    """Give an agent a role in a space.

    Raises:
        UnknownError: there is no such space or agent.
        LastStewardError: the space's only steward would become a member.
    """
    change_authority(connection)
    space_id = _lock(connection, slug)
    standing = _standing(connection, space_id, slug, handle, keeps_steward=role is Role.STEWARD)
    set_members(connection, space_id, {standing.agent: role})


def remove_member(connection: Connection, slug: str, handle: str) -> None:
    """Take an agent's role in a space.

    Raises:
        UnknownError: there is no such space or agent, or the agent is no member.
        LastStewardError: it is the space's only steward.
    """
    change_authority(connection)
    space_id = _lock(connection, slug)
    standing = _standing(connection, space_id, slug, handle, keeps_steward=False)
    if standing.role is None:
        raise UnknownError(f"{handle!r} is no member of {slug!r}")
    connection.execute(
        text("DELETE FROM members WHERE space_id = :space AND agent_id = :agent"),
        {"space": space_id, "agent": standing.agent},
    )


def _lock(connection: Connection, slug: str) -> int:
    row = connection.execute(_LOCK, {"slug": slug}).one_or_none()
    if row is None:
        raise UnknownError(f"there is no space {slug!r}")
    return int(row.id)


def _standing(connection: Connection, space_id: int, slug: str, handle: str, *, keeps_steward: bool) -> _Standing:
    """Return who the agent is here. Authority's lock is held, so the stewards counted are still there at the end."""
    row = connection.execute(_STANDING, {"space": space_id, "handle": handle}).one_or_none()
    if row is None:
        raise UnknownError(f"there is no agent {handle!r}")
    if row.role == Role.STEWARD and not keeps_steward and not row.other_stewards:
        raise LastStewardError(f"{handle!r} is the last steward of {slug!r}: make another agent steward first")
    return _Standing(row.id, None if row.role is None else Role(row.role))
