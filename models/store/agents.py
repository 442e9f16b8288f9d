"""Agents and their keys, as operators change them. Contract, section 5.

A change that takes something away holds authority's lock and raises its epoch: once it returned, every transaction
that decides sees it, and every door within a second. One that only adds needs neither.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec
from sqlalchemy import Connection, text

from models.ids import uuid7
from models.store.database import exclude_writers

_KEY_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
_PUBLIC_CHARACTERS: Final = 8


class UnknownError(LookupError):
    """Something that was named does not exist; the message says what."""


class TakenError(ValueError):
    """A name that is to be new exists already; the message says which."""


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent."""

    id: str
    handle: str
    active: bool
    listed: bool


class IssuedKey(msgspec.Struct, frozen=True):
    """A new key. ``key`` is shown this once: only its digest is stored."""

    key_id: str
    key: str


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a key, without its digest."""

    key_id: str
    operator: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


def change_authority(connection: Connection) -> None:
    """Begin a change of who may do what: call it before the first row of the transaction is touched."""
    exclude_writers(connection)
    raise_authority(connection)


def raise_authority(connection: Connection) -> None:
    """Tell every process that what it remembers of keys, agents and members no longer counts."""
    connection.execute(text("UPDATE authority SET epoch = epoch + 1"))


def add_agent(connection: Connection, handle: str, *, listed: bool = True) -> Agent:
    """Add an active agent.

    Raises:
        TakenError: the handle is another agent's.
    """
    agent_id = f"agt_{uuid7().hex}"
    row = connection.execute(
        text(
            "INSERT INTO agents (id, handle, active, listed, created_at) VALUES (:id, :handle, true, :listed, "
            "dibs_now()) ON CONFLICT (handle) DO NOTHING RETURNING id"
        ),
        {"id": agent_id, "handle": handle, "listed": listed},
    ).one_or_none()
    if row is None:
        raise TakenError(f"there is an agent {handle!r} already")
    return Agent(id=agent_id, handle=handle, active=True, listed=listed)


def ensure_agents(connection: Connection, handles: Iterable[str]) -> dict[str, Agent]:
    """Return the agents of all handles, adding those that are missing."""
    wanted = list(dict.fromkeys(handles))
    connection.execute(
        text(
            "INSERT INTO agents (id, handle, active, listed, created_at) SELECT id, handle, true, true, dibs_now() "
            "FROM unnest(CAST(:ids AS text[]), CAST(:handles AS text[])) AS n(id, handle) "
            "ON CONFLICT (handle) DO NOTHING"
        ),
        {"ids": [f"agt_{uuid7().hex}" for _ in wanted], "handles": wanted},
    )
    rows = connection.execute(
        text("SELECT id, handle, active, listed FROM agents WHERE handle = ANY(:handles)"), {"handles": wanted}
    )
    return {row.handle: Agent(id=row.id, handle=row.handle, active=row.active, listed=row.listed) for row in rows}


def list_agents(connection: Connection) -> list[Agent]:
    """Return all agents by handle."""
    rows = connection.execute(text("SELECT id, handle, active, listed FROM agents ORDER BY handle"))
    return [Agent(id=row.id, handle=row.handle, active=row.active, listed=row.listed) for row in rows]


def set_agent(connection: Connection, handle: str, *, active: bool | None = None, listed: bool | None = None) -> Agent:
    """Set whether an agent is active or listed; None leaves it as it is.

    Raises:
        UnknownError: there is no such agent.
    """
    change_authority(connection)
    row = connection.execute(
        text(
            "UPDATE agents SET active = coalesce(:active, active), listed = coalesce(:listed, listed) "
            "WHERE handle = :handle RETURNING id, handle, active, listed"
        ),
        {"handle": handle, "active": active, "listed": listed},
    ).one_or_none()
    if row is None:
        raise UnknownError(f"there is no agent {handle!r}")
    return Agent(id=row.id, handle=row.handle, active=row.active, listed=row.listed)


def issue_keys(
    connection: Connection, handles: Iterable[str], *, operator: bool = False, days: int | None = None
) -> dict[str, IssuedKey]:
    """Issue one key for each handle.

    Raises:
        UnknownError: one of the agents does not exist.
    """
    made = {handle: _fresh_key() for handle in handles}
    rows = connection.execute(
        text(
            "INSERT INTO keys (id, agent_id, secret_sha256, operator, created_at, expires_at) "
            "SELECT n.id, a.id, decode(n.digest, 'hex'), :operator, clock.now, clock.now + CAST(:life AS interval) "
            "FROM unnest(CAST(:ids AS text[]), CAST(:handles AS text[]), CAST(:digests AS text[])) "
            "AS n(id, handle, digest) JOIN agents a ON a.handle = n.handle "
            "CROSS JOIN (SELECT dibs_now() AS now OFFSET 0) AS clock RETURNING id"
        ),
        {
            "ids": [issued.key_id for issued in made.values()],
            "handles": list(made),
            "digests": [hashlib.sha256(issued.key.encode()).hexdigest() for issued in made.values()],
            "operator": operator,
            "life": None if days is None else timedelta(days=days),
        },
    ).all()
    if len(rows) != len(made):
        raise UnknownError(f"there is no agent {next(iter(made))!r}" if len(made) == 1 else "an agent does not exist")
    return made


def list_keys(connection: Connection, handle: str) -> list[KeyRow]:
    """Return an agent's keys, oldest first.

    Raises:
        UnknownError: there is no such agent.
    """
    agent = connection.execute(text("SELECT id FROM agents WHERE handle = :handle"), {"handle": handle}).one_or_none()
    if agent is None:
        raise UnknownError(f"there is no agent {handle!r}")
    rows = connection.execute(
        text(
            "SELECT id, operator, created_at, expires_at, revoked_at FROM keys WHERE agent_id = :agent "
            "ORDER BY created_at, id"
        ),
        {"agent": agent.id},
    )
    return [
        KeyRow(
            key_id=row.id,
            operator=row.operator,
            created_at=row.created_at,
            expires_at=row.expires_at,
            revoked_at=row.revoked_at,
        )
        for row in rows
    ]


def revoke_keys(connection: Connection, key_ids: Iterable[str]) -> None:
    """Revoke keys; revoking one again changes nothing. No transaction that begins later writes with them.

    One statement for all: every window waits for authority's lock meanwhile.

    Raises:
        UnknownError: one of the keys does not exist; none is revoked.
    """
    wanted = set(key_ids)
    change_authority(connection)
    rows = connection.execute(
        text("UPDATE keys SET revoked_at = coalesce(revoked_at, dibs_now()) WHERE id = ANY(:ids) RETURNING id"),
        {"ids": sorted(wanted)},
    )
    missing = wanted - {row.id for row in rows}
    if missing:
        raise UnknownError(f"there is no key {min(missing)!r}")


def _fresh_key() -> IssuedKey:
    public = "".join(secrets.choice(_KEY_ALPHABET) for _ in range(_PUBLIC_CHARACTERS))
    secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
    return IssuedKey(public, f"dibs_{public}_{secret}")
