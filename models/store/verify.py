"""A space as its tables have it beside what its feed says, and the audit of its closed leftovers. Contract 8, 2.5."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from models.rules.charter import CatalogRow
from models.rules.conflict import ConflictKey, DeliveryMode, Kind
from models.rules.governance import charter_event
from models.rules.plan import Event
from models.rules.replay import CharterSeen, FeedError, Replayed, differences, replay
from models.rules.spaces import Role, Visibility
from models.store.agents import UnknownError
from models.store.board_part import decode_notes, decode_tasks

EVENTS_AT_ONCE: Final = 500


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared, and one line for each difference."""

    space: str
    events: int
    tasks: int
    notes: int
    differences: tuple[str, ...]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A leftover that was closed, or was not; the actor by handle."""

    number: int
    at: datetime
    event: str
    actor: str
    leftover_task: int
    surviving_task: int
    reason: str
    code: str | None
    proposal_id: UUID


_STORED: Final = text("""
SELECT s.id, s.visibility, s.claim_ttl_seconds, s.next_event, s.charter_revision, c.catalog::text AS catalog,
  (SELECT coalesce(json_object_agg(m.agent_id, m.role), '{}') FROM members m WHERE m.space_id = s.id)::text AS members,
  (SELECT coalesce(json_agg(t), '[]') FROM tasks t WHERE t.space_id = s.id)::text AS tasks,
  (SELECT coalesce(json_agg(n), '[]') FROM notes n WHERE n.space_id = s.id)::text AS notes,
  (SELECT coalesce(json_agg(o), '[]') FROM occupancies o WHERE o.space_id = s.id)::text AS occupancies
FROM spaces s JOIN charters c ON c.space_id = s.id AND c.revision = s.charter_revision WHERE s.slug = :slug
""")
_EVENTS: Final = text(
    "SELECT number, type, at, actor, task_id, data::text AS data FROM events "
    "WHERE space_id = :space AND number > :after ORDER BY number LIMIT :limit"
)
_AUDIT: Final = text(
    "SELECT l.number, l.at, l.event, a.handle AS actor, l.leftover_task, l.surviving_task, l.reason, l.code, "
    "l.proposal_id FROM leftover_close_events l JOIN spaces s ON s.id = l.space_id JOIN agents a ON a.id = l.actor "
    "WHERE s.slug = :slug ORDER BY l.number"
)


class _Occupancy(msgspec.Struct, frozen=True):
    kind: Kind
    target: str
    delivery_mode: DeliveryMode
    task_id: int
    note_id: int | None

    @property
    def key(self) -> ConflictKey:
        return ConflictKey(kind=self.kind, target=self.target, delivery_mode=self.delivery_mode)


_occupancies: Final = msgspec.json.Decoder(tuple[_Occupancy, ...])


def verify_space(connection: Connection, slug: str) -> Verified:
    """Rebuild a space from its events and compare; all of it is of one moment, whatever is written meanwhile.

    Raises:
        UnknownError: there is no such space.
    """
    connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
    row = connection.execute(_STORED, {"slug": slug}).one_or_none()
    if row is None:
        raise UnknownError(f"there is no space {slug!r}")
    stored = _stored(row, slug)
    try:
        found = tuple(differences(replay(_events(connection, row.id)), stored))
    except FeedError as error:
        found = (str(error),)
    return Verified(
        space=slug, events=stored.events, tasks=len(stored.tasks), notes=len(stored.notes), differences=found
    )


def audit(connection: Connection, slug: str) -> list[AuditEntry]:
    """Return the audit of a space's closed leftovers.

    Raises:
        UnknownError: there is no such space.
    """
    if connection.execute(text("SELECT 1 FROM spaces WHERE slug = :slug"), {"slug": slug}).one_or_none() is None:
        raise UnknownError(f"there is no space {slug!r}")
    return [AuditEntry(**row) for row in connection.execute(_AUDIT, {"slug": slug}).mappings()]


def _stored(row: Any, slug: str) -> Replayed:  # noqa: ANN401 - a row of SQLAlchemy's
    catalog = msgspec.json.decode(row.catalog, type=tuple[CatalogRow, ...])
    occupancies = _occupancies.decode(row.occupancies)
    return Replayed(
        visibility=Visibility(row.visibility),
        claim_ttl_seconds=row.claim_ttl_seconds,
        charter=msgspec.convert(charter_event(row.charter_revision, catalog), CharterSeen),
        members=msgspec.json.decode(row.members, type=dict[str, Role]),
        tasks={stored.task.id: stored.task for stored in decode_tasks(row.tasks, slug)},
        notes={note.id: note for note in decode_notes(row.notes, slug)},
        occupants={one.key: one.task_id for one in occupancies if one.note_id is None},
        note_occupants={one.key: one.note_id for one in occupancies if one.note_id is not None},
        events=row.next_event - 1,
    )


def _events(connection: Connection, space_id: int) -> Iterator[Event]:
    after = 0
    while True:
        rows = connection.execute(_EVENTS, {"space": space_id, "after": after, "limit": EVENTS_AT_ONCE}).all()
        for row in rows:
            yield Event(
                number=row.number, type=row.type, at=row.at, actor=row.actor, task_id=row.task_id, data=row.data
            )
        if len(rows) < EVENTS_AT_ONCE:
            return
        after = rows[-1].number
