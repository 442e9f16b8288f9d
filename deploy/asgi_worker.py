"""Gunicorn's ASGI worker for peers that do not keep up: they cost no memory, no connection and no time at the stop.

As it comes, a connection without a whole header stays for ever, a peer that does not read keeps its handler waiting
and its connection open for ever, and each such connection makes the arbiter kill the process at the stop instead of
letting it end. Names with an underscore are gunicorn 27's own: tests/acceptance/test_connections.py notices a change.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from gunicorn.asgi.protocol import ASGIProtocol  # type: ignore[import-untyped]
from gunicorn.workers import gasgi  # type: ignore[import-untyped]

CONNECTION: Final = "dibs.connection"
"""Member of an HTTP scope: the connection, for an application that streams (``web.readers.Wire``)."""

STOPPING: Final = "dibs.stopping"
"""Member of the lifespan's state: what the application wants to have called when the process is told to stop."""

FIRST_HEADER_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 1.0
"""How long an idle connection stays once the process is to stop; requests under way before that are answered."""

LINGER_SECONDS: Final = 10.0
LINGER_STOPPING_SECONDS: Final = 2.0
"""How long the last bytes of a closed connection may wait for a peer that does not take them."""

_SWEEP_SECONDS: Final = 0.5
_ACCEPTED_SECONDS: Final = 0.1
_UNSENT_BYTES: Final = 64 * 1024
_EARLIER_SECONDS: Final = 3


class Connection(ASGIProtocol):  # type: ignore[misc]  # gunicorn has no types
    """One connection, with an end for each way of waiting for its peer."""

    _first_header: asyncio.TimerHandle
    _linger: asyncio.TimerHandle | None = None
    _on_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start to serve; the first header has its time."""
        super().connection_made(transport)
        self.worker.connections.add(self)
        self._first_header = self.worker.loop.call_later(FIRST_HEADER_SECONDS, self.leave)
        with suppress(OSError):
            # What is not sent yet is kept here, where it is counted, and not in a kernel's buffer of megabytes.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything that waits for the peer."""
        self.worker.connections.discard(self)
        self._first_header.cancel()
        if self._linger is not None:
            self._linger.cancel()
        super().connection_lost(exc)
        # A handler that waits for room to write would learn of the loss by its cancellation, three seconds later.
        self.resume_writing()
        if self._on_lost is not None:
            self._on_lost()

    @property
    def idle(self) -> bool:
        """Whether it waits for a request, or for the rest of one's header, and nothing has just come."""
        return bool(self._awaiting_request and not self._finishing_calls) and not self._has_unread()

    def leave(self) -> None:
        """Close an idle connection."""
        # What gunicorn does when an idle connection's time is over.
        self._keepalive_timeout()

    def abort(self) -> None:
        """End the connection at once; what the peer has not taken is lost."""
        self.transport.abort()

    def when_lost(self, call: Callable[[], None]) -> None:
        """Have ``call`` called, instead of an earlier one, when the connection is lost."""
        self._on_lost = call

    def _has_unread(self) -> bool:
        waiting = select.poll()
        waiting.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(waiting.poll(0))

    def _keepalive_timeout(self) -> None:
        # A turn of the loop reads what has come and then runs what is due; the task that serves a request goes on in
        # the next turn. Between the two, gunicorn takes a connection for idle whose request is here, and closes it.
        if not self._request_ready.is_set():
            super()._keepalive_timeout()

    def _on_headers_complete(self) -> Any:  # noqa: ANN401 - gunicorn's own
        self._first_header.cancel()
        return super()._on_headers_complete()

    def _build_http_scope(self, *arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - gunicorn's own
        scope: dict[str, Any] = super()._build_http_scope(*arguments)
        scope[CONNECTION] = self
        return scope

    def _close_transport(self) -> None:
        super()._close_transport()
        if self._linger is None and not self._conn_lost_handled:
            seconds = LINGER_SECONDS if self.worker.alive else LINGER_STOPPING_SECONDS
            self._linger = self.worker.loop.call_later(seconds, self.abort)


# The worker names the protocol's class in the middle of its serving loop and offers no other way to choose one.
gasgi.ASGIProtocol = Connection


class Worker(gasgi.ASGIWorker):  # type: ignore[misc]  # gunicorn has no types
    """Gunicorn's worker that listens with the backlog of its settings and ends in time.

    asyncio listens again on the inherited sockets, with a backlog of 100 of its own. A swarm connects all at once:
    past the backlog a connection waits a second for its repeated SYN. Every process that starts shrinks the shared
    queue anew, so each one restores it when it serves.
    """

    _restored = False

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - gunicorn's own
        super().__init__(*arguments, **options)
        self.connections: set[Connection] = set()

    def init_process(self) -> None:
        """Begin in the new process."""
        # Both count from the same signal: at its own limit the arbiter kills whoever has not shut down by then.
        self.cfg.set("graceful_timeout", max(1, self.cfg.graceful_timeout - _EARLIER_SECONDS))
        super().init_process()

    def notify(self) -> None:
        """Say that the process lives; called first when all sockets are served."""
        if not self._restored:
            self._restored = True
            for listener in self.sockets:
                listener.sock.listen(self.cfg.backlog)
        super().notify()

    def handle_exit_signal(self) -> None:
        """Stop: streams end now, idle connections soon, requests when they are answered."""
        first = self.alive
        super().handle_exit_signal()
        if not first:
            return
        stop: Callable[[], None] | None = self.state.get(STOPPING)
        if stop is not None:
            stop()
        self.loop.call_later(IDLE_SECONDS, self._close_idle)

    async def _shutdown(self) -> None:
        for server in self.servers:
            server.close()
        # What was accepted last becomes a connection that gunicorn counts and waits for some turns of the loop later.
        await asyncio.sleep(_ACCEPTED_SECONDS)
        await super()._shutdown()

    def _close_idle(self) -> None:
        """Close what waits for a request; over and over, because sockets are served for a moment still."""
        for connection in tuple(self.connections):
            if connection.idle:
                connection.leave()
        self.loop.call_later(_SWEEP_SECONDS, self._close_idle)
