"""A database that does not answer and does not go away either: nobody waits for it for ever."""

import asyncio
import time
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from models.rules.charter import CatalogRow
from models.store.database import admin_engine, async_pool, sync_engine
from models.store.spaces import set_charter
from tests.pipeline import Pipeline, propose
from tests.stack import SLUG, Database, until
from web import sql as web_sql
from worker.leases import LeaseKeeper

LONG_MS = 60_000


def test_a_web_process_severs_a_connection_and_goes_on(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_sql, "LONGEST_SECONDS", 0.3)

    async def go() -> None:
        sql = web_sql.Sql(async_pool(database.service_url, application_name="test", timeout_ms=LONG_MS, size=1))
        await sql.open()
        try:
            started = time.monotonic()
            with pytest.raises(psycopg.OperationalError):
                async with sql.connection() as connection:
                    await connection.execute("SELECT pg_sleep(30)")
            assert time.monotonic() - started < 10

            async def works() -> bool:
                async with sql.connection() as connection:
                    return (await (await connection.execute("SELECT 1")).fetchone()) == (1,)

            await until("another connection", works)
        finally:
            await sql.close()

    asyncio.run(go())


@pytest.fixture
def patient(database: Database) -> Iterator[Engine]:
    """An engine whose server waits for long, as one does that is not there."""
    engine = sync_engine(database.service_url, application_name="test", timeout_ms=LONG_MS)
    yield engine
    engine.dispose()


def test_a_stuck_transaction_loses_its_lease_and_then_its_connection(pipeline: Pipeline, patient: Engine) -> None:
    back = pipeline.back(lease_ms=600)
    keeper = LeaseKeeper(pipeline.back(lease_ms=600), lease_ms=600)
    partition = f"space:{SLUG}"
    assert back.take(partition, "stuck") is not None
    started = time.monotonic()
    with keeper.holding(partition, "stuck"), patient.connect() as connection, keeper.guarding(connection):
        with pytest.raises(DBAPIError) as broken:
            connection.execute(text("SELECT pg_sleep(30)"))
        assert broken.value.connection_invalidated
        assert 1.8 <= time.monotonic() - started < 10
        # Its lease ended meanwhile, so another has had its chance.
        assert back.take(partition, "successor") is not None
    with patient.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1


def test_a_slow_charter_holds_no_transaction(pipeline: Pipeline, database: Database) -> None:
    """Binding takes longer here than the server lets a transaction idle; it is done before one begins."""
    words = [f"w{number}" for number in range(150)]
    rows = [
        CatalogRow(work_item_id=f"T{number}", canonical_title=f"row {number}", aliases=(" ".join(words[:60]),))
        for number in range(1000)
    ]
    with admin_engine(database.service_url).begin() as connection:
        set_charter(connection, SLUG, rows)
    titles = [f"{' '.join(words[start : start + 40])} {start}" for start in range(60)]
    submission = propose(pipeline.board, pipeline.board.members[0], *titles, batch=True)
    pipeline.append(submission)
    pipeline.work(pipeline.processor(lease_ms=500))
    assert [status for status, _ in pipeline.outcomes(submission)] == [201] * 60
