"""Rows whose time is over. Contract 1.1 and 2.4: windows, outcomes and the spaces' idempotency live 30 days."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import Connection, text

from models.rules.window import MEMORY

BATCH: Final = 500
_KEPT: Final = MEMORY + timedelta(days=1)
"""A day longer than an intent may be executed: its age is told by the clock of the web process that made its id."""

_PURGE = text("""
WITH due AS (
  SELECT id FROM windows WHERE committed_at < dibs_now() - CAST(:memory AS interval)
  ORDER BY committed_at LIMIT :batch FOR UPDATE SKIP LOCKED
), forgotten AS (
  DELETE FROM idempotency WHERE append_id IN (SELECT append_id FROM outcomes WHERE window_id IN (SELECT id FROM due))
), gone AS (
  DELETE FROM outcomes WHERE window_id IN (SELECT id FROM due)
)
DELETE FROM windows WHERE id IN (SELECT id FROM due)
""")


def purge_memory(connection: Connection) -> int:
    """Delete up to a batch of windows whose memory is over, with their outcomes and idempotency rows.

    Idempotency rows go with the outcomes they replay, so a key is either remembered whole or not at all.
    """
    return connection.execute(_PURGE, {"batch": BATCH, "memory": _KEPT}).rowcount
