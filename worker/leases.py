"""Keeps the lease of the partition in hand alive while the main thread works on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from redis import RedisError

from models.window.back import Back


class LeaseKeeper:
    """One thread that renews at most one lease, three times in its life.

    It needs a client of its own: the main thread may be inside a call. A renewal that fails is not reported: the
    fence decides at commit whether the partition is still ours, and the scripts ask for the token themselves.
    """

    def __init__(self, back: Back, *, lease_ms: int) -> None:
        self._back = back
        self._pause = lease_ms / 1000 / 3
        self._held: tuple[str, str] | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="lease-keeper", daemon=True).start()

    @contextmanager
    def holding(self, partition: str, token: str) -> Iterator[None]:
        """Renew the lease until the block ends."""
        with self._changed:
            self._held = (partition, token)
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._held = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held is not None)
                held = self._held
                # A lease let go in the meantime is not renewed: its token is gone from Redis or another's.
                self._changed.wait(self._pause)
                if held is None or self._held != held:
                    continue
            try:
                self._back.renew(*held)
            except RedisError:
                continue
