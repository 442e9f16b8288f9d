"""Finds what was forgotten: partitions whose job was lost, and claims and rows whose time is over."""

from __future__ import annotations

import threading
import time
from typing import Final

import structlog
from redis import RedisError
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from models.store.partitions import with_claims_due
from models.store.purge import BATCH, purge_memory
from models.window.back import Back
from worker.threads import start_vital

SWEEP_SECONDS: Final = 0.5
CLAIMS_SECONDS: Final = 1.0
PURGE_SECONDS: Final = 60.0
log = structlog.get_logger(__name__)


class Sweeper:
    """A thread of every worker process. Sweeps of several workers do not disturb each other: each is one script."""

    def __init__(self, back: Back, engine: Engine, *, name: str) -> None:
        self._back = back
        self._engine = engine
        self._name = name
        self._stop = threading.Event()
        self._thread = start_vital("sweeper", self._run)

    def stop(self) -> None:
        """End the thread after the sweep in hand."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        purged_at = claims_at = time.monotonic()
        while not self._stop.wait(SWEEP_SECONDS):
            try:
                queued = self._back.sweep(self._name)
            except RedisError:
                continue
            if queued:
                log.info("swept", queued=queued)
            if time.monotonic() - claims_at >= CLAIMS_SECONDS:
                claims_at = time.monotonic()
                self._end_claims()
            if time.monotonic() - purged_at >= PURGE_SECONDS:
                purged_at = time.monotonic()
                self._purge()

    def _end_claims(self) -> None:
        """Wake the partitions in which claims are over: they end in a window, like every change of a board."""
        try:
            with self._engine.connect() as connection:
                due = with_claims_due(connection)
            if due:
                log.info("claims_over", partitions=len(due), queued=self._back.nudge(due, self._name))
        except (DBAPIError, RedisError) as error:
            log.warning("claims_sweep_failed", kind=type(error).__name__)

    def _purge(self) -> None:
        purged = BATCH
        while purged >= BATCH and not self._stop.is_set():
            try:
                # A transaction for each batch: a busy board's month is no one's long lock.
                with self._engine.begin() as connection:
                    purged = purge_memory(connection)
            except DBAPIError as error:
                log.warning("purge_failed", kind=type(error).__name__)
                return
            if purged:
                log.info("purged", windows=purged)
