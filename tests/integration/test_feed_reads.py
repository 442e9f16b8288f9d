"""Reading a space's events from a real database."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from models.store import feed
from models.store.database import async_pool
from models.store.feed import Page
from tests.feeds import happen, head, write
from tests.stack import Board, Database, add_board
from web.sql import Sql

ANY = 1024 * 1024


def read(database: Database, story: Callable[[Any], Awaitable[Any]]) -> Any:
    """Run ``story`` with one of the web process's connections."""

    async def go() -> Any:
        sql = Sql(async_pool(database.service_url, application_name="test", timeout_ms=3_000, size=1))
        await sql.open()
        try:
            async with sql.connection() as connection:
                return await story(connection)
        finally:
            await sql.close()

    return asyncio.run(go())


def page(database: Database, board: Board, after: int, *, limit: int = 50, max_bytes: int = ANY) -> Page:
    found: Page = read(
        database,
        lambda connection: feed.page(connection, board.space_id, after, limit=limit, max_bytes=max_bytes),
    )
    return found


def test_events_come_in_their_order_from_a_number(database: Database, board: Board) -> None:
    other = add_board(database, slug="other", members=1)
    first = head(database, board)
    for number in range(1, 6):
        happen(database, board, {"n": number})
        happen(database, other, {"n": -number})
    found = page(database, board, first + 2)
    assert [(event.number - first, event.task_id, json.loads(event.data)) for event in found.events] == [
        (number, first + number, {"n": number}) for number in (3, 4, 5)
    ]
    assert {event.type for event in found.events} == {"told"}
    assert not found.has_more
    for after in (first + 5, 2**53 - 1):
        assert page(database, board, after) == Page((), has_more=False)


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6])
def test_a_page_says_whether_there_is_more(database: Database, board: Board, limit: int) -> None:
    first = head(database, board)
    happen(database, board, *range(5))
    found = page(database, board, first, limit=limit)
    assert [event.number - first for event in found.events] == list(range(1, min(limit, 5) + 1))
    assert found.has_more == (limit < 5)


def test_a_page_is_bounded_in_bytes(database: Database, board: Board) -> None:
    first = after = head(database, board)
    sizes = [3000, 20, 900, 90, 1000, 1000]
    happen(database, board, *("x" * (size - 2) for size in sizes))
    pages = []
    while True:
        found = page(database, board, after, max_bytes=1010)
        pages.append([event.number - first for event in found.events])
        if not found.has_more:
            break
        after = found.events[-1].number
    # The first is larger than a page alone; the others go together as far as they fit.
    assert pages == [[1], [2, 3, 4], [5], [6]]


def test_heads_are_those_of_the_spaces_that_exist(database: Database, board: Board) -> None:
    other = add_board(database, slug="other", members=1)
    expected = {board.space_id: head(database, board) + 3, other.space_id: head(database, other)}
    happen(database, board, *range(3))
    assert expected == read(
        database, lambda connection: feed.heads(connection, [board.space_id, other.space_id, 10**9])
    )


def test_a_slow_commit_hides_itself_and_all_behind_it(database: Database, board: Board) -> None:
    """Who comes later waits for its number, so no number is ever seen before a lower one."""
    happen(database, board, "before")
    first = head(database, board) - 1

    def seen() -> list[tuple[int, str]]:
        return [(event.number - first, json.loads(event.data)) for event in page(database, board, first).events]

    with psycopg.connect(database.owner_url) as slow, psycopg.connect(database.owner_url) as quick:
        write(slow, board, "slow")
        quick.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            write(quick, board, "quick")
        quick.rollback()
        assert seen() == [(1, "before")]
        slow.commit()
        write(quick, board, "quick")
        quick.commit()
    assert seen() == [(1, "before"), (2, "slow"), (3, "quick")]
