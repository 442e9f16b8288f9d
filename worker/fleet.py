"""A worker's registration: a thread that says twice a second that the process lives and what it knows. Contract 4."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from models.rules.spaces import Mode
from models.store.fleet import HEARTBEAT_SECONDS, Registration, beat, leave
from worker.threads import start_vital

log = structlog.get_logger(__name__)


class Heart:
    """Registers the process until it stops; while the database is away nobody hears it, and it goes on."""

    def __init__(self, engine: Engine, *, name: str, floor: Mode, windows: Callable[[], int]) -> None:
        self._engine = engine
        self._name = name
        self._floor = floor
        self._windows = windows
        self._epoch = 0
        self._stop = threading.Event()
        self._thread = start_vital("heart", self._run)

    def stop(self) -> None:
        """End the thread and the registration: an orderly end leaves nothing to account for."""
        self._stop.set()
        self._thread.join()
        try:
            with self._engine.begin() as connection:
                leave(connection, self._name)
        except DBAPIError as error:
            log.warning("registration_left", kind=type(error).__name__)

    def _run(self) -> None:
        while True:
            try:
                with self._engine.begin() as connection:
                    self._epoch = beat(connection, self._registration())
            except DBAPIError as error:
                log.warning("heartbeat_failed", kind=type(error).__name__)
            if self._stop.wait(HEARTBEAT_SECONDS):
                return

    def _registration(self) -> Registration:
        return Registration(
            id=self._name,
            kind="worker",
            host=socket.gethostname(),
            pid=os.getpid(),
            version=package_version(),
            floor=self._floor,
            epoch=self._epoch,
            windows=self._windows(),
        )


def package_version() -> str:
    """Return the version of this package, as its metadata says."""
    try:
        return version("dibs")
    except PackageNotFoundError:
        return "unknown"
