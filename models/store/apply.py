"""Writing a plan: a fixed number of set-based statements, whatever the window's size. Contract 1.1, step (f)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from models.rules.plan import NoteRow, OccupancyRow, Plan, TaskRow
from models.store.exchange import write_exchange
from models.store.spaces import insert_spaces, write_catalog, write_members


class ContendedError(Exception):
    """A row that the decision took for free was there: something wrote below the partition's lock.

    The transaction is to be rolled back and decided again, which then sees the row and refuses with its winner.
    """


_TASK_COLUMNS: Final = (
    "id, title, body, work_item_id, bind, kind, target, delivery_mode, validation_policy, status, created_by, holder, "
    "assigned_to, claimed_at, superseded_by, held, revision, received_seq, window_id, created_at, updated_at, ended_at"
)
_NOTE_COLUMNS: Final = (
    "id, task_id, kind, body, criterion_index, delivery_mode, status, target, created_by, received_seq, window_id, "
    "created_at, updated_at"
)

# The occupancy of a key is updated, not deleted and inserted: within one statement neither would see the other.
_EFFECTS = text(f"""
WITH rows AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(:tasks AS json)) AS r(
    id bigint, title text, body text, work_item_id text, bind jsonb, kind text, target text, delivery_mode text,
    validation_policy text, status text, created_by text, holder text, assigned_to text, claimed_at timestamptz,
    superseded_by bigint, held boolean, revision integer, received_seq bigint, window_id uuid,
    created_at timestamptz, updated_at timestamptz, ended_at timestamptz, was integer)
), passed AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(:occupancies AS json)) AS r(
    kind text, target text, delivery_mode text, task_before bigint, note_before bigint, task_id bigint, note_id bigint)
), said AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(:notes AS json)) AS r(
    id bigint, task_id bigint, kind text, body text, criterion_index smallint, delivery_mode text, status text,
    target text, created_by text, received_seq bigint, window_id uuid, created_at timestamptz,
    updated_at timestamptz, new boolean)
), made AS (
  INSERT INTO tasks (space_id, {_TASK_COLUMNS}) SELECT :space, {_TASK_COLUMNS} FROM rows WHERE was IS NULL
), changed AS (
  UPDATE tasks t SET status = r.status, holder = r.holder, assigned_to = r.assigned_to, claimed_at = r.claimed_at,
    superseded_by = r.superseded_by, held = r.held, revision = r.revision, updated_at = r.updated_at,
    ended_at = r.ended_at
  FROM rows r WHERE t.space_id = :space AND t.id = r.id AND t.revision = r.was RETURNING 1
), noted AS (
  INSERT INTO notes (space_id, {_NOTE_COLUMNS}) SELECT :space, {_NOTE_COLUMNS} FROM said WHERE new
), withdrawn AS (
  UPDATE notes n SET status = s.status, updated_at = s.updated_at
  FROM said s WHERE n.space_id = :space AND n.id = s.id AND NOT s.new
), taken AS (
  INSERT INTO occupancies (space_id, kind, target, delivery_mode, task_id, note_id)
  SELECT :space, kind, target, delivery_mode, task_id, note_id FROM passed
  WHERE task_before IS NULL AND task_id IS NOT NULL
  ON CONFLICT DO NOTHING RETURNING 1
), handed AS (
  UPDATE occupancies o SET task_id = p.task_id, note_id = p.note_id FROM passed p
  WHERE o.space_id = :space AND o.kind = p.kind AND o.target = p.target AND o.delivery_mode = p.delivery_mode
    AND o.task_id = p.task_before AND o.note_id IS NOT DISTINCT FROM p.note_before AND p.task_id IS NOT NULL
  RETURNING 1
), freed AS (
  DELETE FROM occupancies o USING passed p
  WHERE o.space_id = :space AND o.kind = p.kind AND o.target = p.target AND o.delivery_mode = p.delivery_mode
    AND o.task_id = p.task_before AND o.note_id IS NOT DISTINCT FROM p.note_before AND p.task_id IS NULL
  RETURNING 1
), told AS (
  INSERT INTO events (space_id, number, type, at, actor, task_id, data)
  SELECT :space, number, type, at, actor, task_id, data::json FROM json_to_recordset(CAST(:events AS json)) AS r(
    number bigint, type text, at timestamptz, actor text, task_id bigint, data text)
), recorded AS (
  INSERT INTO leftover_close_events (space_id, at, event, actor, leftover_task, surviving_task, reason, code,
    proposal_id)
  SELECT :space, :now, CASE WHEN code IS NULL THEN 'task_superseded' ELSE 'task_supersede_denied' END, actor,
    leftover_task, surviving_task, reason, code, proposal_id
  FROM ROWS FROM (json_to_recordset(CAST(:audits AS json)) AS (
    actor text, leftover_task bigint, surviving_task bigint, reason text, code text, proposal_id uuid))
    WITH ORDINALITY AS r(actor, leftover_task, surviving_task, reason, code, proposal_id, n) ORDER BY n
)
SELECT (SELECT count(*) FROM changed) AS changed, (SELECT count(*) FROM taken) AS taken,
  (SELECT count(*) FROM handed) AS handed, (SELECT count(*) FROM freed) AS freed
""")  # noqa: S608 - the only interpolations are constants

_LEDGER = text("""
WITH decided AS (
  INSERT INTO outcomes (append_id, position, batch, window_id, partition, place, received_seq, kind, actor, status,
    code, body, replay_of, task_id, key, reservation, payload, decided_at)
  SELECT append_id, position, batch, :window, :partition, place, received_seq, kind, actor, status,
    code, body, replay_of, task_id, key, reservation, payload::json, :now
  FROM json_to_recordset(CAST(:outcomes AS json)) AS r(
    append_id uuid, position smallint, batch boolean, place integer, received_seq bigint, kind text, actor text,
    status smallint, code text, body text, replay_of uuid, task_id bigint, key json, reservation text,
    payload text)
), closed AS (
  INSERT INTO windows (id, partition, fence, epoch, first_seq, last_seq, intents, committed_at)
  -- A rerun that found everything decided records nothing; the second part of a halved window extends the row.
  SELECT :window, :partition, :fence, :epoch, :first_seq, :last_seq, :intents, :now WHERE :intents > 0
  ON CONFLICT (id) DO UPDATE SET last_seq = excluded.last_seq, intents = windows.intents + excluded.intents,
    committed_at = excluded.committed_at
), counted AS (
  UPDATE spaces SET next_task = next_task + :tasks, next_event = next_event + :events,
    next_note = next_note + :notes WHERE id = :space
), kept AS (
  INSERT INTO idempotency (slot, secret_id, request, append_id, created_at)
  SELECT decode(slot, 'hex'), secret_id, decode(request, 'hex'), append_id, :now
  FROM json_to_recordset(CAST(:slots AS json)) AS r(slot text, secret_id text, request text, append_id uuid)
  ON CONFLICT DO NOTHING RETURNING 1
)
UPDATE partitions SET last_seq = greatest(last_seq, :last_seq), last_at = :now WHERE name = :partition
RETURNING (SELECT count(*) FROM kept)
""")


class WindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger records of the window itself; the numbers are those of what is decided now, 0 for nothing."""

    id: UUID
    partition: str
    fence: int
    epoch: int
    first_seq: int
    last_seq: int


def apply(
    connection: Connection,
    plan: Plan,
    window: WindowRow,
    *,
    space_id: int | None,
    now: datetime,
    reserved: Collection[tuple[UUID, int]],
) -> None:
    """Write a plan's effects and its outcomes; ``reserved`` names the proposals whose reservation was held.

    Raises:
        ContendedError: an occupancy, a slug, a key or an object was taken or changed below the partition's lock.
    """
    if space_id is not None and (plan.tasks or plan.events or plan.audits):
        _write_effects(connection, plan, space_id=space_id, now=now)
    if space_id is not None and plan.members:
        write_members(connection, space_id, plan.members)
    if space_id is not None and plan.catalog is not None:
        write_catalog(connection, space_id, plan.catalog)
    if not write_exchange(connection, plan.work, now=now):
        raise ContendedError
    if plan.spaces and insert_spaces(connection, plan.spaces) != len(plan.spaces):
        raise ContendedError
    kept = connection.execute(
        _LEDGER,
        {
            "window": window.id,
            "partition": window.partition,
            "fence": window.fence,
            "epoch": window.epoch,
            "first_seq": window.first_seq,
            "last_seq": window.last_seq,
            "intents": len(plan.fresh),
            "now": now,
            "tasks": sum(row.was is None for row in plan.tasks),
            "events": len(plan.events),
            "notes": sum(row.new for row in plan.notes),
            "space": space_id,
            "outcomes": _json(
                [
                    {
                        "append_id": outcome.append_id,
                        "position": outcome.position,
                        "batch": outcome.batch,
                        "place": outcome.place,
                        "received_seq": outcome.received_seq,
                        "kind": outcome.kind,
                        "actor": outcome.actor,
                        "status": outcome.answer.status,
                        "code": outcome.answer.code,
                        "body": outcome.answer.body,
                        "replay_of": outcome.answer.replay_of,
                        "task_id": outcome.answer.task_id,
                        "key": outcome.key,
                        "reservation": "own" if (outcome.append_id, outcome.position) in reserved else "none",
                        "payload": outcome.payload,
                    }
                    for outcome in plan.fresh
                ]
            ),
            "slots": _json(
                [
                    {
                        "slot": row.digest.slot.hex(),
                        "secret_id": row.digest.secret_id,
                        "request": row.digest.request.hex(),
                        "append_id": row.append_id,
                    }
                    for row in plan.slots
                ]
            ),
        },
    ).scalar_one()
    if kept != len(plan.slots):
        raise ContendedError


def _write_effects(connection: Connection, plan: Plan, *, space_id: int, now: datetime) -> None:
    row = connection.execute(
        _EFFECTS,
        {
            "space": space_id,
            "now": now,
            "tasks": _json([_task_record(one) for one in plan.tasks]),
            "occupancies": _json([_occupancy_record(one) for one in plan.occupancies]),
            "notes": _json([_note_record(one) for one in plan.notes]),
            "events": _json(plan.events),
            "audits": _json(plan.audits),
        },
    ).one()
    counts = (
        sum(one.was is not None for one in plan.tasks),
        sum(one.before is None for one in plan.occupancies),
        sum(one.before is not None and one.after is not None for one in plan.occupancies),
        sum(one.after is None for one in plan.occupancies),
    )
    if counts != (row.changed, row.taken, row.handed, row.freed):
        raise ContendedError


def import_rows(connection: Connection, plan: Plan, *, space_id: int, now: datetime) -> None:
    """Write the tasks, notes, occupancies and events of a board file.

    Raises:
        ContendedError: two tasks were said to occupy one key.
    """
    _write_effects(connection, plan, space_id=space_id, now=now)


def _task_record(row: TaskRow) -> dict[str, Any]:
    fields = msgspec.structs.asdict(row.task)
    key = fields.pop("conflict_key")
    del fields["space"]
    return {**fields, "kind": key.kind, "target": key.target, "ended_at": row.ended_at, "was": row.was}


def _note_record(row: NoteRow) -> dict[str, Any]:
    fields = msgspec.structs.asdict(row.note)
    key = fields.pop("conflict_key")
    del fields["space"]
    return {**fields, "target": key.target, "new": row.new}


def _occupancy_record(row: OccupancyRow) -> dict[str, Any]:
    return {
        "kind": row.key.kind,
        "target": row.key.target,
        "delivery_mode": row.key.delivery_mode,
        "task_before": row.before and row.before.task_id,
        "note_before": row.before and row.before.note_id,
        "task_id": row.after and row.after.task_id,
        "note_id": row.after and row.after.note_id,
    }


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
