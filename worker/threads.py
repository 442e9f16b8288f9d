"""Threads without which a worker must not go on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import structlog

from models.trace import trace_of

log = structlog.get_logger(__name__)


def start_vital(name: str, run: Callable[[], None]) -> threading.Thread:
    """Start a daemon thread whose failure ends the process: its supervisor starts a whole one."""

    def guarded() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the process must not go on without the thread
            log.critical("thread_ended", thread=name, trace=list(trace_of(error)))
            os._exit(70)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
