"""Gunicorn's ASGI worker with the backlog that its settings name."""

from __future__ import annotations

from gunicorn.workers.gasgi import ASGIWorker  # type: ignore[import-untyped]


class Worker(ASGIWorker):  # type: ignore[misc]  # gunicorn has no types
    """asyncio listens again on the inherited sockets, with a backlog of 100 of its own.

    A swarm connects all at once: past the backlog a connection waits a second for its repeated SYN. Every process
    that starts shrinks the shared queue anew, so each one restores it when it serves.
    """

    _restored = False

    def notify(self) -> None:
        """Say that the process lives; called first when all sockets are served."""
        if not self._restored:
            self._restored = True
            for listener in self.sockets:
                listener.sock.listen(self.cfg.backlog)
        super().notify()
