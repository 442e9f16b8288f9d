"""What a failed transaction means: try again, split the window, or wait for an outage to end."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from sqlalchemy.exc import DBAPIError

from models.store.apply import ContendedError


class Fault(Enum):
    """What to do about a failure."""

    RETRY = auto()
    """Conflict with another transaction: the same again."""
    SPLIT = auto()
    """Something in the window itself: halve it until the culprit stands alone."""
    OUTAGE = auto()
    """The database, not the window: leave everything as it is; the sweeper brings it back."""


_RETRY: Final = frozenset({"40001", "40P01"})
_TOO_LONG: Final = "57014"
"""A statement ran too long. Waiting too long for a lock says nothing of the window, and being cut off while idle in a
transaction says that this process was stopped: both are left to the next run."""

_OF_THE_WINDOW: Final = ("22", "23", "54", "P0")
"""Classes that a value can cause: data, integrity, limits, raised by a trigger. All others are the server's state
(unreachable, full, read-only, unmigrated, without privilege) and no reason to fail an intent."""


def classify(error: Exception) -> Fault:
    """Return what an exception of the deciding transaction calls for."""
    if isinstance(error, ContendedError):
        return Fault.RETRY
    if not isinstance(error, DBAPIError):
        return Fault.SPLIT
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or state is None:
        # psycopg raises DataError without a state for a value that cannot be sent at all (a NUL in a text).
        return Fault.SPLIT if type(error.orig).__name__ == "DataError" else Fault.OUTAGE
    if state in _RETRY:
        return Fault.RETRY
    if state == _TOO_LONG or state[:2] in _OF_THE_WINDOW:
        return Fault.SPLIT
    return Fault.OUTAGE
