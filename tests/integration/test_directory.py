"""What the door knows of mode and keys while SQL comes and goes."""

import asyncio

import psycopg
import pytest

from models.rules.codes import Code
from models.rules.spaces import Mode
from models.store import reads
from models.store.database import async_pool
from tests.stack import Database, until
from web.directory import STALE_SECONDS, Directory
from web.problems import Refusal
from web.sql import Sql


def test_a_door_that_cannot_read_the_mode_refuses(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first read that fails until what was read is stale, and after: refused or served, never an error."""

    async def go() -> None:
        pool = async_pool(database.service_url, application_name="test", timeout_ms=3_000, size=2)
        await pool.open()
        directory = Directory(Sql(pool))
        watch = asyncio.create_task(directory.watch())
        await until("the first read", lambda: directory.fresh)
        assert directory.mode() is Mode.ACTIVE
        failed: list[float] = []
        codes: set[Code] = set()

        async def unreachable(_connection: object) -> None:
            failed.append(asyncio.get_running_loop().time())
            raise psycopg.OperationalError

        monkeypatch.setattr(reads, "state", unreachable)

        def asked() -> bool:
            try:
                directory.mode()
            except Refusal as refusal:
                codes.add(refusal.problem.code)
            return bool(failed) and asyncio.get_running_loop().time() > failed[0] + STALE_SECONDS

        await until("the stale time to pass", asked)
        assert codes == {Code.COMMONS_RUNTIME_UNAVAILABLE}
        assert not directory.fresh
        monkeypatch.undo()
        await until("SQL to be heard again", lambda: directory.fresh)
        assert directory.mode() is Mode.ACTIVE
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await pool.close()

    asyncio.run(go())
