"""Connections to PostgreSQL, with the limits that keep a stopped process from blocking its successor."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

_NAMESPACE: Final = 0x64696273
_MODE: Final = 1
_AUTHORITY: Final = 2
_CONNECT_SECONDS: Final = 3


def _parameters(application_name: str, timeout_ms: int) -> dict[str, str | int]:
    """Return connection parameters: every wait at the server ends within ``timeout_ms``, one for a lock earlier.

    A worker's timeout is below its lease: when the lease has run out, whatever its transaction held is free, so a
    take-over never waits for a process that was stopped (Contract 1.1).
    """
    return {
        "application_name": application_name,
        "connect_timeout": _CONNECT_SECONDS,
        "tcp_user_timeout": timeout_ms,
        "keepalives_idle": 1,
        "keepalives_interval": 1,
        "keepalives_count": 2,
        "options": f"-c statement_timeout={timeout_ms} -c idle_in_transaction_session_timeout={timeout_ms} "
        f"-c lock_timeout={timeout_ms * 3 // 4} -c TimeZone=UTC",
    }


def sync_engine(url: str, *, application_name: str, timeout_ms: int) -> Engine:
    """Return an engine for a process of blocking code. It opens no connection yet."""
    return create_engine(
        make_url(_scheme(url)).set(drivername="postgresql+psycopg"),
        connect_args=_parameters(application_name, timeout_ms),
        pool_size=2,
        max_overflow=2,
        hide_parameters=True,
    )


def admin_engine(url: str) -> Engine:
    """Return an engine for one command: nothing pooled, waits of up to a minute."""
    return create_engine(
        make_url(_scheme(url)).set(drivername="postgresql+psycopg"),
        connect_args=_parameters("dibs-admin", 60_000),
        poolclass=NullPool,
        hide_parameters=True,
    )


def async_pool(
    url: str, *, application_name: str, timeout_ms: int, size: int
) -> AsyncConnectionPool[AsyncConnection[TupleRow]]:
    """Return a closed pool of autocommit connections for the web process's reads."""
    return AsyncConnectionPool(
        url,
        kwargs={**_parameters(application_name, timeout_ms), "autocommit": True},
        min_size=1,
        max_size=size,
        timeout=timeout_ms / 1000,
        reconnect_timeout=float("inf"),
        open=False,
        check=None,
    )


def _scheme(url: str) -> str:
    """Return the address with the scheme SQLAlchemy knows; ``postgres://`` is what many hosts hand out."""
    return "postgresql" + url[len("postgres") :] if urlsplit(url).scheme == "postgres" else url


def sever(fileno: int) -> None:
    """End a connection that does not answer: whoever waits on it sees it broken at once.

    For the case no timeout of the server's and none of TCP's covers: something in between that still acknowledges.
    The descriptor must be open and the connection's own; the connection object stays its owner's to close.
    """
    with suppress(OSError), socket.socket(fileno=os.dup(fileno)) as twin:
        twin.shutdown(socket.SHUT_RDWR)


def share_locks(connection: Connection) -> None:
    """Take "mode" and then "authority" in share mode: neither changes until this transaction ends.

    Select-list items are evaluated left to right, so this takes them in the order every other place does.
    """
    connection.execute(_SHARE)


def exclude_writers(connection: Connection) -> None:
    """Take "authority" exclusively, after "mode": whoever decides with the old value has ended when this returns."""
    connection.execute(_EXCLUDE)


def exclude_mode(connection: Connection) -> None:
    """Take "mode" exclusively: no transaction that decides with the old mode is open when this returns."""
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_NAMESPACE}, {_MODE})"))


_SHARE = text(
    f"SELECT pg_advisory_xact_lock_shared({_NAMESPACE}, {_MODE}), "
    f"pg_advisory_xact_lock_shared({_NAMESPACE}, {_AUTHORITY})"
)
_EXCLUDE = text(
    f"SELECT pg_advisory_xact_lock_shared({_NAMESPACE}, {_MODE}), pg_advisory_xact_lock({_NAMESPACE}, {_AUTHORITY})"
)
