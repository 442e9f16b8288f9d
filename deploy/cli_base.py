"""What the commands share: the database they speak to and how they print."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection
from sqlalchemy.exc import ArgumentError

from deploy.folders import DeployError
from deploy.postgres import SERVICE
from deploy.state import Addresses, StateFolder
from models.rules.board import HANDLE_RULE, SLUG_RULE, is_handle, is_slug
from models.store.database import admin_engine

DATABASE_URL: Final = "DIBS_DATABASE_URL"
OWNER_URL: Final = "DIBS_MIGRATE_DATABASE_URL"
SERVICE_ROLE: Final = "DIBS_SERVICE_ROLE"
DEFAULT_STATE: Final = Path(".dibs")
# Wide enough for an id beside a handle: a table in a pipe is read by grep, not by an eye.
_PIPE_COLUMNS: Final = 250


class AddressError(DeployError):
    """No database was named, or its address is malformed."""


def _checked_handle(text: str) -> str:
    if not is_handle(text):
        raise typer.BadParameter(f"a handle is {HANDLE_RULE}")
    return text


def _checked_slug(text: str) -> str:
    if not is_slug(text):
        raise typer.BadParameter(f"a slug is {SLUG_RULE}")
    return text


Handle = Annotated[str, typer.Argument(callback=_checked_handle, metavar="HANDLE", help="An agent's name.")]
Slug = Annotated[str, typer.Argument(callback=_checked_slug, metavar="SLUG", help="A space's name.")]
File = Annotated[typer.FileBinaryRead, typer.Argument(metavar="FILE", help="A JSON file; - is stdin.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
State = Annotated[
    Path,
    typer.Option(
        "--state",
        envvar="DIBS_STATE",
        help="State folder of the running stack to use where no DIBS_DATABASE_URL is set.",
    ),
]


class OwnerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How the schema is changed: its owner's address, and the role that is to use its tables, if it is another."""

    url: str
    service_role: str | None

    def __repr__(self) -> str:
        return f"OwnerAccess(service_role={self.service_role!r})"


def running_stack(state: Path) -> Addresses:
    """Return the addresses of the embedded stack that runs on a state folder.

    Raises:
        DeployError: none runs, or the folder is not one of ours.
    """
    folder = StateFolder(state)
    found = folder.running()
    if found is None:
        raise AddressError(f"{DATABASE_URL} is not set and no stack runs on {folder.path}: set it, or start dibs up")
    return found


def owner_access(state: Path) -> OwnerAccess:
    """Return how to migrate: DIBS_MIGRATE_DATABASE_URL, else DIBS_DATABASE_URL, else the running stack.

    Raises:
        DeployError: there is none of them.
    """
    url = os.environ.get(OWNER_URL) or os.environ.get(DATABASE_URL)
    if url:
        return OwnerAccess(url=url, service_role=os.environ.get(SERVICE_ROLE) or None)
    return OwnerAccess(url=running_stack(state).database_owner, service_role=SERVICE)


@contextmanager
def service_transaction(state: Path) -> Iterator[Connection]:
    """Yield a transaction on the database of DIBS_DATABASE_URL, else of the running stack; commit it at the end.

    Raises:
        DeployError: there is neither.
    """
    url = os.environ.get(DATABASE_URL) or running_stack(state).database
    with transaction(url) as connection:
        yield connection


@contextmanager
def transaction(url: str) -> Iterator[Connection]:
    """Yield a transaction on that database; commit it at the end.

    Raises:
        AddressError: the address is malformed. The message shows nothing of it: it holds a password.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("postgresql", "postgres") or parts.netloc.count("@") > 1:
            raise AddressError(_malformed())
        engine = admin_engine(url)
    except (ArgumentError, ValueError):
        raise AddressError(_malformed()) from None
    with engine.begin() as connection:
        yield connection


def _malformed() -> str:
    return (
        "the database address is not of the form postgresql://user:password@host:port/name"
        " (percent-encode what is special in a password)"
    )


def print_json(value: object) -> None:
    """Print one JSON document."""
    print_bytes(msgspec.json.encode(value) + b"\n")


def print_bytes(document: bytes) -> None:
    """Print a document as it is: JSON is UTF-8, whatever the terminal's encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(document)
    sys.stdout.buffer.flush()


def print_line(text: str) -> None:
    """Print one line."""
    sys.stdout.write(f"{text}\n")


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of the columns named; times to the second, what is absent as a dash."""
    table = Table(*(column.replace("_", " ") for column in columns), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    console = Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    console.print(table)


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}Z"
        case _:
            return str(value)
