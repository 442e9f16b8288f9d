"""Spaces, their charters and members, as operators change them. Contract 1.1, 2.7 and 8.

A change of charter or members locks the space's partition row, as each of its windows does: a window is decided with
what was in force before the change or with what is after it, never with some of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from sqlalchemy import Connection, text

from models.rules.charter import FIRST_REVISION, CatalogRow, Charter
from models.rules.desk import SYSTEM
from models.rules.governance import charter_event, member_event, new_space
from models.rules.intents import CreateSpace
from models.rules.plan import MemberRow, NewSpace
from models.rules.spaces import Role, Visibility
from models.store.agents import TakenError, UnknownError, change_authority, raise_authority


class LastStewardError(ValueError):
    """A change that would leave a space without a steward."""


_LOCK: Final = text(
    "SELECT s.id, s.charter_revision FROM partitions p JOIN spaces s ON s.slug = :slug "
    "WHERE p.name = 'space:' || :slug FOR UPDATE OF p"
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
SELECT id, charter_revision, CAST(:catalog AS json), dibs_now() FROM raised
""")
_MEMBERS: Final = text("""
WITH rows AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(:members AS json)) AS r(agent text, role text)
), gone AS (
  DELETE FROM members m USING rows r WHERE m.space_id = :space AND m.agent_id = r.agent AND r.role IS NULL
)
INSERT INTO members (space_id, agent_id, role, since) SELECT :space, agent, role, dibs_now() FROM rows
WHERE role IS NOT NULL ON CONFLICT (space_id, agent_id) DO UPDATE SET role = excluded.role
""")
_SPACES: Final = text("""
WITH rows AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(:spaces AS json)) AS r(slug text, visibility text, claim_ttl_seconds integer,
    catalog json, steward text, event text)
), made AS (
  INSERT INTO spaces (slug, visibility, charter_revision, claim_ttl_seconds, next_event, created_at)
  SELECT slug, visibility, :revision, claim_ttl_seconds, 2, dibs_now() FROM rows
  ON CONFLICT (slug) DO NOTHING RETURNING id, slug, created_at
), ordered AS (
  INSERT INTO partitions (name, last_at) SELECT 'space:' || slug, created_at FROM made
), chartered AS (
  INSERT INTO charters (space_id, revision, catalog, created_at)
  SELECT m.id, :revision, r.catalog, m.created_at FROM made m JOIN rows r USING (slug)
), led AS (
  INSERT INTO members (space_id, agent_id, role, since)
  SELECT m.id, r.steward, 'steward', m.created_at FROM made m JOIN rows r USING (slug) WHERE r.steward IS NOT NULL
), told AS (
  INSERT INTO events (space_id, number, type, at, actor, task_id, data)
  SELECT m.id, 1, 'space_created', m.created_at, coalesce(r.steward, :system), NULL, r.event::json
  FROM made m JOIN rows r USING (slug)
)
SELECT count(*) FROM made
""")
_TELL: Final = text("""
WITH told AS (
  INSERT INTO events (space_id, number, type, at, actor, task_id, data)
  SELECT s.id, s.next_event + r.n - 1, r.type, dibs_now(), :actor, NULL, r.data
  FROM spaces s CROSS JOIN ROWS FROM (json_to_recordset(CAST(:events AS json)) AS (type text, data json))
    WITH ORDINALITY AS r(type, data, n) WHERE s.id = :space
)
UPDATE spaces SET next_event = next_event + json_array_length(CAST(:events AS json)) WHERE id = :space
""")
_STANDING: Final = text(
    "SELECT a.id, m.role, (SELECT count(*) FROM members o WHERE o.space_id = :space AND o.role = 'steward' "
    "AND o.agent_id <> a.id) AS other_stewards "
    "FROM agents a LEFT JOIN members m ON m.agent_id = a.id AND m.space_id = :space WHERE a.handle = :handle"
)


class _Standing(msgspec.Struct, frozen=True):
    agent: str
    role: Role | None


def insert_spaces(connection: Connection, spaces: Sequence[NewSpace]) -> int:
    """Create spaces with partition, first charter, steward and first event; return how many slugs were free.

    It takes no authority from anyone and no process remembers that they were not there, so nothing needs to wait.
    """
    document = msgspec.json.encode(spaces).decode()
    parameters = {"spaces": document, "revision": FIRST_REVISION, "system": SYSTEM}
    return int(connection.execute(_SPACES, parameters).scalar_one())


def write_catalog(connection: Connection, space_id: int, catalog: Sequence[CatalogRow]) -> None:
    """Put a catalog in force as the next revision; earlier revisions are kept."""
    connection.execute(_NEXT_CHARTER, {"space": space_id, "catalog": msgspec.json.encode(catalog).decode()})


def write_members(connection: Connection, space_id: int, members: Sequence[MemberRow]) -> None:
    """Give and take roles; authority's lock must be held exclusively, and its epoch tells every process."""
    raise_authority(connection)
    _write_roles(connection, space_id, members)


def create_space(
    connection: Connection,
    slug: str,
    *,
    visibility: Visibility,
    catalog: tuple[CatalogRow, ...],
    claim_ttl_seconds: int | None = None,
) -> int:
    """Create a space without a steward and return its id.

    Raises:
        TakenError: the slug is another space's.
    """
    intent = CreateSpace(visibility=visibility, claim_ttl_seconds=claim_ttl_seconds, catalog=catalog)
    if not insert_spaces(connection, [new_space(intent, slug, steward=None)]):
        raise TakenError(f"there is a space {slug!r} already")
    return int(connection.execute(text("SELECT id FROM spaces WHERE slug = :slug"), {"slug": slug}).scalar_one())


def set_members(connection: Connection, space_id: int, members: dict[str, Role]) -> None:
    """Give agents (by id) their roles in a space; authority's lock must be held unless the space is new."""
    rows = [MemberRow(agent=agent, role=role) for agent, role in members.items()]
    _write_roles(connection, space_id, rows)
    _tell(connection, space_id, [("member_set", member_event(row.agent, row.role)) for row in rows])


def _write_roles(connection: Connection, space_id: int, members: Sequence[MemberRow]) -> None:
    connection.execute(_MEMBERS, {"space": space_id, "members": msgspec.json.encode(members).decode()})


def _tell(connection: Connection, space_id: int, events: Sequence[tuple[str, Mapping[str, object]]]) -> None:
    """Add events of no task that an operator caused; the partition's row is locked, so their numbers are free."""
    document = msgspec.json.encode([{"type": name, "data": data} for name, data in events]).decode()
    connection.execute(_TELL, {"space": space_id, "actor": SYSTEM, "events": document})


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
    space_id, revision = _lock(connection, slug)
    write_catalog(connection, space_id, rows)
    _tell(connection, space_id, [("charter_changed", charter_event(revision + 1, rows))])
    return revision + 1


def set_member(connection: Connection, slug: str, handle: str, role: Role) -> None:
    """Give an agent a role in a space.

    Raises:
        UnknownError: there is no such space or agent.
        LastStewardError: the space's only steward would become a member.
    """
    change_authority(connection)
    space_id, _ = _lock(connection, slug)
    standing = _standing(connection, space_id, slug, handle, keeps_steward=role is Role.STEWARD)
    set_members(connection, space_id, {standing.agent: role})


def remove_member(connection: Connection, slug: str, handle: str) -> None:
    """Take an agent's role in a space.

    Raises:
        UnknownError: there is no such space or agent, or the agent is no member.
        LastStewardError: it is the space's only steward.
    """
    change_authority(connection)
    space_id, _ = _lock(connection, slug)
    standing = _standing(connection, space_id, slug, handle, keeps_steward=False)
    if standing.role is None:
        raise UnknownError(f"{handle!r} is no member of {slug!r}")
    connection.execute(
        _MEMBERS,
        {"space": space_id, "members": msgspec.json.encode([MemberRow(agent=standing.agent, role=None)]).decode()},
    )
    _tell(connection, space_id, [("member_removed", member_event(standing.agent, None))])


def _lock(connection: Connection, slug: str) -> tuple[int, int]:
    """Lock the space's partition and return the space's id and its charter's revision."""
    row = connection.execute(_LOCK, {"slug": slug}).one_or_none()
    if row is None:
        raise UnknownError(f"there is no space {slug!r}")
    return int(row.id), int(row.charter_revision)


def _standing(connection: Connection, space_id: int, slug: str, handle: str, *, keeps_steward: bool) -> _Standing:
    """Return who the agent is here. Authority's lock is held, so the stewards counted are still there at the end."""
    row = connection.execute(_STANDING, {"space": space_id, "handle": handle}).one_or_none()
    if row is None:
        raise UnknownError(f"there is no agent {handle!r}")
    if row.role == Role.STEWARD and not keeps_steward and not row.other_stewards:
        raise LastStewardError(f"{handle!r} is the last steward of {slug!r}: make another agent steward first")
    return _Standing(row.id, None if row.role is None else Role(row.role))
