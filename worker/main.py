"""The worker's composition root: settings in, connections made in this process, one loop until it is asked to stop."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Final

import structlog
from redis import RedisError

from models.ids import uuid7
from models.settings import Settings
from models.store.database import sync_engine
from models.window.back import RESERVE_SECONDS, Back, connect
from worker.fleet import Heart
from worker.jobs import WindowWorker
from worker.leases import LeaseKeeper
from worker.process import Processor
from worker.sweeper import Sweeper

RETRY_SECONDS: Final = 0.5
QUEUE_TIMEOUT_MS: Final = 5_000
log = structlog.get_logger(__name__)


def _nothing(_step: str) -> None:
    """Where tests stop or kill a worker, a deployed one does nothing."""


def run(settings: Settings, *, probe: Callable[[str], None] = _nothing) -> None:
    """Work until SIGTERM or SIGINT, then finish the window in hand and return."""
    logging.getLogger("rq.worker").setLevel(logging.WARNING)
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid7().hex[-8:]}"
    # Every wait at a server ends before the lease does, so a worker never outlives its own right to work.
    timeout_ms = settings.lease_ms * 4 // 5
    engine = sync_engine(settings.database_url, application_name=f"dibs-worker-{name}", timeout_ms=timeout_ms)

    def back(milliseconds: int) -> Back:
        return Back(
            connect(settings.redis_url, timeout_ms=milliseconds),
            lease_ms=settings.lease_ms,
            window_ttl_ms=settings.window_ttl_ms,
            window_max=settings.window_max,
        )

    processor = Processor(
        engine,
        back(timeout_ms),
        back(int(RESERVE_SECONDS * 1000)),
        LeaseKeeper(back(timeout_ms), lease_ms=settings.lease_ms),
        name=name,
        probe=probe,
        floor=settings.floor,
    )
    sweeper = Sweeper(back(timeout_ms), engine, name=name)
    heart = Heart(engine, name=name, floor=settings.floor, windows=lambda: processor.windows_in_flight)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    log.info("worker_started", worker=name)
    while not stopping.is_set():
        _work(settings, processor, name=name, stopping=stopping)
        stopping.wait(RETRY_SECONDS)
    sweeper.stop()
    heart.stop()
    engine.dispose()
    log.info("worker_stopped", worker=name)


def _work(settings: Settings, processor: Processor, *, name: str, stopping: threading.Event) -> None:
    """Run one RQ worker until it ends: RQ's own gives up when Redis is away for long, and so a new one follows."""
    try:
        WindowWorker(
            connect(settings.redis_url, timeout_ms=QUEUE_TIMEOUT_MS),
            processor.process,
            name=f"{name}-{uuid7().hex[-4:]}",
            stopping=stopping,
        ).work(logging_level="WARNING")
    except RedisError as error:
        log.warning("redis_unreachable", kind=type(error).__name__)
