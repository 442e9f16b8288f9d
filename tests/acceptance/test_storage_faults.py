"""Redis and PostgreSQL that die, forget or go back: nothing acknowledged is lost, and nothing happens twice."""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from signal import SIGKILL, SIGTERM
from typing import Any

import httpx
import psycopg
import pytest

from deploy.servers import EmbeddedServer
from tests.servers import SharedServers
from tests.stack import Board, Database, Request, Stack, add_board, headers_of, post_many, until
from tests.waiting import wait_for

RECOVERY_SECONDS = 5.0


class Writer:
    """One agent that goes on creating tasks, each request repeated under its key until it is answered for good."""

    def __init__(self, client: httpx.AsyncClient, board: Board, number: int) -> None:
        self._client = client
        self._board = board
        self._agent = board.members[number % len(board.members)]
        self._name = f"writer {number}"
        self.stop = asyncio.Event()
        self.created: dict[str, int] = {}
        self.refused: Counter[str] = Counter()
        self.answered_at = 0.0

    async def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            await self._create(f"{self._name} task {number}")

    async def _create(self, title: str) -> None:
        headers = headers_of(self._agent, Idempotency_Key=title.replace(" ", "-"))
        while True:
            try:
                answer = await self._client.post(self._board.path, json={"title": title}, headers=headers)
            except httpx.TransportError as error:
                self.refused[type(error).__name__] += 1
                continue
            if answer.status_code == 201:
                self.created[title] = answer.json()["id"]
                self.answered_at = time.monotonic()
                return
            body = answer.json()
            assert answer.status_code == 503, (title, body)
            assert int(answer.headers["Retry-After"]) >= 1
            self.refused[body["code"]] += 1
            # Sooner than asked, so that the first moment of recovery is seen.
            await asyncio.sleep(0.05)


async def under_load(
    service: Stack, board: Board, fault: Callable[[], Awaitable[None]], *, writers: int = 6
) -> tuple[list[Writer], float]:
    """Run writers before, during and after a fault; return them and the seconds until all of them were served again."""
    async with service.client() as client:
        several = [Writer(client, board, number) for number in range(writers)]
        running = [asyncio.create_task(one.run()) for one in several]
        try:
            await until("the first writes", lambda: all(len(one.created) >= 3 for one in several))
            await fault()
            healed_at = time.monotonic()
            await until(
                "every writer to be served again",
                lambda: any(task.done() for task in running) or all(one.answered_at > healed_at for one in several),
            )
            seconds = max(one.answered_at for one in several) - healed_at
        except BaseException:
            # They would go on for ever against a service that does not recover.
            for task in running:
                task.cancel()
            raise
        for one in several:
            one.stop.set()
        await asyncio.gather(*running)
    return several, seconds


def check_writers(database: Database, several: list[Writer]) -> None:
    """All that was acknowledged is there, once, and no number was given twice or out of order."""
    rows = database.rows("SELECT id, title, received_seq FROM tasks ORDER BY id")
    kept = {row["title"]: row["id"] for row in rows}
    assert len(kept) == len(rows), "a title was created twice"
    for one in several:
        assert one.created.items() <= kept.items()
    numbers = [row["received_seq"] for row in rows]
    assert numbers == sorted(set(numbers))
    check_ledger(database)


def check_ledger(database: Database) -> None:
    """Windows follow each other in number, and the events number the board without gaps."""
    windows = database.rows("SELECT first_seq, last_seq FROM windows WHERE intents > 0 ORDER BY first_seq")
    for earlier, later in pairwise(windows):
        assert earlier["last_seq"] < later["first_seq"], (earlier, later)
    events = [row["number"] for row in database.rows("SELECT number FROM events ORDER BY number")]
    assert events == list(range(1, len(events) + 1))
    created = database.value("SELECT count(*) FROM tasks")
    told = database.value("SELECT count(*) FROM events WHERE type = 'task_created'")
    assert told == created
    assert database.value("SELECT count(*) FROM occupancies") == created


@pytest.fixture
def own_stack(own_servers: SharedServers, stacks: Callable[..., Stack]) -> tuple[Callable[..., Stack], Board]:
    database = Database(own_servers.postgres.service_url, own_servers.postgres.owner_url)
    board = add_board(database)

    def make(**options: Any) -> Stack:
        return stacks(database=database, redis_url=own_servers.valkey.url, **options)

    return make, board


def kill(server: EmbeddedServer) -> None:
    """Kill a server with all its processes."""
    server.child.send(SIGKILL)
    assert server.child.wait(seconds=10) is not None


async def started(server: EmbeddedServer) -> None:
    """Start a server and wait for it. A child dies with the thread that made it, so this one has to."""
    server.spawn()
    await asyncio.to_thread(server.wait_ready)


def races(board: Board, name: str, *, keys: int = 8, each: int = 4) -> list[Request]:
    return [
        Request(board.members[n % len(board.members)], board.path, {"title": f"{name} {n % keys}"})
        for n in range(keys * each)
    ]


# Redis forgets


@pytest.mark.parametrize("lease_ms", [1_000])
def test_redis_emptied_in_the_middle_of_a_race(stack: Callable[..., Stack], board: Board, lease_ms: int) -> None:
    service = stack(web=2, workers=0, lease_ms=lease_ms)

    async def go() -> None:
        async with service.client() as client, asyncio.TaskGroup() as group:
            posted = group.create_task(post_many(client, races(board, "race")))
            await until("all to be appended", lambda: service.open_intents(board.partition) == 32)
            with service.redis() as redis:
                redis.flushall()
            service.start_worker(ready=False)
            answers = await posted
            assert Counter(answer.status_code for answer in answers) == {201: 8, 409: 24}
            assert len({answer.json()["id"] for answer in answers if answer.status_code == 201}) == 8

    asyncio.run(go())
    assert service.database.value("SELECT count(*) FROM tasks") == 8
    check_ledger(service.database)


def test_redis_emptied_again_and_again_under_load(stack: Callable[..., Stack], board: Board) -> None:
    service = stack(web=2, workers=2, lease_ms=1_000)

    async def empty() -> None:
        for number in range(5):
            with service.redis() as redis:
                redis.flushall()
            before = service.database.value("SELECT count(*) FROM tasks")
            await until(
                f"new tasks after loss {number}",
                lambda before=before: service.database.value("SELECT count(*) FROM tasks") > before + 6,
                seconds=RECOVERY_SECONDS,
            )

    several, seconds = asyncio.run(under_load(service, board, empty))
    assert seconds <= RECOVERY_SECONDS
    check_writers(service.database, several)
    assert service.database.value("SELECT max(epoch) FROM partitions") >= 1


def test_an_older_copy_of_redis(own_servers: SharedServers, own_stack) -> None:
    make, board = own_stack
    service = make(web=2, workers=2, lease_ms=1_000)
    files = own_servers.valkey.folder / "appendonlydir"
    copy = own_servers.valkey.folder / "older"

    async def go_back() -> None:
        shutil.copytree(files, copy)
        before = service.database.value("SELECT count(*) FROM tasks")
        await until(
            "more tasks than the copy knows", lambda: service.database.value("SELECT count(*) FROM tasks") > before + 30
        )
        kill(own_servers.valkey)
        shutil.rmtree(files)
        copy.rename(files)
        await started(own_servers.valkey)

    several, seconds = asyncio.run(under_load(service, board, go_back))
    assert seconds <= RECOVERY_SECONDS
    check_writers(service.database, several)
    assert service.database.value("SELECT epoch FROM partitions WHERE last_seq > 0") >= 1, "Redis did not go back"


def test_redis_killed_and_started_again(own_servers: SharedServers, own_stack) -> None:
    make, board = own_stack
    service = make(web=2, workers=2, lease_ms=1_000)

    async def restart() -> None:
        kill(own_servers.valkey)
        await started(own_servers.valkey)

    several, seconds = asyncio.run(under_load(service, board, restart))
    assert seconds <= RECOVERY_SECONDS
    check_writers(service.database, several)


def test_redis_away_for_a_while(own_servers: SharedServers, own_stack) -> None:
    """Long enough for anything that backs off to be far from its next try."""
    make, board = own_stack
    service = make(web=1, workers=1)
    headers = headers_of(board.members[0])

    async def go() -> float:
        await until("the worker to wait", lambda: service.idle_workers() == 1)
        kill(own_servers.valkey)
        away_since = time.monotonic()
        async with service.client() as client:

            async def refused() -> bool:
                answer = await client.post(board.path, json={"title": "while away"}, headers=headers)
                assert answer.status_code == 503, answer.text
                return answer.json()["code"] == "commons_runtime_unavailable"

            await until("the door to close", refused)
            await until("eight seconds", lambda: time.monotonic() - away_since > 8)
            await started(own_servers.valkey)
            healed_at = time.monotonic()

            async def created() -> bool:
                answer = await client.post(board.path, json={"title": "back again"}, headers=headers)
                assert answer.status_code in {201, 503}, answer.text
                return answer.status_code == 201

            await until("a task", created)
            return time.monotonic() - healed_at

    assert asyncio.run(go()) <= RECOVERY_SECONDS


def test_a_worker_stops_while_redis_is_away(own_servers: SharedServers, own_stack) -> None:
    make, _ = own_stack
    service = make(web=0, workers=1)
    wait_for("the worker to wait", lambda: service.idle_workers() == 1)
    kill(own_servers.valkey)
    (worker,) = service.workers
    worker.send(SIGTERM)
    assert worker.wait(seconds=5) == 0


def test_no_redis_from_the_start(own_servers: SharedServers, own_stack) -> None:
    make, board = own_stack
    own_servers.valkey.stop()
    service = make(web=0, workers=0)
    service.start_web(ready=False)
    service.start_worker(ready=False)

    async def go() -> None:
        async with service.client() as client:
            await until("the process to serve", lambda: _alive(client))
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["parts"]["redis"]) == (503, "Redis does not answer")
            headers = headers_of(board.members[0])
            answer = await client.post(board.path, json={"title": "too early"}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (503, "commons_runtime_unavailable")
            assert int(answer.headers["Retry-After"]) >= 1
            await started(own_servers.valkey)

            async def created() -> bool:
                answer = await client.post(board.path, json={"title": "in time"}, headers=headers)
                assert answer.status_code in {201, 503}, answer.text
                return answer.status_code == 201

            await until("a task", created, seconds=RECOVERY_SECONDS)

    asyncio.run(go())


async def _alive(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/healthz")).status_code == 200
    except httpx.TransportError:
        return False


# PostgreSQL


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_postgresql_goes_and_comes_back(own_servers: SharedServers, own_stack, how: str) -> None:
    make, board = own_stack
    service = make(web=2, workers=2, lease_ms=1_000, wait_ms=1_500)

    async def bounce() -> None:
        if how == "kill":
            kill(own_servers.postgres)
        else:
            await asyncio.to_thread(own_servers.postgres.stop)
        async with service.client() as client:
            headers = headers_of(board.members[0])

            async def refused() -> bool:
                answer = await client.post(board.path, json={"title": "while away"}, headers=headers)
                assert answer.status_code == 503, answer.text
                return answer.json()["code"] == "commons_runtime_unavailable"

            await until("the door to close", refused)
        await started(own_servers.postgres)

    several, seconds = asyncio.run(under_load(service, board, bounce))
    assert seconds <= RECOVERY_SECONDS
    assert set().union(*(one.refused for one in several)) <= {"allocation_pending", "commons_runtime_unavailable"}
    check_writers(service.database, several)


def test_the_commit_that_fails_makes_nobody_a_loser(stack: Callable[..., Stack], board: Board) -> None:
    """The first in order cannot be committed: the next one wins, and the others are told of that one."""
    service = stack(web=1, workers=0)
    with psycopg.connect(service.database.owner_url, autocommit=True) as connection:
        connection.execute(f"""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.created_by = '{board.members[0].id}' THEN RAISE EXCEPTION 'no'; END IF; RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON tasks DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION refuse();
        """)

    async def go() -> list[httpx.Response]:
        async with service.client() as client, asyncio.TaskGroup() as group:
            posted = []
            for number, agent in enumerate(board.members):
                request = client.post(board.path, json={"title": "one work"}, headers=headers_of(agent))
                posted.append(group.create_task(request))
                await until("its turn", lambda number=number: service.open_intents(board.partition) == number + 1)
            service.start_worker(ready=False)
            return list(await asyncio.gather(*posted))

    answers = asyncio.run(go())
    assert [answer.status_code for answer in answers] == [500, 201, *[409] * 6]
    winner = answers[1].json()["id"]
    for answer in answers[2:]:
        told = answer.json()["winner"]
        assert told.get("task_id", told["id"]) == winner
    assert answers[0].json()["code"] == "intent_failed"
    assert service.database.value("SELECT count(*) FROM tasks") == 1
