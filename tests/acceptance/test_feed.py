"""The event feed over real HTTP: nobody misses a number, and nobody who does not read costs anybody else."""

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import AsyncExitStack

import httpx
import psutil
import psycopg

from models.rules.spaces import Visibility
from models.store import agents as store_agents
from models.store import spaces as store_spaces
from models.store.database import admin_engine
from tests.feeds import Stream, happen, head, listening, stream, write
from tests.servers import SharedServers
from tests.stack import (
    Agent,
    Board,
    Database,
    Stack,
    add_agents,
    add_board,
    children_of,
    create,
    headers_of,
    play,
    until,
)

WRITERS = 16
TASKS = 25
LAST = 2**53 - 1


def path_of(board: Board) -> str:
    return f"/v0/spaces/{board.slug}/events"


# Pages


def test_pages_follow_each_other_without_gap(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        first = head(service.database, board)
        for number in range(5):
            created = await create(client, board, board.members[0], {"title": f"task {number}"})
            assert created.status_code == 201
        seen: list[int] = []
        after = 0
        while True:
            answer = await client.get(path_of(board), params={"after": after, "limit": 3})
            assert answer.status_code == 200
            body = answer.json()
            assert body["protocol"] == "spaces/0.1-draft"
            assert (body["page"]["limit"], len(body["events"]) <= 3) == (3, True)
            seen += [event["number"] for event in body["events"]]
            assert body["page"]["next_after"] == seen[-1]
            if not body["page"]["has_more"]:
                break
            after = body["page"]["next_after"]
        assert seen == list(range(1, first + 6))
        (event,) = (await client.get(path_of(board), params={"after": seen[-1] - 1})).json()["events"]
        assert {*event} == {"number", "type", "at", "actor", "task_id", "data"}
        assert (event["type"], event["actor"], event["task_id"]) == ("task_created", board.members[0].id, 5)
        assert event["data"]["title"] == "task 4"
        empty = (await client.get(path_of(board), params={"after": LAST})).json()
        assert empty["events"] == []
        assert empty["page"] == {"limit": 50, "has_more": False, "next_after": LAST}

    play(service, scenario)


def test_large_events_make_short_pages(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        after = head(service.database, board)
        happen(service.database, board, *["x" * 400_000] * 5)
        sizes = []
        while True:
            body = (await client.get(path_of(board), params={"after": after, "limit": 100})).json()
            sizes.append(len(body["events"]))
            after = body["page"]["next_after"]
            if not body["page"]["has_more"]:
                break
        assert sizes == [2, 2, 1]

    play(service, scenario)


def test_what_cannot_be_asked(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        events, streamed = path_of(board), f"{path_of(board)}/stream"
        for path, query in [
            *((events, f"{name}={value}") for name in ("after", "limit") for value in ("-1", "01", "x", "", "1.0")),
            *((events, text) for text in (f"after={LAST + 1}", "limit=0", "limit=101", "cursor=x", "after=1&after=1")),
            *((streamed, text) for text in (f"after={LAST + 1}", "after=-1", "limit=1")),
        ]:
            answer = await client.get(f"{path}?{query}")
            assert (answer.status_code, answer.json()["code"]) == (400, "query_invalid"), (path, query)
        for value in ("", "x", "-1", "01", "1,2", str(LAST + 1), "٣"):
            answer = await client.get(streamed, headers={"Last-Event-ID": value.encode()})
            assert (answer.status_code, answer.json()["code"]) == (400, "header_invalid"), value
        twice = [("Last-Event-ID", "1"), ("Last-Event-ID", "1")]
        answer = await client.get(streamed, headers=twice)
        assert (answer.status_code, answer.json()["code"]) == (400, "header_repeated")
        for path in (events, streamed):
            for method in ("HEAD", "POST", "DELETE"):
                answer = await client.request(method, path)
                assert (answer.status_code, "GET" in answer.headers["Allow"]) == (405, True)
            answer = await client.get(path, headers={"Authorization": f"Bearer {board.members[0].key[:-1]}x"})
            assert answer.status_code == 401
            answer = await client.get(path.replace(board.slug, "absent"))
            assert (answer.status_code, answer.json()["code"]) == (404, "space_not_found")

    play(service, scenario)


def test_a_space_for_members_has_no_feed_for_others(service: Stack, board: Board) -> None:
    secret = add_board(service.database, slug="secret", members=1, visibility=Visibility.MEMBERS)
    absent = Board("absent", 0, ())

    async def scenario(client: httpx.AsyncClient) -> None:
        for end in ("", "/stream"):
            for headers in (headers_of(board.members[0]), {}):
                hidden, missing = [
                    await client.get(f"{path_of(one)}{end}", headers=headers) for one in (secret, absent)
                ]
                assert (hidden.status_code, hidden.content) == (404, missing.content)
        answer = await client.get(path_of(secret), headers=headers_of(secret.members[0]))
        assert answer.status_code == 200
        async with listening(service, secret, secret.members[0]) as said:
            happen(service.database, secret, "told")
            await until("the event", lambda: said.events)

    play(service, scenario)


# Streams


def test_a_stream_begins_where_it_is_asked_to(service: Stack, board: Board) -> None:
    async def scenario(_client: httpx.AsyncClient) -> None:
        happen(service.database, board, *range(4))
        last = head(service.database, board)
        async with AsyncExitStack() as stack:
            fresh, after, seen, all_of_it = [
                await stack.enter_async_context(listening(service, board, query=query, headers=headers))
                for query, headers in [
                    ("", {}),
                    (f"?after={last - 2}", {}),
                    (f"?after={last}", {"Last-Event-ID": str(last - 3)}),
                    ("?after=0", {}),
                ]
            ]
            happen(service.database, board, {"said": "now"})
            streams = {fresh: last, after: last - 2, seen: last - 3, all_of_it: 0}
            for one, begins in streams.items():
                await until("the event of now", lambda one=one: one.numbers[-1:] == [last + 1])
                assert one.numbers == list(range(begins + 1, last + 2))
                assert one.first == f"retry: 1000\nid: {begins}\n\n".encode()
            said = fresh.head.decode().lower()
            assert said.startswith("http/1.1 200 ")
            for header in ("content-type: text/event-stream", "cache-control: no-store", "x-accel-buffering: no"):
                assert f"\r\n{header}\r\n" in said
            number, event = fresh.events[0]
            (listed,) = (await _client.get(path_of(board), params={"after": number - 1})).json()["events"]
            assert event == listed

    play(service, scenario)


async def write_tasks(client: httpx.AsyncClient, board: Board, *, characters: int = 0) -> None:
    """Let sixteen writers create tasks, each under a title of its own."""

    async def one(number: int) -> None:
        agent = board.members[number % len(board.members)]
        for task in range(TASKS):
            body = {"title": f"writer {number} task {task}", "body": "b" * characters}
            answer = await create(client, board, agent, body)
            assert answer.status_code == 201, answer.text

    await asyncio.gather(*map(one, range(WRITERS)))


async def reconnect(service: Stack, board: Board, agent: Agent, *, after: int, last: int) -> tuple[list[int], int]:
    """Read a few events, leave, come back with the last one's id, and so on; return the numbers and the visits."""
    chance = random.Random(7)
    numbers: list[int] = []
    connections = 0
    while numbers[-1:] != [last]:
        connections += 1
        seen = {"Last-Event-ID": str(numbers[-1] if numbers else after)}
        enough = chance.randrange(1, 20)
        async with listening(service, board, agent, headers=seen) as said:
            assert said.head.startswith(b"HTTP/1.1 200 "), said.head
            await until(
                "some events",
                lambda said=said, enough=enough: len(said.events) >= enough or said.numbers[-1:] == [last],
            )
            numbers += said.numbers
    return numbers, connections


def test_every_reader_has_every_number_once_and_one_that_does_not_read_is_cut(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        first = head(service.database, board)
        last = first + WRITERS * TASKS
        async with AsyncExitStack() as stack:
            steady = [await stack.enter_async_context(listening(service, board, agent)) for agent in board.members[:2]]
            deaf = await stack.enter_async_context(stream(service, board, board.members[2], narrow=True))
            restless = asyncio.create_task(reconnect(service, board, board.members[3], after=first, last=last))
            await write_tasks(client, board, characters=7000)
            for said in steady:
                await until("a steady reader to have all", lambda said=said: len(said.events) >= last - first)
            numbers, connections = await restless
            assert head(service.database, board) == last
            await until("the deaf reader to be cut", lambda: "feed_reader_cut" in service.logs())
            await asyncio.wait_for(deaf.listen(), timeout=10)
            assert deaf.ended == "cut"
            # What it did get is whole, and it goes on from there.
            assert deaf.numbers == list(range(first + 1, first + 1 + len(deaf.numbers)))
            assert len(deaf.numbers) < last - first
            async with listening(
                service, board, board.members[2], headers={"Last-Event-ID": str(deaf.numbers[-1])}
            ) as again:
                await until("the rest", lambda: again.numbers[-1:] == [last])
            assert deaf.numbers + again.numbers == list(range(first + 1, last + 1))
            for said in steady:
                assert said.ended is None
                assert said.numbers == list(range(first + 1, last + 1))
                titles = {event["data"]["title"] for _, event in said.events}
                assert len(titles) == last - first
            assert numbers == list(range(first + 1, last + 1))
            assert connections > 10

    play(service, scenario)


def test_readers_that_do_not_read_cost_no_memory(service: Stack, board: Board) -> None:
    """Sixty megabytes of events, half a dozen readers that take none of them, and one that takes all."""
    (process,) = map(psutil.Process, children_of(service.webs[0].pid))
    count = 3000

    async def scenario(_client: httpx.AsyncClient) -> None:
        first = head(service.database, board)
        async with AsyncExitStack() as stack:
            reading = await stack.enter_async_context(listening(service, board, keep_data=False))
            for query in ("", "", "", f"?after={first}", f"?after={first}", f"?after={first}"):
                await stack.enter_async_context(stream(service, board, query=query, narrow=True))
            await until("all to be there", lambda: len(connections_of(process)) >= 7)
            before = process.memory_info().rss
            most = 0
            service.database.rows(
                "WITH given AS (UPDATE spaces SET next_event = next_event + %s WHERE id = %s RETURNING id) "
                "INSERT INTO events (space_id, number, type, at, actor, data) SELECT id, %s + n, 'told', dibs_now(), "
                "'alpha', json_build_object('body', repeat(md5(n::text), 640)) FROM given, generate_series(1, %s) AS n",
                *(count, board.space_id, first, count),
            )

            def done() -> bool:
                nonlocal most
                most = max(most, process.memory_info().rss)
                return len(reading.events) >= count

            await until("the reader to have all", done, seconds=60)
            assert reading.numbers == list(range(first + 1, first + count + 1))
            assert reading.ended is None
            assert most - before < 40 * 1024 * 1024

    play(service, scenario)


def connections_of(process: psutil.Process) -> list[object]:
    return [one for one in process.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED and one.raddr]


def test_a_slow_commit_skips_no_number(service: Stack, board: Board) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        first = head(service.database, board)
        async with listening(service, board) as live, listening(service, board, query=f"?after={first}") as behind:
            with psycopg.connect(service.database.owner_url) as slow:
                write(slow, board, "the slow one")
                writing = asyncio.create_task(write_tasks(client, board))
                await until("writers behind it", lambda: service.open_intents(board.partition) >= WRITERS)
                polled = (await client.get(path_of(board), params={"after": first})).json()
                assert polled["events"] == []
                assert live.events == behind.events == []
                slow.commit()
            await writing
            last = first + 1 + WRITERS * TASKS
            for said in (live, behind):
                await until("all of them", lambda said=said: len(said.events) >= last - first)
                assert said.numbers == list(range(first + 1, last + 1))
                assert said.events[0][1]["data"] == "the slow one"

    play(service, scenario)


def test_a_stream_outlives_an_outage_of_sql(own_servers: SharedServers, stacks: Callable[..., Stack]) -> None:
    database = Database(own_servers.postgres.service_url, own_servers.postgres.owner_url)
    board = add_board(database)
    service = stacks(database=database, redis_url=own_servers.valkey.url, workers=0)

    async def scenario(client: httpx.AsyncClient) -> None:
        async with listening(service, board) as said:
            happen(database, board, "before")
            await until("an event", lambda: len(said.events) == 1)
            await asyncio.to_thread(own_servers.postgres.stop)
            answer = await client.get(f"{path_of(board)}/stream")
            assert (answer.status_code, answer.json()["code"]) == (503, "commons_runtime_unavailable")
            await asyncio.to_thread(own_servers.postgres.start)
            happen(database, board, "after")
            await until("the stream to go on", lambda: said.ended or len(said.events) == 2)
            assert [event["data"] for _, event in said.events] == ["before", "after"]

    play(service, scenario)


# Who may


def test_a_stream_ends_when_the_right_to_read_does(service: Stack, board: Board) -> None:
    secret = add_board(service.database, slug="secret", members=3, visibility=Visibility.MEMBERS)
    removed, revoked, kept = secret.members

    async def scenario(_client: httpx.AsyncClient) -> None:
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(listening(service, where, agent))
                for where, agent in [(secret, removed), (secret, revoked), (board, revoked), (secret, kept)]
            ]
            *lost, staying = streams
            with admin_engine(service.database.owner_url).begin() as connection:
                store_spaces.set_member(connection, secret.slug, kept.handle, store_spaces.Role.STEWARD)
                store_spaces.remove_member(connection, secret.slug, removed.handle)
                store_agents.revoke_keys(connection, [revoked.key_id])
            await until("those streams to end", lambda: all(one.ended for one in lost), seconds=2)
            assert [one.ended for one in lost] == ["whole"] * 3
            happen(service.database, secret, "for members")
            await until("the member to read on", lambda: staying.events and staying.events[-1][1]["type"] == "told")
            assert all("told" not in {event["type"] for _, event in one.events} for one in lost)

    play(service, scenario)


def test_an_agent_has_a_bounded_number_of_streams(service: Stack, board: Board) -> None:
    greedy, modest = board.members[:2]

    async def scenario(client: httpx.AsyncClient) -> None:
        first = head(service.database, board)
        async with AsyncExitStack() as stack:
            # Fifteen wait for events, and one for its peer to read.
            waiting: list[Stream] = [
                await stack.enter_async_context(listening(service, board, greedy)) for _ in range(15)
            ]
            stuck = await stack.enter_async_context(
                stream(service, board, greedy, query=f"?after={first}", narrow=True)
            )
            happen(service.database, board, *["x" * 8000] * 60)
            await until("all to be read", lambda: all(len(one.events) == 60 for one in waiting))
            answer = await client.get(f"{path_of(board)}/stream", headers=headers_of(greedy))
            assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
            assert int(answer.headers["Retry-After"]) >= 1
            async with listening(service, board, modest) as other:
                assert other.head.startswith(b"HTTP/1.1 200 ")

            async def again() -> bool:
                asked = client.stream("GET", f"{path_of(board)}/stream", headers=headers_of(greedy))
                return (await stack.enter_async_context(asked)).status_code == 200

            # The server sees at once that one has left, whatever it was doing.
            for one in (stuck, waiting[0]):
                one.close()
                await until("room for another", again, seconds=2)

    play(service, scenario)


def test_a_public_space_is_streamed_to_any_agent(service: Stack, board: Board) -> None:
    """Without membership; and what some take for the end of a line does not end one."""
    (outsider,) = add_agents(service.database, ["outsider"])

    async def scenario(_client: httpx.AsyncClient) -> None:
        async with listening(service, board, outsider) as said:
            happen(service.database, board, json.loads('{"a": "\\u2028"}'))
            await until("the event", lambda: said.events)
            assert said.events[0][1]["data"] == {"a": "\u2028"}

    play(service, scenario)
