"""The web process's connections to SQL, none of which can keep it waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from models.store.database import sever

LONGEST_SECONDS: Final = 4.0
"""Longest use of a connection; the server ends a statement before that, if it is there at all."""


class Sql:
    """A pool whose connections are severed when their use takes too long, so that the next user gets another."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[TupleRow]]) -> None:
        self._pool = pool

    async def open(self) -> None:
        """Begin to connect; the database may be down."""
        await self._pool.open(wait=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    @asynccontextmanager
    async def connection(self, *, wait_seconds: float | None = None) -> AsyncIterator[AsyncConnection[TupleRow]]:
        """Lend a connection in autocommit mode.

        Raises:
            PoolTimeout: none could be had in time.
            psycopg.Error: the connection broke, or was severed.
        """
        async with self._pool.connection(timeout=wait_seconds) as connection:
            guard = asyncio.get_running_loop().call_later(LONGEST_SECONDS, sever, connection.fileno())
            try:
                yield connection
            finally:
                guard.cancel()
