"""The service's mode as operators set it, with who, why and when. Contract 4.

A change takes the lock that every deciding transaction shares: when it has committed, nothing that was decided with the
old mode can commit any more. So "drained" needs no waiting for effects, only for processes to have heard of it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy import Connection, text

from models.rules.spaces import Mode
from models.store.database import exclude_mode, share_locks


class ModeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the mode, or the mode as it was made (epoch 1, by nobody)."""

    mode: Mode
    epoch: int
    reason: str | None = None
    actor: str | None = None
    at: datetime | None = None


class DrainedError(ValueError):
    """Something fresh was asked for while the service drains."""


_READ: Final = text(
    "SELECT m.mode, m.epoch, c.reason, c.actor, c.at FROM work_mode m LEFT JOIN work_mode_changes c USING (epoch)"
)
_SET: Final = text("""
WITH changed AS (UPDATE work_mode SET mode = :mode, epoch = epoch + 1 RETURNING epoch)
INSERT INTO work_mode_changes (epoch, mode, reason, actor, at)
SELECT epoch, :mode, :reason, :actor, dibs_now() FROM changed
""")
_HISTORY: Final = text("SELECT mode, epoch, reason, actor, at FROM work_mode_changes ORDER BY epoch DESC LIMIT :limit")


def read_mode(connection: Connection) -> ModeChange:
    """Return the mode with its last change."""
    row = connection.execute(_READ).mappings().one()
    return msgspec.convert(dict(row), ModeChange)


def set_mode(connection: Connection, mode: Mode, *, reason: str, actor: str) -> ModeChange:
    """Set the mode, also to what it is already: every change has an epoch of its own."""
    exclude_mode(connection)
    connection.execute(_SET, {"mode": mode.value, "reason": reason, "actor": actor})
    return read_mode(connection)


def mode_history(connection: Connection, limit: int) -> list[ModeChange]:
    """Return the last changes, the latest first."""
    return [msgspec.convert(dict(row), ModeChange) for row in connection.execute(_HISTORY, {"limit": limit}).mappings()]


def refuse_in_drain(connection: Connection) -> None:
    """Return if something fresh may be made in this transaction; the mode cannot change until it ends.

    Raises:
        DrainedError: the service drains.
    """
    share_locks(connection)
    if read_mode(connection).mode is Mode.DRAIN:
        raise DrainedError("the service drains: dibs mode active ends that")
