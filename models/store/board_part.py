"""The part of a board that a window's intents name or touch, in one statement whatever their number.

Contract 1.1, step (d), and 2.2.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from models.rules.conflict import ConflictKey, DeliveryMode, Kind
from models.rules.intents import ValidationPolicy
from models.rules.needs import Needs
from models.rules.notes import Note, NoteStatus
from models.rules.snapshot import AgentState, BoardPart, LiveTask, SpaceState, Standing, StoredTask
from models.rules.spaces import Role
from models.rules.tasks import BindView, Status, Task
from models.store.tables import LIVE_SQL

EXPIRED_MAX: Final = 500
"""Claims that end in one window; the next has the rest."""


class _TaskRow(msgspec.Struct, frozen=True):
    id: int
    title: str
    body: str
    work_item_id: str | None
    bind: BindView
    delivery_mode: DeliveryMode
    validation_policy: ValidationPolicy
    status: Status
    kind: Kind
    target: str
    created_by: str
    holder: str | None
    assigned_to: str | None
    claimed_at: datetime | None
    superseded_by: int | None
    held: bool
    revision: int
    received_seq: int | None
    window_id: UUID | None
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None

    def stored(self, slug: str) -> StoredTask:
        task = Task(
            id=self.id,
            space=slug,
            title=self.title,
            body=self.body,
            work_item_id=self.work_item_id,
            bind=self.bind,
            delivery_mode=self.delivery_mode,
            validation_policy=self.validation_policy,
            status=self.status,
            conflict_key=ConflictKey(kind=self.kind, target=self.target, delivery_mode=self.delivery_mode),
            created_by=self.created_by,
            holder=self.holder,
            assigned_to=self.assigned_to,
            claimed_at=self.claimed_at,
            superseded_by=self.superseded_by,
            held=self.held,
            revision=self.revision,
            received_seq=self.received_seq,
            window_id=None if self.window_id is None else str(self.window_id),
            created_at=self.created_at,
            updated_at=self.updated_at,
        )
        return StoredTask(task=task, ended_at=self.ended_at)


class _StandingRow(msgspec.Struct, frozen=True):
    target: str
    delivery_mode: DeliveryMode
    id: int
    status: Status
    created_by: str
    created_at: datetime
    held: bool
    occupies: bool

    @property
    def key(self) -> ConflictKey:
        return ConflictKey(kind=Kind.CREATE_TASK, target=self.target, delivery_mode=self.delivery_mode)


class _NoteRow(msgspec.Struct, frozen=True):
    id: int
    task_id: int
    kind: Kind
    body: str
    criterion_index: int | None
    delivery_mode: DeliveryMode
    status: NoteStatus
    target: str
    created_by: str
    received_seq: int | None
    window_id: UUID | None
    created_at: datetime
    updated_at: datetime

    def note(self, slug: str) -> Note:
        return Note(
            id=self.id,
            space=slug,
            task_id=self.task_id,
            kind=self.kind,
            body=self.body,
            criterion_index=self.criterion_index,
            delivery_mode=self.delivery_mode,
            status=self.status,
            conflict_key=ConflictKey(kind=self.kind, target=self.target, delivery_mode=self.delivery_mode),
            created_by=self.created_by,
            received_seq=self.received_seq,
            window_id=None if self.window_id is None else str(self.window_id),
            created_at=self.created_at,
            updated_at=self.updated_at,
        )


class _NoteOccupantRow(msgspec.Struct, frozen=True):
    target: str
    delivery_mode: DeliveryMode
    note_id: int


class _AgentRow(msgspec.Struct, frozen=True):
    id: str
    handle: str
    active: bool
    role: Role | None
    since: datetime | None


class _LiveRow(msgspec.Struct, frozen=True):
    id: int
    title: str
    requested: str | None
    target: str
    delivery_mode: DeliveryMode


_tasks = msgspec.json.Decoder(tuple[_TaskRow, ...])
_standings = msgspec.json.Decoder(tuple[_StandingRow, ...])
_notes = msgspec.json.Decoder(tuple[_NoteRow, ...])
_note_occupants = msgspec.json.Decoder(tuple[_NoteOccupantRow, ...])
_agents = msgspec.json.Decoder(tuple[_AgentRow, ...])
_live = msgspec.json.Decoder(tuple[_LiveRow, ...])

# A key's line is read as far as it can come to be its turn: no more tasks end in a window than it has intents. That
# the oldest live one of a key without named tasks is missing is no loss, since its occupant then stays.
_STANDING: Final = "t.target, t.delivery_mode, t.id, t.status, t.created_by, t.created_at, t.held"
_PART = text(f"""
WITH RECURSIVE wanted AS MATERIALIZED (
  SELECT t.* FROM tasks t WHERE t.space_id = :space AND t.id = ANY(:tasks)
), expired AS MATERIALIZED (
  SELECT t.* FROM tasks t WHERE t.space_id = :space AND t.status = 'claimed' AND t.claimed_at <= :expired_at
  ORDER BY t.claimed_at, t.id LIMIT :expired_max
), pointers AS (
  SELECT id, superseded_by FROM wanted WHERE superseded_by IS NOT NULL
  UNION SELECT t.id, t.superseded_by FROM pointers p JOIN tasks t ON t.space_id = :space AND t.id = p.superseded_by
  WHERE t.superseded_by IS NOT NULL
), named AS (
  SELECT target, delivery_mode FROM wanted UNION SELECT target, delivery_mode FROM expired
), keys AS (
  SELECT target, delivery_mode FROM json_to_recordset(CAST(:keys AS json)) AS k(target text, delivery_mode text)
  UNION SELECT target, delivery_mode FROM named
), standing AS (
  SELECT {_STANDING}, true AS occupies FROM keys k JOIN occupancies o ON o.space_id = :space
    AND o.kind = 'create_task' AND o.target = k.target AND o.delivery_mode = k.delivery_mode
  JOIN tasks t ON t.space_id = o.space_id AND t.id = o.task_id
  UNION ALL
  SELECT l.*, false FROM keys k CROSS JOIN LATERAL (
    SELECT {_STANDING} FROM tasks t WHERE t.space_id = :space AND t.held AND t.target = k.target
    AND t.delivery_mode = k.delivery_mode ORDER BY t.id LIMIT :line) AS l
  UNION ALL
  SELECT l.*, false FROM named k CROSS JOIN LATERAL (
    SELECT {_STANDING} FROM tasks t WHERE t.space_id = :space AND t.target = k.target AND {LIVE_SQL}
    AND t.delivery_mode = k.delivery_mode ORDER BY t.created_at, t.id LIMIT :line) AS l
)
SELECT
  (SELECT coalesce(json_agg(w), '[]') FROM (SELECT * FROM wanted UNION SELECT * FROM expired) AS w)::text AS tasks,
  (SELECT coalesce(array_agg(e.id ORDER BY e.claimed_at, e.id), '{{}}') FROM expired e) AS expired,
  (SELECT coalesce(json_agg(p), '[]') FROM pointers AS p)::text AS pointers,
  (SELECT coalesce(json_agg(s), '[]') FROM standing AS s)::text AS standings,
  (SELECT coalesce(json_agg(n), '[]') FROM notes AS n WHERE n.space_id = :space AND n.id = ANY(:notes))::text AS notes,
  (SELECT coalesce(json_agg(json_build_object('target', o.target, 'delivery_mode', o.delivery_mode,
          'note_id', o.note_id)), '[]')
   FROM json_to_recordset(CAST(:note_keys AS json)) AS k(target text, delivery_mode text)
   JOIN occupancies o ON o.space_id = :space AND o.kind = 'post_review_note' AND o.target = k.target
     AND o.delivery_mode = k.delivery_mode)::text AS note_occupants,
  (SELECT coalesce(json_agg(json_build_object('id', a.id, 'handle', a.handle, 'active', a.active, 'role', m.role,
          'since', m.since)), '[]')
   FROM agents a LEFT JOIN members m ON m.space_id = :space AND m.agent_id = a.id
   WHERE a.id = ANY(:agents))::text AS agents,
  (SELECT coalesce(array_agg(m.agent_id), '{{}}') FROM members m
   WHERE m.space_id = :space AND m.role = 'steward' AND cardinality(CAST(:agents AS text[])) > 0) AS stewards
""")  # noqa: S608 - the only interpolations are constants

LIVE_TASKS_JSON: Final = (
    "coalesce(json_agg(json_build_object('id', t.id, 'title', t.title, 'target', t.target, "
    "'delivery_mode', t.delivery_mode, "
    "'requested', CASE WHEN t.bind ->> 'provenance' = 'request' THEN t.work_item_id END) ORDER BY t.id), '[]')::text"
)
"""Live tasks as another charter would bind them, for :func:`decode_live`."""

_LIVE = text(
    f"SELECT {LIVE_TASKS_JSON} FROM tasks t JOIN spaces s ON s.id = t.space_id WHERE s.slug = :slug AND {LIVE_SQL}"  # noqa: S608 - constants
)


def load_part(connection: Connection, space: SpaceState, needs: Needs, now: datetime) -> BoardPart:
    """Load what a window's intents name or touch; a new charter takes one statement more, for the live tasks."""
    row = connection.execute(
        _PART,
        {
            "space": space.id,
            "keys": _keys(needs.keys),
            "note_keys": _keys(needs.note_keys),
            "tasks": list(needs.tasks),
            "notes": list(needs.notes),
            "agents": list(needs.agents),
            "line": needs.intents + 1,
            "expired_at": None if space.claim_ttl is None else now - space.claim_ttl,
            "expired_max": EXPIRED_MAX,
        },
    ).one()
    standings = _standings.decode(row.standings)
    notes = {note.id: note for note in decode_notes(row.notes, space.slug)}
    return BoardPart(
        tasks={stored.task.id: stored for stored in decode_tasks(row.tasks, space.slug)},
        survivors={found["id"]: found["superseded_by"] for found in msgspec.json.decode(row.pointers)},
        occupants={found.key: found.id for found in standings if found.occupies},
        standings=tuple(
            Standing(
                key=found.key,
                task_id=found.id,
                status=found.status,
                created_by=found.created_by,
                created_at=found.created_at,
                held=found.held,
            )
            for found in standings
        ),
        expired=tuple(row.expired),
        notes=notes,
        note_occupants={
            ConflictKey(
                kind=Kind.POST_REVIEW_NOTE, target=found.target, delivery_mode=found.delivery_mode
            ): found.note_id
            for found in _note_occupants.decode(row.note_occupants)
        }
        | {note.conflict_key: note.id for note in notes.values() if note.status is NoteStatus.POSTED},
        agents={
            found.id: AgentState(handle=found.handle, active=found.active, role=found.role, since=found.since)
            for found in _agents.decode(row.agents)
        },
        stewards=frozenset(row.stewards),
        live=live_tasks(connection, space.slug) if needs.live else (),
    )


def decode_tasks(document: str, slug: str) -> list[StoredTask]:
    """Return tasks from the JSON of their rows."""
    return [row.stored(slug) for row in _tasks.decode(document)]


def decode_notes(document: str, slug: str) -> list[Note]:
    """Return notes from the JSON of their rows."""
    return [row.note(slug) for row in _notes.decode(document)]


def live_tasks(connection: Connection, slug: str) -> tuple[LiveTask, ...]:
    """Return a space's live tasks as a new charter would bind them."""
    return decode_live(connection.execute(_LIVE, {"slug": slug}).scalar_one())


def decode_live(document: str) -> tuple[LiveTask, ...]:
    """Return live tasks from ``LIVE_TASKS_JSON``."""
    return tuple(
        LiveTask(
            id=row.id,
            title=row.title,
            requested=row.requested,
            conflict_key=ConflictKey(kind=Kind.CREATE_TASK, target=row.target, delivery_mode=row.delivery_mode),
        )
        for row in _live.decode(document)
    )


def _keys(keys: tuple[ConflictKey, ...]) -> str:
    return msgspec.json.encode(keys).decode()
