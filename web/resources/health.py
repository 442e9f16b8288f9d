"""Whether the process lives, and whether it can serve. Contract 6 and 8."""

from __future__ import annotations

from typing import ClassVar

import falcon.asgi
import msgspec
from psycopg import Error
from psycopg_pool import PoolTimeout
from redis import RedisError

from models.rules.outcomes import encode
from models.store import reads
from models.store.migrate import HEAD
from models.window.front import Front
from web.answers import answer
from web.directory import Directory
from web.operations import Auth, Operation
from web.sql import Sql


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """The process answers."""

    alive: bool


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the process can serve; each part is ``ok`` or says what is wrong with it."""

    ready: bool
    parts: dict[str, str]


class Alive:
    """``GET /healthz``: the process answers."""

    operations: ClassVar = {
        "on_get": Operation(id="isAlive", summary="The process answers", answers={200: Liveness}, auth=Auth.NONE)
    }

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer that the process lives."""
        answer(resp, Liveness(alive=True))


class Ready:
    """``GET /readyz``: SQL and Redis answer, the schema is this version's, and Redis never evicts."""

    operations: ClassVar = {
        "on_get": Operation(
            id="isReady",
            summary="Whether the process can serve, and if not, which part fails",
            answers={200: Readiness, 503: Readiness},
            auth=Auth.NONE,
        )
    }

    def __init__(self, directory: Directory, sql: Sql, front: Front) -> None:
        self._directory = directory
        self._sql = sql
        self._front = front

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer 200, or 503 with what is wrong in which part."""
        parts = {"sql": await self._database(), "redis": await self._redis(), "identity": self._identity()}
        ready = all(fault is None for fault in parts.values())
        resp.status = 200 if ready else 503
        resp.content_type = "application/json"
        told = {name: fault or "ok" for name, fault in parts.items()}
        resp.data = encode(Readiness(ready=ready, parts=told)).encode()

    async def _database(self) -> str | None:
        try:
            async with self._sql.connection() as connection:
                found = await reads.migration(connection)
        except (Error, PoolTimeout):
            return "SQL does not answer"
        return None if found == HEAD else f"the schema is at {found}, this version needs {HEAD}: run dibs migrate"

    async def _redis(self) -> str | None:
        try:
            policy = await self._front.eviction_policy()
        except RedisError:
            return "Redis does not answer"
        return None if policy == "noeviction" else f"maxmemory-policy is {policy}, it must be noeviction"

    def _identity(self) -> str | None:
        return None if self._directory.fresh else "keys and mode were not read within the last second"
