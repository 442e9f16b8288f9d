"""Writing a plan: a fixed number of set-based statements, whatever the window's size. Contract 1.1, step (f)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from models.rules.tasks import Task
from models.rules.window import Plan


class ContendedError(Exception):
    """A row that the decision took for free was there: something wrote below the partition's lock.

    The transaction is to be rolled back and decided again, which then sees the row and refuses with its winner.
    """


_EFFECTS = text("""
WITH rows AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(:tasks AS json)) AS r(
    id bigint, title text, body text, work_item_id text, bind jsonb, kind text, target text, delivery_mode text,
    validation_policy text, status text, created_by text, holder text, assigned_to text, claimed_at timestamptz,
    superseded_by bigint, held boolean, revision integer, received_seq bigint, window_id uuid,
    created_at timestamptz, updated_at timestamptz, occupies boolean)
), made AS (
  INSERT INTO tasks (space_id, id, title, body, work_item_id, bind, kind, target, delivery_mode, validation_policy,
    status, created_by, holder, assigned_to, claimed_at, superseded_by, held, revision, received_seq, window_id,
    created_at, updated_at)
  SELECT :space, id, title, body, work_item_id, bind, kind, target, delivery_mode, validation_policy,
    status, created_by, holder, assigned_to, claimed_at, superseded_by, held, revision, received_seq, window_id,
    created_at, updated_at FROM rows
), taken AS (
  INSERT INTO occupancies (space_id, kind, target, delivery_mode, task_id)
  SELECT :space, kind, target, delivery_mode, id FROM rows WHERE occupies
  ON CONFLICT DO NOTHING RETURNING 1
), told AS (
  INSERT INTO events (space_id, number, type, at, actor, task_id, data)
  SELECT :space, number, type, at, actor, task_id, data::json FROM json_to_recordset(CAST(:events AS json)) AS r(
    number bigint, type text, at timestamptz, actor text, task_id bigint, data text)
), kept AS (
  INSERT INTO idempotency (slot, secret_id, request, append_id, created_at)
  SELECT decode(slot, 'hex'), secret_id, decode(request, 'hex'), append_id, :now
  FROM json_to_recordset(CAST(:slots AS json)) AS r(slot text, secret_id text, request text, append_id uuid)
  ON CONFLICT DO NOTHING RETURNING 1
)
SELECT (SELECT count(*) FROM taken) AS taken, (SELECT count(*) FROM kept) AS kept
""")

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
  UPDATE spaces SET next_task = next_task + :tasks, next_event = next_event + :events WHERE id = :space
)
UPDATE partitions SET last_seq = greatest(last_seq, :last_seq), last_at = :now WHERE name = :partition
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
        ContendedError: an occupancy or an idempotency slot was taken below the partition's lock.
    """
    if space_id is not None:
        effects = connection.execute(
            _EFFECTS,
            {
                "space": space_id,
                "now": now,
                "tasks": _json([task_row(task, occupies=True) for task in plan.tasks]),
                "events": _json(plan.events),
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
        ).one()
        if effects.taken != len(plan.tasks) or effects.kept != len(plan.slots):
            raise ContendedError
    connection.execute(
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
            "tasks": len(plan.tasks),
            "events": len(plan.events),
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
        },
    )


def import_tasks(connection: Connection, space_id: int, tasks: list[tuple[Task, bool]], now: datetime) -> None:
    """Write tasks of a board file, each with whether it holds its key's occupancy.

    Raises:
        ContendedError: two tasks were said to occupy one key.
    """
    row = connection.execute(
        _EFFECTS,
        {
            "space": space_id,
            "now": now,
            "tasks": _json([task_row(task, occupies=occupies) for task, occupies in tasks]),
            "events": "[]",
            "slots": "[]",
        },
    ).one()
    if row.taken != sum(occupies for _, occupies in tasks):
        raise ContendedError


def task_row(task: Task, *, occupies: bool) -> dict[str, Any]:
    """Return a task as a record of the set-based insert."""
    fields = msgspec.structs.asdict(task)
    key = fields.pop("conflict_key")
    del fields["space"]
    return {**fields, "kind": key.kind, "target": key.target, "occupies": occupies}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
