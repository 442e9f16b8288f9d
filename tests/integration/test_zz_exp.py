import asyncio
import psycopg
import pytest
from models.rules.tasks import LIVE, Status
from models.store import lists
from tests.stack import Board, Database

def test_x(database: Database, board: Board):
    agent = board.members[0].id
    print(database.value("select version()"))
    database.rows("""INSERT INTO tasks (space_id,id,title,body,bind,kind,target,delivery_mode,validation_policy,status,created_by,revision,created_at,updated_at)
      SELECT %s, n, 'W '||n, '', '{"provenance":"title","slot":null,"score":null,"runner_up":null,"charter_revision":1}', 'create_task','t'||n,'result','none', 'open', %s, 1, now(), now() FROM generate_series(1,10000) n""", board.space_id, agent)
    database.rows("ANALYZE tasks")
    async def go():
        for mode in ("auto", "force_custom_plan","force_generic_plan"):
            async with await psycopg.AsyncConnection.connect(database.service_url) as c:
                await c.execute(f"SET plan_cache_mode={mode}")
                for statuses in (LIVE, frozenset(Status), frozenset({Status.OPEN})):
                  for before in (None, 5000, 60, 8):
                    for k in range(12 if mode=="auto" else 1):
                        await c.commit(); await c.execute("SELECT pg_stat_force_next_flush()"); await c.commit()
                        rows = await lists.tasks(c, board.space_id, statuses=statuses, stale_seconds=None, before=before, limit=51)
                        cur = await c.execute("SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname='tasks'")
                        r = await cur.fetchone()
                    print(mode, len(statuses), before, len(rows), r)
                for before in (None, 60):
                    await c.commit(); await c.execute("SELECT pg_stat_force_next_flush()"); await c.commit()
                    rows = await lists.tasks(c, board.space_id, statuses=LIVE, stale_seconds=10, before=before, limit=51)
                    cur = await c.execute("SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname='tasks'")
                    print("stale", mode, before, len(rows), await cur.fetchone())
    asyncio.run(go())
