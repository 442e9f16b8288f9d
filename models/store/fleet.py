"""Every process that serves, and whether "drained" may be said. Contract 4.

A registration is renewed twice a second. One that stopped being renewed is not forgotten: its process may still hold an
open transaction. It counts until no database session bears its name any more, or an operator says that it is gone.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec
from sqlalchemy import Connection, text

from models.rules.spaces import Mode

HEARTBEAT_SECONDS: Final = 0.5
EXPIRED: Final = timedelta(seconds=5)
"""Age of a heartbeat from which its process may be gone."""
NAME_BYTES: Final = 63
"""PostgreSQL keeps so much of an application_name."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says of itself; ``epoch`` is the mode's as it has seen it, ``windows`` those in its hands."""

    id: str
    kind: str
    host: str
    pid: int
    version: str
    floor: Mode
    epoch: int
    windows: int


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A registered process. ``expired``: its heartbeat is old; ``sessions``: database sessions that bear its name."""

    id: str
    kind: str
    host: str
    pid: int
    version: str
    floor: Mode
    epoch: int
    windows: int
    heartbeat_age_ms: int
    expired: bool
    sessions: int


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the service is drained, and what that still waits for, one line each."""

    mode: Mode
    epoch: int
    drained: bool
    waiting_for: tuple[str, ...]


# The database's own clock and not the product's: a test that holds that one still must not stop hearts.
BEAT: Final = (
    "INSERT INTO fleet (id, kind, host, pid, version, floor, epoch, windows, started_at, heartbeat_at) "
    "VALUES (:id, :kind, :host, :pid, :version, :floor, :epoch, :windows, clock_timestamp(), clock_timestamp()) "
    "ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, windows = excluded.windows, "
    "heartbeat_at = excluded.heartbeat_at"
)
GONE: Final = "DELETE FROM fleet WHERE id = :id"
_EPOCH: Final = text("SELECT epoch FROM work_mode")
_PROCESSES: Final = text("""
SELECT f.id, f.kind, f.host, f.pid, f.version, f.floor, f.epoch, f.windows,
  (extract(epoch FROM clock_timestamp() - f.heartbeat_at) * 1000)::bigint AS heartbeat_age_ms,
  f.heartbeat_at < clock_timestamp() - CAST(:expired AS interval) AS expired,
  (SELECT count(*) FROM pg_stat_activity s
   WHERE s.application_name = left('dibs-' || f.kind || '-' || f.id, :bytes) AND s.datname = current_database())
    AS sessions
FROM fleet f ORDER BY f.kind, f.id
""")
_STATE: Final = text("SELECT mode, epoch FROM work_mode")
_TIDY: Final = text("DELETE FROM fleet WHERE id = ANY(:ids)")


def beat(connection: Connection, registration: Registration) -> int:
    """Register or renew a process and return the mode's epoch, which it has then seen."""
    connection.execute(text(BEAT), parameters(registration))
    return int(connection.execute(_EPOCH).scalar_one())


def parameters(registration: Registration) -> dict[str, object]:
    """Return a registration as the statement's parameters."""
    return {**msgspec.structs.asdict(registration), "floor": registration.floor.value}


def leave(connection: Connection, process_id: str) -> bool:
    """Forget a process: at its own orderly end, or because an operator knows that it is gone; False: none."""
    return connection.execute(text(GONE), {"id": process_id}).rowcount > 0


def processes(connection: Connection) -> list[Process]:
    """Return every registered process."""
    rows = connection.execute(_PROCESSES, {"expired": EXPIRED, "bytes": NAME_BYTES}).mappings()
    return [msgspec.convert(dict(row), Process) for row in rows]


def drained(connection: Connection) -> Drained:
    """Tell whether the service is drained; registrations of processes that are surely gone are removed.

    What was decided in the old mode has ended when the mode's change had committed (:mod:`models.store.mode`). What is
    waited for here is that every process knows, and that none is unaccounted for.
    """
    row = connection.execute(_STATE).one()
    known = processes(connection)
    connection.execute(_TIDY, {"ids": [one.id for one in known if one.expired and not one.sessions]})
    waiting = tuple(
        line for one in known if (line := _open(one, row.epoch)) is not None and not (one.expired and not one.sessions)
    )
    is_drain = row.mode == Mode.DRAIN.value
    return Drained(mode=Mode(row.mode), epoch=row.epoch, drained=is_drain and not waiting, waiting_for=waiting)


def _open(one: Process, epoch: int) -> str | None:
    name = f"{one.kind} {one.id} ({one.host}, pid {one.pid})"
    if one.expired:
        return f"{name} was last heard of {one.heartbeat_age_ms // 1000} s ago and has {one.sessions} database sessions"
    if one.epoch < epoch and one.floor is not Mode.DRAIN:
        return f"{name} has not seen epoch {epoch} yet"
    return None
