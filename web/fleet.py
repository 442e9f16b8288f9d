"""A web process's registration, renewed twice a second. Contract 4."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from importlib.metadata import PackageNotFoundError, version

import structlog
from psycopg import Error
from psycopg_pool import PoolTimeout

from models.rules.spaces import Mode
from models.store.fleet import BEAT, GONE, HEARTBEAT_SECONDS, Registration, parameters
from web.directory import Directory
from web.sql import Sql

_BEAT = re.sub(r":(\w+)", r"%(\1)s", BEAT)
_GONE = re.sub(r":(\w+)", r"%(\1)s", GONE)
log = structlog.get_logger(__name__)


class Heart:
    """Says that the process lives, and which epoch of the mode it has seen."""

    def __init__(self, sql: Sql, directory: Directory, *, name: str, floor: Mode) -> None:
        self._sql = sql
        self._directory = directory
        self._name = name
        self._floor = floor

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            try:
                async with self._sql.connection() as connection:
                    await connection.execute(_BEAT, parameters(self._registration()))
            except (Error, PoolTimeout) as error:
                log.warning("heartbeat_failed", kind=type(error).__name__)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def stop(self) -> None:
        """End the registration: an orderly end leaves nothing to account for."""
        try:
            async with self._sql.connection(wait_seconds=1) as connection:
                await connection.execute(_GONE, {"id": self._name})
        except (Error, PoolTimeout) as error:
            log.warning("registration_left", kind=type(error).__name__)

    def _registration(self) -> Registration:
        return Registration(
            id=self._name,
            kind="web",
            host=socket.gethostname(),
            pid=os.getpid(),
            version=_version(),
            floor=self._floor,
            epoch=self._directory.mode_epoch,
            windows=0,
        )


def _version() -> str:
    try:
        return version("dibs")
    except PackageNotFoundError:
        return "unknown"
