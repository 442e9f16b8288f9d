"""Who is asking and what they may see: a cache of identity that forgets within a second of any change.

Every change that takes something away from an agent, a key or a member raises one number in SQL. A watcher reads it
twice a second and clears the cache when it differs; when it could not be read for a second, nothing cached counts.
Contract, section 5.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

import structlog
from psycopg import Error
from psycopg_pool import PoolTimeout

from models.rules.codes import Code
from models.rules.spaces import Mode, Role, Visibility
from models.store import reads
from models.store.reads import Principal, Space
from web.coalesce import Coalescer
from web.problems import Refusal
from web.sql import Sql

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

WATCH_SECONDS: Final = 0.4
STALE_SECONDS: Final = 0.9
_CACHED: Final = 20_000
_SHAPE: Final = re.compile(r"dibs_([a-z0-9]{8})_[A-Za-z0-9_-]{43}\Z")
_NOBODY: Final = hashlib.sha256(b"").digest()
log = structlog.get_logger(__name__)


class Directory:
    """Principals, spaces and roles, read in batches and cached while the watcher says that they stand."""

    def __init__(self, sql: Sql, floor: Mode = Mode.ACTIVE) -> None:
        self._sql = sql
        self._floor = floor
        self._state: reads.State | None = None
        self._seen_at = float("-inf")
        self._looked = asyncio.Event()
        # A key that is unknown stays so, and is told as fast as a wrong one; a space or a role may come at any moment.
        self._principals = _Cache(self._batch(reads.principals), keep_absence=True)
        self._spaces = _Cache(self._batch(reads.spaces))
        self._roles = _Cache(self._batch(reads.roles))

    async def authenticate(self, key: str | None) -> Principal:
        """Return the principal of a bearer key.

        Raises:
            Refusal: ``authentication_required`` without a key, ``credential_invalid`` for one that is malformed,
                unknown, wrong, expired or revoked.
        """
        if key is None:
            raise Refusal(Code.AUTHENTICATION_REQUIRED)
        match = _SHAPE.match(key)
        if match is None:
            raise Refusal(Code.CREDENTIAL_INVALID)
        self._check_fresh()
        principal = await self._principals.get(match[1])
        # An unknown key takes the same steps as a wrong one.
        stored = principal.secret_sha256 if principal else _NOBODY
        right = hmac.compare_digest(stored, hashlib.sha256(key.encode()).digest())
        if not right or principal is None or principal.revoked or _is_over(principal.expires_at):
            raise Refusal(Code.CREDENTIAL_INVALID)
        return principal

    async def authenticate_optional(self, key: str | None) -> Principal | None:
        """Return the principal of a key that was sent, None without one; a wrong one is not overlooked.

        Raises:
            Refusal: ``credential_invalid``.
        """
        return None if key is None else await self.authenticate(key)

    async def space(self, slug: str, principal: Principal | None) -> Space:
        """Return a space that the principal may read.

        Raises:
            Refusal: ``space_not_found`` where there is none, or none for this principal: the same answer.
        """
        self._check_fresh()
        found = await self._spaces.get(slug)
        if found is None or (
            found.visibility is Visibility.MEMBERS and (principal is None or await self.role(found, principal) is None)
        ):
            raise Refusal(Code.SPACE_NOT_FOUND)
        return found

    async def role(self, space: Space, principal: Principal) -> Role | None:
        """Return the principal's role in a space."""
        self._check_fresh()
        return await self._roles.get((space.id, principal.agent_id))

    async def role_now(self, space: Space, principal: Principal) -> Role | None:
        """Return the principal's role, asked for again where the known one may be less than what was just given."""
        known = await self.role(space, principal)
        if known is Role.STEWARD:
            return known
        place = (space.id, principal.agent_id)
        async with self._sql.connection() as connection:
            return (await reads.roles(connection, [place])).get(place)

    def mode(self) -> Mode:
        """Return the mode; what cannot be known counts as an outage.

        Raises:
            Refusal: ``commons_runtime_unavailable``.
        """
        self._check_fresh()
        if self._state is None:
            # The last look failed, though the one before is not a second old.
            raise Refusal(Code.COMMONS_RUNTIME_UNAVAILABLE, write_occurred=False)
        return Mode.DRAIN if self._floor is Mode.DRAIN else self._state.mode

    @property
    def mode_epoch(self) -> int:
        """The mode's epoch as this process has seen it, 0 before the first look."""
        return 0 if self._state is None else self._state.mode_epoch

    @property
    def fresh(self) -> bool:
        """Whether SQL was heard from within the last second."""
        return asyncio.get_running_loop().time() - self._seen_at < STALE_SECONDS

    def _check_fresh(self) -> None:
        if not self.fresh:
            raise Refusal(Code.COMMONS_RUNTIME_UNAVAILABLE, write_occurred=False)

    async def watch(self) -> None:
        """Follow authority's epoch until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                async with self._sql.connection(wait_seconds=STALE_SECONDS) as connection:
                    found = await reads.state(connection)
            except (Error, PoolTimeout) as error:
                if self._state is not None:
                    log.warning("sql_unreachable", kind=type(error).__name__)
                self._state = None
            else:
                if self._state is None or found.authority_epoch != self._state.authority_epoch:
                    for cache in (self._principals, self._spaces, self._roles):
                        cache.clear()
                self._state = found
                # What was read is as old as the moment it was asked for.
                self._seen_at = started
            self._looked.set()
            await asyncio.sleep(WATCH_SECONDS)

    async def wait_first_look(self) -> None:
        """Return when the watcher has looked once, found what it may, or when it takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * STALE_SECONDS):
                await self._looked.wait()

    def _batch(
        self, read: Callable[[reads.Connection, Sequence[Key]], Awaitable[dict[Key, Value]]]
    ) -> Callable[[list[Key]], Awaitable[list[Value | None]]]:
        async def call(keys: list[Key]) -> list[Value | None]:
            async with self._sql.connection() as connection:
                found = await read(connection, keys)
            return [found.get(key) for key in keys]

        return call


class _Cache(Generic[Key, Value]):
    """Answers by key, bounded in number; emptied as a whole."""

    def __init__(
        self, call: Callable[[list[Key]], Awaitable[list[Value | None]]], *, keep_absence: bool = False
    ) -> None:
        self._ask = Coalescer(call)
        self._keep_absence = keep_absence
        self._known: dict[Key, Value | None] = {}
        self._generation = 0

    def clear(self) -> None:
        self._known = {}
        self._generation += 1

    async def get(self, key: Key) -> Value | None:
        if key in self._known:
            return self._known[key]
        generation = self._generation
        found = await self._ask(key)
        # An answer that was asked for before a change may be from before it: it is used once and not kept.
        if generation == self._generation and (found is not None or self._keep_absence):
            if len(self._known) >= _CACHED:
                self._known = {}
            self._known[key] = found
        return found


def _is_over(expires_at: datetime | None) -> bool:
    return expires_at is not None and expires_at <= datetime.now(UTC)
