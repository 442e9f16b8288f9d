"""What is over: windows and their memory after 30 days, payloads of the exchange after their retention.

No row of the exchange ever goes. Contract 1.1 and 2.4; Seed 004.
"""

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


REQUEST_BATCH: Final = 25
"""Objects of the exchange that one request clears."""

_DUE: Final = (
    "(SELECT count(*) FROM work_opportunities WHERE terms IS NOT NULL AND retention_until <= dibs_now()) + "
    "(SELECT count(*) FROM work_proposals WHERE (terms IS NOT NULL OR delivery IS NOT NULL OR decision IS NOT NULL) "
    "AND retention_until <= dibs_now())"
)


def purge_statement(batch: int) -> str:
    """Return the statement that clears payloads of up to ``batch`` objects, opportunities first, and counts them.

    Under the lock the condition is tested again, so what another has cleared or changed meanwhile is left out; what
    someone holds is left to the next purge.
    """
    return f"""
WITH due_work AS (
  SELECT id FROM work_opportunities WHERE terms IS NOT NULL AND retention_until <= dibs_now()
  ORDER BY retention_until, id LIMIT {batch:d} FOR UPDATE SKIP LOCKED
), due_proposals AS (
  SELECT id FROM work_proposals WHERE (terms IS NOT NULL OR delivery IS NOT NULL OR decision IS NOT NULL)
    AND retention_until <= dibs_now()
  ORDER BY retention_until, id LIMIT {batch:d} - (SELECT count(*) FROM due_work) FOR UPDATE SKIP LOCKED
), cleared AS (
  UPDATE work_opportunities SET terms = NULL WHERE id IN (SELECT id FROM due_work) RETURNING 1
), emptied AS (
  UPDATE work_proposals SET terms = NULL, delivery = NULL, decision = NULL
  WHERE id IN (SELECT id FROM due_proposals) RETURNING 1
)
SELECT (SELECT count(*) FROM cleared) + (SELECT count(*) FROM emptied)
"""  # noqa: S608 - a number


def due_payloads(connection: Connection) -> int:
    """Return how many objects of the exchange have payloads whose retention is over."""
    return int(connection.execute(text(f"SELECT {_DUE}")).scalar_one())


def purge_payloads(connection: Connection, batch: int = BATCH) -> int:
    """Clear payloads of the exchange whose retention is over and return of how many objects."""
    return int(connection.execute(text(purge_statement(batch))).scalar_one())
