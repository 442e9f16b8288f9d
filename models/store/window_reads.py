"""A window as it was decided, for the command line. Contract 8."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from sqlalchemy import Connection, text

from models.rules.intents import slug_of
from models.rules.windows import ExplainedWindow, WindowView, explain
from models.store.agents import UnknownError
from models.store.snapshot import OUTCOME_JSON, decode_outcomes

_WINDOW: Final = text(f"""
SELECT w.id, w.partition, w.first_seq, w.last_seq, w.intents, w.committed_at,
  (SELECT coalesce(json_agg({OUTCOME_JSON}), '[]') FROM outcomes o WHERE o.window_id = w.id)::text AS outcomes,
  (SELECT coalesce(array_agg(o.place), '{{}}') FROM outcomes o
   WHERE o.window_id = w.id AND o.reservation = 'own') AS reserved
FROM windows w WHERE w.id = :window
""")  # noqa: S608 - the only interpolation is a constant


def explained(connection: Connection, window_id: str) -> ExplainedWindow:
    """Return a window with its intents in the order in which they were decided.

    Raises:
        UnknownError: there is no such window, or none any more after 30 days.
    """
    try:
        wanted = UUID(window_id)
    except ValueError:
        raise UnknownError(f"{window_id!r} is no window's id") from None
    row = connection.execute(_WINDOW, {"window": wanted}).one_or_none()
    if row is None:
        raise UnknownError(f"there is no window {wanted}")
    view = WindowView(
        id=str(row.id),
        first_seq=row.first_seq,
        last_seq=row.last_seq,
        intents=row.intents,
        committed_at=row.committed_at,
    )
    outcomes = [outcome for several in decode_outcomes(row.outcomes).values() for outcome in several]
    return explain(view, outcomes, space=slug_of(row.partition), reserved=row.reserved)
