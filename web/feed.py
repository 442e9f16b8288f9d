"""The live end of the spaces' events: one hub a process. Contract 2.7.

It asks SQL one small question a tick for all spaces that have readers, reads what is new in each of them once and
offers it to its readers, each of which has a bounded queue (:mod:`web.readers`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

import structlog
from psycopg import Error
from psycopg_pool import PoolTimeout

from models.rules.codes import Code
from models.store import feed as store
from models.store.feed import Page
from models.store.reads import Principal, Space
from web.coalesce import Coalescer
from web.directory import Directory
from web.problems import Refusal
from web.readers import Channel, Chunk, Reader, Wire, chunk
from web.sql import Sql

STOPPING: Final = "dibs.stopping"
"""Member of the lifespan's state that the server calls when it is told to stop. The server's module says the same
word itself: it lives in gunicorn's parent process, which must not hold on to this package's code over a reload.
"""

CONNECTION: Final = "dibs.connection"
"""Member of an HTTP scope: the connection as a :class:`Wire`; absent under a server that has none."""

HEARTBEAT_SECONDS: Final = 10.0
TICK_SECONDS: Final = 0.2
BURST_SECONDS: Final = 0.02
"""Pause before the next page where a space has more: time for readers to take the one before."""

RIGHTS_SECONDS: Final = 0.5
"""How often a reader's right to read is looked at, beside the half second the directory needs to learn of a change."""

PAGE_EVENTS: Final = 64
PAGE_BYTES: Final = 512 * 1024

READERS_MAX: Final = 1000
AGENT_READERS_MAX: Final = 16
ANONYMOUS_READERS_MAX: Final = 256

_CATCHING_UP: Final = 2
log = structlog.get_logger(__name__)


class Ledger:
    """Where events are read."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    async def heads(self, space_ids: Sequence[int]) -> dict[int, int]:
        """Return the number of each space's latest event."""
        async with self._sql.connection() as connection:
            return await store.heads(connection, space_ids)

    async def page(self, space_id: int, after: int, *, limit: int, max_bytes: int) -> Page:
        """Return the next events of a space."""
        async with self._sql.connection() as connection:
            return await store.page(connection, space_id, after, limit=limit, max_bytes=max_bytes)


class Feed:
    """The hub. ``run`` is one of the process's loops; ``open`` makes a reader; ``stop`` ends all of them."""

    def __init__(self, directory: Directory, ledger: Ledger, *, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> None:
        self._directory = directory
        self._ledger = ledger
        self._heartbeat_seconds = heartbeat_seconds
        self._readers: set[Reader] = set()
        self._held: Counter[str | None] = Counter()
        self._channels: dict[int, Channel] = {}
        self._wanted = asyncio.Event()
        self._stopping = False
        self._checked_at = float("-inf")
        self._failing = False
        self._heads = Coalescer(self._heads_of)
        self._catching_up = asyncio.Semaphore(_CATCHING_UP)

    async def open(
        self,
        space: Space,
        *,
        key: str | None,
        principal: Principal | None,
        after: int | None = None,
        wire: Wire | None = None,
    ) -> Reader:
        """Return a stream of the events behind number ``after``, or of those that come from now on.

        Whoever gets one must iterate it or close it. ``key`` is the bearer key of ``principal``.

        Raises:
            Refusal: ``rate_limited`` where the process or the agent has as many as it may.
            psycopg.Error, PoolTimeout: SQL is out of reach.
        """
        self._admit(principal)
        reader = Reader(
            key=key,
            principal=principal,
            read=self._read,
            leave=self._leave,
            heartbeat_seconds=self._heartbeat_seconds,
            wire=wire,
        )
        self._readers.add(reader)
        self._held[reader.agent] += 1
        try:
            head = await self._heads(space.id)
        except BaseException:
            await reader.close()
            raise
        channel = self._channels.get(space.id)
        if channel is None:
            channel = self._channels[space.id] = Channel(space, head)
        reader.join(channel, head if after is None else after)
        self._wanted.set()
        if self._stopping:
            reader.end()
        return reader

    def stop(self) -> None:
        """End every stream, and those that are opened from now on: the process is to end."""
        self._stopping = True
        for reader in tuple(self._readers):
            reader.end()

    async def run(self) -> None:
        """Follow the spaces that have readers until cancelled."""
        while True:
            await self._wanted.wait()
            pause = TICK_SECONDS
            try:
                if await self._tick():
                    pause = BURST_SECONDS
                self._failing = False
            except (Error, PoolTimeout) as error:
                if not self._failing:
                    log.warning("feed_stands_still", kind=type(error).__name__)
                self._failing = True
            await asyncio.sleep(pause)

    async def _tick(self) -> bool:
        """Tell the readers what is new; return whether there is more of it."""
        now = asyncio.get_running_loop().time()
        for reader in tuple(self._readers):
            if reader.stalled(now):
                reader.cut()
        if not self._directory.fresh:
            # Whoever lost the right to read while SQL was away must not be told what happened meanwhile.
            return False
        if now - self._checked_at >= RIGHTS_SECONDS:
            await self._check_rights()
            self._checked_at = now
        channels = [channel for channel in self._channels.values() if channel.readers]
        if not channels:
            return False
        heads = await self._ledger.heads([channel.space.id for channel in channels])
        more = False
        for channel in channels:
            if heads.get(channel.space.id, 0) > channel.told:
                page = await self._page(channel.space.id, channel.told)
                channel.tell(map(chunk, page.events))
                more = more or page.has_more
        return more

    async def _check_rights(self) -> None:
        """End the streams of those who may not read any more."""
        asking = [(reader, reader.channel.space.slug) for reader in self._readers if reader.channel is not None]
        wanted = {(reader.key, slug) for reader, slug in asking}
        # All at once: after a change the directory reads afresh, in batches.
        answers = await asyncio.gather(*(self._may_read(key, slug) for key, slug in wanted))
        allowed = dict(zip(wanted, answers, strict=True))
        for reader, slug in asking:
            if allowed[reader.key, slug] is False:
                reader.end()

    async def _may_read(self, key: str | None, slug: str) -> bool | None:
        """Return whether a key may read a space, None where that cannot be learnt: nothing is told then."""
        try:
            await self._directory.space(slug, await self._directory.authenticate_optional(key))
        except Refusal as refusal:
            return None if refusal.problem.code is Code.COMMONS_RUNTIME_UNAVAILABLE else False
        return True

    def _admit(self, principal: Principal | None) -> None:
        if len(self._readers) >= READERS_MAX:
            raise Refusal(Code.RATE_LIMITED, "All streams of this server are taken: read the events by page meanwhile.")
        if principal is None:
            if self._held[None] >= ANONYMOUS_READERS_MAX:
                raise Refusal(Code.RATE_LIMITED, "All streams without a key are taken: open yours with your key.")
        elif self._held[principal.agent_id] >= AGENT_READERS_MAX:
            raise Refusal(
                Code.RATE_LIMITED, f"Close one of the {AGENT_READERS_MAX} streams that you have, then open another."
            )

    def _leave(self, reader: Reader) -> None:
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        self._held[reader.agent] -= 1
        if not self._held[reader.agent]:
            del self._held[reader.agent]
        channel = reader.channel
        # A channel that was left by all may have a successor by the time its last reader is closed.
        if channel is not None and not channel.readers and self._channels.get(channel.space.id) is channel:
            del self._channels[channel.space.id]
        if not self._readers:
            self._wanted.clear()

    async def _heads_of(self, space_ids: list[int]) -> list[int]:
        found = await self._ledger.heads(space_ids)
        return [found.get(space_id, 0) for space_id in space_ids]

    async def _read(self, reader: Reader) -> list[Chunk] | None:
        """Return the page behind what a reader has read, None where it cannot be had now.

        Few are read at a time, so that other requests get connections.
        """
        assert reader.channel is not None
        space = reader.channel.space
        async with self._catching_up:
            try:
                allowed = await self._may_read(reader.key, space.slug)
                if allowed is False:
                    reader.end()
                if not allowed:
                    return None
                return list(map(chunk, (await self._page(space.id, reader.last)).events))
            except (Error, PoolTimeout):
                # The hub meets the same and says so, once for all.
                return None

    async def _page(self, space_id: int, after: int) -> Page:
        return await self._ledger.page(space_id, after, limit=PAGE_EVENTS, max_bytes=PAGE_BYTES)
