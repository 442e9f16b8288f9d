"""Keeps the lease of the partition in hand alive while the main thread works on it, but not while it is stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from redis import RedisError
from sqlalchemy import Connection

from models.store.database import sever
from models.window.back import Back
from worker.threads import start_vital

STUCK_LEASES: Final = 3
"""After so many leases in one transaction its connection is severed: the server would long have ended it."""


class LeaseKeeper:
    """One thread that renews at most one lease, three times in its life.

    It needs a client of its own: the main thread may be inside a call. A renewal that fails is not reported: the
    fence decides at commit whether the partition is still ours, and the scripts ask for the token themselves.
    """

    def __init__(self, back: Back, *, lease_ms: int) -> None:
        self._back = back
        self._lease = lease_ms / 1000
        self._held: tuple[str, str] | None = None
        self._transaction: tuple[int, float] | None = None
        self._changed = threading.Condition()
        start_vital("lease-keeper", self._run)

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

    @contextmanager
    def guarding(self, connection: Connection) -> Iterator[None]:
        """Watch a transaction: past one lease the lease is no longer renewed, past three the connection is severed.

        A database that fell silent thus costs its partition a take-over and this worker a connection, not its life.
        """
        raw = connection.connection.driver_connection
        assert raw is not None
        with self._changed:
            self._transaction = (raw.fileno(), time.monotonic())
        try:
            yield
        finally:
            # Under the lock: what is severed is still this connection's descriptor.
            with self._changed:
                self._transaction = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held is not None)
                held = self._held
                # A lease let go in the meantime is not renewed: its token is gone from Redis or another's.
                self._changed.wait(self._lease / 3)
                if held is None or self._held != held or self._is_stuck():
                    continue
            try:
                self._back.renew(*held)
            except RedisError:
                continue

    def _is_stuck(self) -> bool:
        if self._transaction is None:
            return False
        fileno, since = self._transaction
        lasted = time.monotonic() - since
        if lasted > self._lease * STUCK_LEASES:
            sever(fileno)
        return lasted > self._lease
