"""What may go wrong with a command, as one line for whoever ran it and an exit status. Contract 8."""

from __future__ import annotations

from typing import Final

import msgspec
import psycopg
from psycopg import errors
from redis import RedisError
from sqlalchemy.exc import DBAPIError

from deploy.folders import DeployError
from models.settings import SettingsError
from models.store.agents import TakenError, UnknownError
from models.store.mode import DrainedError
from models.store.spaces import LastStewardError

REFUSED: Final = 1
USAGE: Final = 2
_LINE_CHARACTERS: Final = 600


class Explained(msgspec.Struct, frozen=True):
    """One line and the exit status that goes with it."""

    line: str
    status: int = REFUSED


def explain(error: Exception) -> Explained | None:
    """Return what to say of an error that is nobody's bug; None for any other, which deserves its traceback."""
    line: str | None = None
    status = REFUSED
    match error:
        case SettingsError():
            line, status = str(error), USAGE
        case DeployError() | TakenError() | UnknownError() | LastStewardError() | DrainedError():
            line = str(error)
        case DBAPIError(orig=psycopg.Error() as cause):
            line = _database(cause)
        case psycopg.Error():
            line = _database(error)
        case RedisError():
            line = f"Redis is out of reach or refuses: {_first_line(error)}"
        case OSError():
            line = _first_line(error)
        case _:
            pass
    return None if line is None else Explained(line, status)


def one_line(text: str) -> str:
    """Return a text as one line of bounded length that moves no cursor, whoever wrote the parts of it."""
    line = " ".join(text.split())
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    return shown if len(shown) <= _LINE_CHARACTERS else f"{shown[:_LINE_CHARACTERS]}..."


def _database(error: psycopg.Error) -> str:
    reason = _first_line(error)
    match error:
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return f"the database did not answer in time, nothing was changed: try again ({reason})"
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.UndefinedFunction():
            return "the database has not the schema of this version: run dibs migrate"
        case errors.InsufficientPrivilege():
            return f"the database role may not do this: {reason}"
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return f"the database is out of reach: {reason}"
        case _:
            return f"the database refused: {reason}"


def _first_line(error: Exception) -> str:
    # What follows is the server's detail and context: rows' values, and for long pages of SQL.
    return next(iter(str(error).splitlines()), "") or type(error).__name__
