"""Lists of tasks and notes on a real database, through the application's own routes. Contract 2.2, 2.3, 2.6."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import psycopg
import pytest

from models.rules.tasks import LIVE, Status
from models.settings import SecretKey, Settings
from models.store import lists
from tests.stack import Board, Database, add_board, until
from web import directory
from web.app import Parts, create_app

SECRETS = (SecretKey("k1", b"s" * 40),)
ALL = frozenset(Status)
PLANS = ["force_custom_plan", "force_generic_plan"]


def add_tasks(database: Database, board: Board, count: int, *, status: str = "open") -> None:
    """Add tasks of one moment, with ids that go on from those there are."""
    database.rows(
        "INSERT INTO tasks (space_id, id, title, body, bind, kind, target, delivery_mode, validation_policy, status, "
        "created_by, revision, created_at, updated_at) SELECT %s, top.id + n, 'Work ' || n, '', %s, 'create_task', "
        "'work ' || top.id + n, 'result', 'none', %s, %s, 1, '2026-07-01', '2026-07-01' FROM generate_series(1, %s) n, "
        "(SELECT coalesce(max(id), 0) AS id FROM tasks WHERE space_id = %s) top",
        board.space_id,
        '{"provenance": "title", "slot": null, "score": null, "runner_up": null, "charter_revision": 1}',
        status,
        board.members[0].id,
        count,
        board.space_id,
    )


def add_notes(database: Database, board: Board, count: int, *, task: int) -> None:
    database.rows(
        "INSERT INTO notes (space_id, id, task_id, kind, body, delivery_mode, status, target, created_by, created_at, "
        "updated_at) SELECT %s, top.id + n, %s, 'post_review_note', 'Note ' || n, 'result', "
        "CASE WHEN n %% 3 = 0 THEN 'withdrawn' ELSE 'posted' END, 'note ' || top.id + n, %s, '2026-07-01', "
        "'2026-07-01' FROM generate_series(1, %s) n, "
        "(SELECT coalesce(max(id), 0) AS id FROM notes WHERE space_id = %s) top",
        board.space_id,
        task,
        board.members[0].id,
        count,
        board.space_id,
    )


class Lists:
    """The application's reads, with a record of every statement that they take."""

    def __init__(self, http: httpx.AsyncClient, statements: list[str]) -> None:
        self.http = http
        self.statements = statements

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.http.get(path, params=query)
        body = answer.json()
        return body if answer.status_code == 200 else (answer.status_code, body["code"])

    async def counted(self, path: str, **query: Any) -> list[str]:
        """Return what a page asks SQL; who reads it the second time finds all else in the caches."""
        await self.get(path, **query)
        self.statements.clear()
        assert "page" in await self.get(path, **query)
        return list(self.statements)

    async def pages(self, path: str, between: Callable[[int], None] = lambda _: None, **query: Any) -> list[list[Any]]:
        """Return every page; ``between`` is called before each but the first."""
        found: list[list[Any]] = []
        cursor: dict[str, str] = {}
        while True:
            body = await self.get(path, **query, **cursor)
            page, protocol = body.pop("page"), body.pop("protocol")
            assert (protocol, page["limit"]) == ("spaces/0.1-draft", query.get("limit", 50))
            (rows,) = body.values()
            found.append(rows)
            assert page["has_more"] is (page["next_cursor"] is not None)
            if not page["has_more"]:
                return found
            assert len(rows) == page["limit"]
            cursor = {"cursor": page["next_cursor"]}
            between(len(found))


@asynccontextmanager
async def application(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lists]:
    parts = Parts(Settings(database_url=database.service_url, redis_url="redis://none.invalid", secret_keys=SECRETS))
    statements: list[str] = []
    execute = psycopg.AsyncCursor.execute
    await parts.sql.open()
    watch = asyncio.create_task(parts.directory.watch())

    async def recorded(self: Any, query: Any, *rest: Any, **options: Any) -> Any:
        if asyncio.current_task() is not watch:
            statements.append(query)
        return await execute(self, query, *rest, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", recorded)
    # The scenarios write from this same thread, and the watcher waits for them.
    monkeypatch.setattr(directory, "STALE_SECONDS", 60.0)
    transport = httpx.ASGITransport(app=create_app(parts))  # type: ignore[arg-type]
    try:
        await until("the directory to know the mode", lambda: parts.directory.fresh)
        async with httpx.AsyncClient(transport=transport, base_url="http://example.test") as http:
            yield Lists(http, statements)
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        await parts.sql.close()
        await parts.front.aclose()


@pytest.fixture
def play(database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Lists], Awaitable[None]]], None]:
    """Run a scenario with the application on this test's database."""

    def run(scenario: Callable[[Lists], Awaitable[None]]) -> None:
        async def go() -> None:
            async with application(database, monkeypatch) as served:
                await scenario(served)

        asyncio.run(go())

    return run


def test_a_page_takes_one_statement_whatever_the_size_of_the_board(play, database: Database, board: Board) -> None:
    large = add_board(database, slug="large", members=1)
    for one, count in ((board, 10), (large, 10_000)):
        add_tasks(database, one, count)
        add_notes(database, one, count, task=1)

    async def scenario(served: Lists) -> None:
        queries: list[dict[str, Any]] = [
            {},
            {"limit": 7},
            {"status": "all"},
            {"status": "done"},
            {"include_superseded": "true"},
            {"stale": 0},
        ]
        for query in queries:
            small, big = [await served.counted(one.path, **query) for one in (board, large)]
            assert small == big
            assert len(big) == 1
        for one in (board, large):
            second = (await served.get(one.path, limit=7))["page"]["next_cursor"]
            assert len(await served.counted(one.path, limit=7, cursor=second)) == 1
            assert len(await served.counted(f"{one.path}/1/notes")) == 1

    play(scenario)


@pytest.mark.parametrize("plan", PLANS)
def test_a_page_reads_the_rows_that_it_shows(database: Database, board: Board, plan: str) -> None:
    """Wherever on the board it begins, also when PostgreSQL plans once for all pages."""
    add_tasks(database, board, 6_000)
    add_tasks(database, board, 4_000, status="done")
    add_notes(database, board, 4_000, task=1)
    database.rows("UPDATE tasks SET status = 'claimed', claimed_at = now() - interval '1 h' WHERE id IN (5, 3000)")
    database.rows("UPDATE tasks SET status = 'claimed', claimed_at = now() WHERE id %% 10 = 1 AND id < 6000")
    database.rows("VACUUM ANALYZE tasks, notes")

    async def reads(table: str, page: Callable[[Any], Awaitable[Any]]) -> tuple[int, int]:
        """Return how many rows a page has, and how many of the table were read for it."""
        connection = await psycopg.AsyncConnection.connect(database.service_url)
        async with connection:
            await connection.execute(f"SET plan_cache_mode = {plan}")  # type: ignore[call-overload]
            found = await page(connection)
            cursor = await connection.execute(
                "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = %s", (table,)
            )
            (read,) = await cursor.fetchone() or (None,)
            return len(found), read

    async def go() -> None:
        for statuses, stale, before, expected in (
            (LIVE, None, None, 51),
            (LIVE, None, 3_500, 51),
            (LIVE, None, 8, 7),
            (ALL, None, None, 51),
            (ALL, None, 3_500, 51),
            (ALL, None, 8, 7),
            (LIVE, 60, None, 2),
            (LIVE, 60, 3_000, 1),
            (LIVE, 7200, None, 0),
        ):
            shown, read = await reads(
                "tasks",
                lambda connection, s=statuses, t=stale, b=before: lists.tasks(
                    connection, board.space_id, statuses=s, stale_seconds=t, before=b, limit=51
                ),
            )
            assert shown == expected
            # A plan for any number of seconds cannot know how few claims are old, and may go along the board instead.
            assert read <= (2 if stale and plan == "force_custom_plan" else 6_000 if stale else expected)
        for before, expected in ((None, 51), (2_000, 51), (8, 7)):
            shown, read = await reads(
                "notes", lambda connection, b=before: lists.notes(connection, board.space_id, 1, before=b, limit=51)
            )
            assert (shown, read) == (expected, expected)

    asyncio.run(go())


CHANGES = ["claimed", "withdrawn", "superseded", "done", "open"]


@pytest.mark.parametrize(
    ("query", "states"),
    [
        ({}, LIVE),
        ({"include_superseded": "true"}, LIVE | {Status.SUPERSEDED}),
        ({"status": "all"}, ALL),
        ({"status": "done,withdrawn"}, {Status.DONE, Status.WITHDRAWN}),
        ({"status": "open"}, {Status.OPEN}),
    ],
)
def test_pages_of_seven_have_each_row_once(
    play, database: Database, board: Board, query: dict[str, str], states: set[Status]
) -> None:
    """Five hundred rows of one moment: between two pages some change their state, come back, or are new."""
    for status in ("open", "claimed", "in_review", "done", "withdrawn", "superseded", "rejected", "assigned"):
        add_tasks(database, board, 50 + 50 * (status in {"open", "done"}), status=status)
    first = database.rows("SELECT id, status FROM tasks")
    touched = {number for number in range(1, 501) if number % 5 == 0}
    throughout = {row["id"] for row in first if row["id"] not in touched and row["status"] in states}

    def write(turn: int) -> None:
        database.rows(
            "UPDATE tasks SET status = %s, revision = revision + 1 WHERE id %% 5 = 0 AND id / 5 %% 3 = %s",
            CHANGES[turn % len(CHANGES)],
            turn % 3,
        )
        add_tasks(database, board, 2)

    async def scenario(served: Lists) -> None:
        pages = await served.pages(board.path, write, limit=7, **query)
        rows = [row for page in pages for row in page]
        ids = [row["id"] for row in rows]
        assert ids == sorted(set(ids), reverse=True)
        assert {row["status"] for row in rows} <= states
        assert {number for number in ids if number % 5} == throughout
        assert len(pages) > 10

    play(scenario)


def test_a_board_of_no_more_than_a_page_is_one_page(play, database: Database, board: Board) -> None:
    async def scenario(served: Lists) -> None:
        assert await served.pages(board.path) == [[]]
        add_tasks(database, board, 7)
        assert [len(page) for page in await served.pages(board.path, limit=7)] == [7]
        assert [len(page) for page in await served.pages(board.path, limit=6)] == [6, 1]
        add_tasks(database, board, 94)
        assert [len(page) for page in await served.pages(board.path)] == [50, 50, 1]
        assert [len(page) for page in await served.pages(board.path, limit=100)] == [100, 1]

    play(scenario)


LAST = {1: 24, 2: 16, 3: 8}


def test_paging_goes_on_where_the_cursors_row_is_gone(play, database: Database, board: Board) -> None:
    add_tasks(database, board, 30)
    add_notes(database, board, 30, task=1)

    def delete(table: str) -> Callable[[int], None]:
        def rows(page: int) -> None:
            """Delete the page's last row, which its cursor is made of, and its neighbours on both sides."""
            database.rows(f"DELETE FROM {table} WHERE id BETWEEN %s AND %s", LAST[page] - 1, LAST[page] + 1)

        return rows

    async def scenario(served: Lists) -> None:
        notes = await served.pages(f"{board.path}/1/notes", delete("notes"), limit=7)
        tasks = await served.pages(board.path, delete("tasks"), limit=7)
        assert [[row["id"] for row in page] for page in notes] == [[row["id"] for row in page] for page in tasks]
        assert [row["id"] for page in tasks for row in page] == [
            number for number in range(30, 0, -1) if number + 1 not in LAST.values()
        ]

    play(scenario)


def test_old_claims_are_those_that_still_are(play, database: Database, board: Board) -> None:
    """To the second, by the database's clock; who handed in or was given the task again claims no more."""
    add_tasks(database, board, 6)
    with psycopg.connect(database.owner_url, autocommit=True) as owner:
        owner.execute(
            "CREATE OR REPLACE FUNCTION dibs_now() RETURNS timestamptz LANGUAGE sql VOLATILE "
            "AS $$SELECT timestamptz '2026-07-01 12:00:00Z'$$"
        )
    for number, status, at in (
        (1, "claimed", "11:59:00"),
        (2, "claimed", "11:59:01"),
        (3, "claimed", "10:00:00"),
        (4, "in_review", "10:00:00"),
        (5, "assigned", None),
        (6, "claimed", "12:00:00"),
    ):
        database.rows(
            "UPDATE tasks SET status = %s, claimed_at = %s::timestamptz WHERE id = %s",
            status,
            at and f"2026-07-01 {at}Z",
            number,
        )

    async def scenario(served: Lists) -> None:
        async def stale(seconds: int, **query: str) -> list[int]:
            return [row["id"] for row in (await served.get(board.path, stale=seconds, **query))["tasks"]]

        assert await stale(0) == [6, 3, 2, 1]
        assert await stale(1) == [3, 2, 1]
        assert await stale(59) == [3, 2, 1]
        assert await stale(60) == [3, 1]
        assert await stale(61) == [3]
        assert await stale(7200) == [3]
        assert await stale(7201) == []
        assert await stale(60, status="all") == [3, 1]
        assert await stale(60, status="claimed,open") == [3, 1]
        assert await stale(60, status="in_review,assigned") == []
        assert await served.pages(board.path, stale=1, limit=2) == [
            (await served.get(board.path, status="claimed"))["tasks"][1:3],
            (await served.get(board.path, status="claimed"))["tasks"][3:],
        ]

    play(scenario)


def test_notes_are_listed_in_both_states_under_their_own_task(play, database: Database, board: Board) -> None:
    other = add_board(database, slug="other", members=1)
    add_tasks(database, board, 3)
    add_tasks(database, other, 3)
    add_notes(database, board, 9, task=1)
    add_notes(database, board, 2, task=2)
    add_notes(database, other, 1, task=1)

    async def scenario(served: Lists) -> None:
        notes = (await served.get(f"{board.path}/1/notes"))["notes"]
        assert [(note["id"], note["status"]) for note in notes] == [
            (number, "withdrawn" if number % 3 == 0 else "posted") for number in range(9, 0, -1)
        ]
        assert {(note["space"], note["task_id"], note["kind"]) for note in notes} == {
            (board.slug, 1, "post_review_note")
        }
        assert [note["id"] for note in (await served.get(f"{board.path}/2/notes"))["notes"]] == [11, 10]
        assert [note["body"] for note in (await served.get(f"{other.path}/1/notes"))["notes"]] == ["Note 1"]
        assert await served.pages(f"{board.path}/3/notes") == [[]]
        for path in ("4/notes", "0/notes", "01/notes", "x/notes"):
            assert await served.get(f"{board.path}/{path}") == (404, "task_not_found")
        assert await served.get(f"{board.path}/1/notes/5") == notes[4]
        for path in ("1/notes/12", "2/notes/5", "4/notes/5", "1/notes/05", "1/notes/x", "1/notes/0"):
            assert await served.get(f"{board.path}/{path}") == (404, "note_not_found")
        cursor = (await served.get(f"{board.path}/1/notes", limit=2))["page"]["next_cursor"]
        for path in (f"{board.path}/2/notes", f"{other.path}/1/notes", board.path):
            assert await served.get(path, cursor=cursor) == (400, "cursor_invalid")

    play(scenario)


def test_a_task_bears_its_revision_as_entity_tag(play, database: Database, board: Board) -> None:
    add_tasks(database, board, 1)

    async def scenario(served: Lists) -> None:
        for revision in (1, 2, 11):
            database.rows("UPDATE tasks SET revision = %s", revision)
            answer = await served.http.get(f"{board.path}/1")
            assert (answer.headers["ETag"], answer.json()["revision"]) == (f'"{revision}"', revision)
        for path in ("2", "0", "01", "x", str(2**63)):
            assert await served.get(f"{board.path}/{path}") == (404, "task_not_found")

    play(scenario)
