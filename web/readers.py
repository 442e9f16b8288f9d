"""The readers of a space's events: what each was sent, what waits for it, and how it catches up. Contract 2.7.

A reader that begins in the past reads pages by itself and joins the live end when it has come as far as that. A peer
that does not read is cut; what it missed it finds again from the last number that it saw.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog

from models.rules.plan import Event
from models.store.reads import Principal, Space

RETRY_SECONDS: Final = 0.2
"""Pause before a page is asked for again that could not be read."""

STALL_SECONDS: Final = 30.0
"""How long a peer may leave one chunk untaken, also where nothing new comes that would fill its queue."""

END_SECONDS: Final = 1.0
"""How long a peer may take to receive the end of its stream."""

QUEUE_EVENTS: Final = 256
QUEUE_BYTES: Final = 8 * 1024 * 1024
"""Bounds of a reader's queue. Queues of a space hold the same bytes, the latest ones: a hundred cost what one does."""

CHUNK_BYTES: Final = 64 * 1024
"""Most bytes handed over at once, unless one event alone is larger."""

_HEARTBEAT: Final = b":\n\n"
_JSON: Final = msgspec.json.Encoder()
log = structlog.get_logger(__name__)


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it is answered. ``task_id`` is null where no one task is meant; ``data`` is an object."""

    number: int
    type: str
    at: datetime
    actor: str
    task_id: int | None
    data: msgspec.Raw


class Chunk(NamedTuple):
    """An event as it stands in a stream."""

    number: int
    data: bytes


def view(event: Event) -> EventView:
    """Return an event as it is answered, on one line whatever white space its data was stored with."""
    data = msgspec.Raw(msgspec.json.format(event.data, indent=-1).encode())
    return EventView(
        number=event.number, type=event.type, at=event.at, actor=event.actor, task_id=event.task_id, data=data
    )


def chunk(event: Event) -> Chunk:
    """Return an event as a server-sent event."""
    head = f"id: {event.number}\nevent: {event.type}\ndata: ".encode()
    return Chunk(event.number, head + _JSON.encode(view(event)) + b"\n\n")


class Wire(Protocol):
    """The connection below a stream, as far as the server shows it."""

    def abort(self) -> None:
        """End the connection at once, unsent bytes and all; a handler that waits to send goes on."""

    def when_lost(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when the connection is lost."""


class Channel:
    """A space that has readers here. ``told`` is the number of the last event that they were offered."""

    def __init__(self, space: Space, told: int) -> None:
        self.space = space
        self.told = told
        self.readers: set[Reader] = set()

    def tell(self, chunks: Iterable[Chunk]) -> None:
        """Offer the next events to every reader, without giving way to one of them in between."""
        for one in chunks:
            self.told = one.number
            for reader in tuple(self.readers):
                reader.offer(one)


class Reader:
    """One stream, as the iterator of what is to be sent; Falcon calls ``close`` when it is through with it.

    It begins behind the number ``last``. While it is not live it reads for itself and is offered nothing: ``read``
    returns the page behind ``last``, or None where that cannot be read now.
    """

    def __init__(
        self,
        *,
        key: str | None,
        principal: Principal | None,
        read: Callable[[Reader], Awaitable[list[Chunk] | None]],
        leave: Callable[[Reader], None],
        heartbeat_seconds: float,
        wire: Wire | None,
    ) -> None:
        self.key = key
        self.agent = None if principal is None else principal.agent_id
        self.channel: Channel | None = None
        self.last = 0
        self.ended = False
        self._read = read
        self._leave = leave
        self._heartbeat_seconds = heartbeat_seconds
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Chunk] = deque()
        self._queued_bytes = 0
        self._live = False
        self._greeted = False
        self._wake = asyncio.Event()
        # Whoever never asks for the first chunk is stalled as well.
        self._handed_at: float | None = self._loop.time()
        self._beat_at = self._loop.time()
        self._abort: asyncio.TimerHandle | None = None
        if wire is not None:
            wire.when_lost(self.end)

    def join(self, channel: Channel, last: int) -> None:
        """Begin behind ``last`` in a channel. Both must have been read before anything could have come between."""
        self.channel = channel
        self.last = last
        self._go_live()
        if not self.ended:
            channel.readers.add(self)

    def offer(self, one: Chunk) -> None:
        """Take an event into the queue, unless it was read already; a full queue ends the stream."""
        if not self._live or one.number <= self.last:
            return
        if len(self._queue) >= QUEUE_EVENTS or self._queued_bytes >= QUEUE_BYTES:
            self.cut()
            return
        self._put(one)
        self._wake.set()

    def stalled(self, now: float) -> bool:
        """Whether the peer has left a chunk untaken for too long."""
        return not self.ended and self._handed_at is not None and now - self._handed_at > STALL_SECONDS

    def cut(self) -> None:
        """End the stream and its connection, though the peer takes nothing and a chunk waits to be sent."""
        slug = None if self.channel is None else self.channel.space.slug
        log.info("feed_reader_cut", space=slug, last=self.last, queued=len(self._queue))
        self.end(patience_seconds=0)

    def end(self, patience_seconds: float = END_SECONDS) -> None:
        """End the stream behind what was sent. A peer that does not take the end in time loses its connection."""
        if self.ended:
            return
        self.ended = True
        self._queue.clear()
        if self.channel is not None:
            self.channel.readers.discard(self)
        self._wake.set()
        if self._wire is not None:
            self._abort = self._loop.call_later(patience_seconds, self._wire.abort)

    async def close(self) -> None:
        """Leave, once: the stream was sent to its end, or its request was given up."""
        self.end()
        if self._abort is not None:
            # From here on the connection is the server's, which may keep it for another request.
            self._abort.cancel()
        self._leave(self)

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> bytes:
        self._handed_at = None
        if not self._greeted:
            self._greeted = True
            # An id without data is remembered by clients and shown to nobody: one that loses its connection before
            # the first event comes back with it.
            return self._hand(b"retry: 1000\nid: %d\n\n" % self.last)
        while not self.ended:
            came_on = bool(self._queue) or self._live or await self._catch_up()
            now = self._loop.time()
            if self._queue:
                return self._hand(self._take())
            if now >= self._beat_at:
                return self._hand(_HEARTBEAT)
            if self._live:
                await self._sleep_until(self._beat_at)
            elif not came_on:
                await self._sleep_until(min(self._beat_at, now + RETRY_SECONDS))
        raise StopAsyncIteration

    async def _catch_up(self) -> bool:
        """Read the next page into the queue; return whether that brought the reader on."""
        chunks = await self._read(self)
        if chunks is None or self.ended:
            return self.ended
        for one in chunks:
            self._put(one)
        self._go_live()
        return bool(chunks) or self._live

    def _go_live(self) -> None:
        """Become live if there is nothing between what was read and what the channel will tell.

        ``told`` and ``last`` are compared, and the reader is made live, without an await in between: what the channel
        tells after this moment begins at told + 1, which is at most last + 1, and what of it was read already is
        refused by its number. So nothing is missed and nothing comes twice.
        """
        assert self.channel is not None
        self._live = self.last >= self.channel.told

    def _put(self, one: Chunk) -> None:
        self._queue.append(one)
        self._queued_bytes += len(one.data)
        self.last = one.number

    def _take(self) -> bytes:
        """Return what fits into one chunk, but at least one event."""
        taken = [self._queue.popleft().data]
        size = len(taken[0])
        while self._queue and size + len(self._queue[0].data) <= CHUNK_BYTES:
            taken.append(self._queue.popleft().data)
            size += len(taken[-1])
        self._queued_bytes -= size
        return b"".join(taken)

    def _hand(self, data: bytes) -> bytes:
        self._handed_at = self._loop.time()
        self._beat_at = self._handed_at + self._heartbeat_seconds
        return data

    async def _sleep_until(self, when: float) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(when):
                await self._wake.wait()
