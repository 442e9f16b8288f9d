"""Pages while everyone writes: each row that was there throughout is on exactly one. Contract 2.6."""

import asyncio
import json
from collections.abc import Callable

import httpx

from models.rules.board import decode_board
from models.store.boards import import_board
from models.store.database import admin_engine
from tests.stack import Board, Database, Stack, add_agents, headers_of, play

COUNT = 500
TOUCHED = range(1, COUNT, 5)


def imported(database: Database, *, slug: str) -> Board:
    """Five hundred tasks of one moment."""
    agents = add_agents(database, [f"{slug}-{number}" for number in range(4)])
    members = [{"handle": agent.handle, "role": "steward"} for agent in agents]
    tasks = [{"id": number, "title": f"Work number {number}", "status": "open"} for number in range(1, COUNT + 1)]
    document = json.dumps({"space": slug, "members": members, "tasks": tasks}).encode()
    with admin_engine(database.owner_url).begin() as connection:
        import_board(connection, decode_board(document))
    return Board(slug, database.value("SELECT id FROM spaces WHERE slug = %s", slug), agents)


def test_each_row_is_on_one_page(stack: Callable[..., Stack], database: Database) -> None:
    service = stack(web=2, workers=2, agent_rate=10_000, agent_burst=10_000)
    board = imported(database, slug="long")
    stop = asyncio.Event()

    async def write(http: httpx.AsyncClient, number: int) -> None:
        """Change every fifth task's state, and put new ones on the board, until the pages are read."""
        headers = headers_of(board.members[number])
        for turn in range(10_000):
            if stop.is_set():
                return
            task = TOUCHED[(turn * 4 + number) % len(TOUCHED)]
            step = ("claim", {}) if turn % 2 else ("withdraw", {"reason": "Moot"})
            await http.post(f"{board.path}/{task}/{step[0]}", json=step[1], headers=headers)
            await http.post(board.path, json={"title": f"New {number} {turn}"}, headers=headers)

    async def read(http: httpx.AsyncClient, **query: str) -> list[int]:
        """Read the list in pages of seven."""
        found: list[int] = []
        cursor: str | None = None
        while True:
            params = {"limit": "7", **query, **({} if cursor is None else {"cursor": cursor})}
            answer = (await http.get(board.path, params=params)).json()
            ids = [task["id"] for task in answer["tasks"]]
            assert ids == sorted(ids, reverse=True)
            found += ids
            cursor = answer["page"]["next_cursor"]
            assert answer["page"]["has_more"] is (cursor is not None)
            if cursor is None:
                return found

    async def scenario(http: httpx.AsyncClient) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(write(http, number))
            live, everything = await asyncio.gather(read(http), read(http, status="all"))
            stop.set()
        for found, throughout in ((live, set(range(1, COUNT + 1)) - set(TOUCHED)), (everything, range(1, COUNT + 1))):
            assert len(found) == len(set(found))
            assert set(throughout) <= set(found)

    play(service, scenario)
    assert database.value("SELECT count(*) FROM tasks WHERE status = 'withdrawn'") > 10


def test_a_cursor_is_good_for_its_list_alone(service: Stack, database: Database, board: Board) -> None:
    long, other = imported(database, slug="long"), imported(database, slug="other")

    async def scenario(http: httpx.AsyncClient) -> None:
        first = (await http.get(long.path, params={"limit": "7"})).json()
        cursor = first["page"]["next_cursor"]
        database.rows("DELETE FROM occupancies WHERE task_id = %s", first["tasks"][-1]["id"])
        database.rows("DELETE FROM tasks WHERE id = %s", first["tasks"][-1]["id"])
        following = (await http.get(long.path, params={"cursor": cursor, "limit": "9"})).json()["tasks"]
        assert [task["id"] for task in following] == list(range(COUNT - 7, COUNT - 16, -1))
        flipped = ("B" if cursor[0] == "A" else "A") + cursor[1:]
        for path, query in (
            (other.path, {"cursor": cursor}),
            (long.path, {"cursor": cursor, "status": "open"}),
            (long.path, {"cursor": cursor, "include_superseded": "true"}),
            (f"/v0/spaces/{long.slug}/members", {"cursor": cursor}),
            (long.path, {"cursor": cursor[:-1]}),
            (long.path, {"cursor": flipped}),
            (long.path, {"cursor": cursor + "AAAA"}),
            (long.path, {"cursor": "bm90IG9uZSBvZiBvdXJz"}),
            (long.path, {"cursor": ""}),
        ):
            answer = await http.get(path, params=query)
            assert (answer.status_code, answer.json()["code"]) == (400, "cursor_invalid"), query

    play(service, scenario)
