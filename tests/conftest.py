"""Servers for the suites that need them. Each test process has its own pair, each test its own database."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from deploy.postgres import EmbeddedPostgres
from deploy.servers import EmbeddedValkey
from deploy.state import fresh_secrets
from tests.pipeline import Pipeline
from tests.servers import SharedServers, shared_servers, template_database
from tests.stack import TEMPLATE, Board, Database, Stack, add_board, fresh_database, migrated


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    with shared_servers(tmp_path_factory.mktemp("shared")) as pair:
        template_database(pair.postgres, TEMPLATE, migrated)
        yield pair


@pytest.fixture
def database(servers: SharedServers) -> Iterator[Database]:
    """A migrated database of this test's own."""
    with fresh_database(servers) as made:
        yield made


@pytest.fixture
def redis_url(servers: SharedServers) -> str:
    """An empty Redis; no other test of this process is under way."""
    with redis.Redis.from_url(servers.valkey.url) as client:
        client.flushall()
    return servers.valkey.url


@pytest.fixture
def board(database: Database) -> Board:
    return add_board(database)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


FAILED = pytest.StashKey[bool]()


@contextmanager
def _closing_stacks(request: pytest.FixtureRequest, folder: Path) -> Iterator[Callable[..., Stack]]:
    made: list[Stack] = []

    def make(*, database: Database, redis_url: str, web: int = 1, workers: int = 1, **settings: int) -> Stack:
        home = folder / f"stack-{len(made)}"
        home.mkdir()
        stack = Stack(home, database=database, redis_url=redis_url, **settings)
        made.append(stack)
        # All at once: on few cores most of a start is importing.
        if web:
            stack.start_web(web, ready=False)
        for _ in range(workers):
            stack.start_worker(ready=False)
        stack.wait_ready()
        return stack

    try:
        yield make
    finally:
        for stack in made:
            stack.close()
            if request.node.stash.get(FAILED, True):
                sys.stderr.write(stack.logs())


@pytest.fixture
def stacks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """``stacks(database=…, redis_url=…, web=1, workers=1, lease_ms=…)`` starts the service; it ends with the test."""
    with _closing_stacks(request, tmp_path) as make:
        yield make


@pytest.fixture
def stack(stacks: Callable[..., Stack], database: Database, redis_url: str, board: Board) -> Callable[..., Stack]:
    """``stack(web=1, workers=1, lease_ms=…)`` starts the service on this test's database, with its board."""

    def make(**options: int) -> Stack:
        return stacks(database=database, redis_url=redis_url, **options)

    return make


@pytest.fixture
def service(stack: Callable[..., Stack]) -> Stack:
    """One web process and one worker with the defaults, on this test's database."""
    return stack()


@pytest.fixture
def own_servers(tmp_path: Path) -> Iterator[SharedServers]:
    """A durable pair for this test alone, to kill and to restart."""
    secrets = fresh_secrets()
    with (
        EmbeddedValkey(tmp_path / "valkey", password=secrets.valkey) as valkey,
        EmbeddedPostgres(tmp_path / "postgres", passwords=secrets.postgres) as postgres,
    ):
        migrated(postgres.owner_url)
        yield SharedServers(valkey, postgres)


@pytest.fixture
def pipeline(database: Database, redis_url: str, board: Board) -> Iterator[Pipeline]:
    """The allocator without processes, on this test's database and Redis."""
    found = Pipeline(database, redis_url, board)
    yield found
    found.close()
