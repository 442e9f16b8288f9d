"""The whole service on real servers for one test: gunicorn, RQ workers, agents with keys, and a client for races."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, Signals
from typing import Any, NamedTuple

import httpx
import msgspec
import psycopg
import redis
from psycopg.rows import dict_row

from deploy.postgres import OWNER, SERVICE
from deploy.program import Child, Launch
from models.ids import uuid7
from models.rules.charter import CatalogRow
from models.rules.spaces import Role, Visibility
from models.store import agents as store_agents
from models.store import migrate
from models.store import spaces as store_spaces
from models.store.database import admin_engine
from tests.servers import SharedServers, clone_database, drop_database
from tests.waiting import DEADLINE_SECONDS, POLL_SECONDS, wait_for

ROOT = Path(__file__).parent.parent
SECRET_KEYS = "k1:" + "s" * 40
TEMPLATE = "dibs_template"
SLUG = "multi-agent-research"
MAR: dict[str, Any] = msgspec.json.decode((ROOT / "tests/data/mar_v0.json").read_bytes())
CATALOG = msgspec.convert(MAR["catalog"], tuple[CatalogRow, ...])
TITLES: dict[int, str] = {row["task"]: row["title"] for row in MAR["titles"]}
SLOTS: dict[int, str] = {row["task"]: row["slot"] for row in MAR["titles"]}


async def until(what: str, condition: Callable[[], Any], *, seconds: float = DEADLINE_SECONDS) -> Any:
    """Return the condition's first true value, awaited if it is awaitable."""
    ends = time.monotonic() + seconds
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < ends, f"waited {seconds:g} s for: {what}"
        await asyncio.sleep(POLL_SECONDS)


class Database(NamedTuple):
    """One database, as the service and as the owner of its schema."""

    service_url: str
    owner_url: str

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        """Run one statement as the owner and return its rows, if it has any."""
        with psycopg.connect(self.owner_url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(query, values)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *values: object) -> Any:
        """Return the first column of the first row."""
        return next(iter(self.rows(query, *values)[0].values()))


@contextmanager
def fresh_database(servers: SharedServers) -> Iterator[Database]:
    """Clone the migrated database and drop the clone at the end."""
    name = f"t{uuid7().hex}"
    clone_database(servers.postgres, name, template=TEMPLATE)
    yield Database(
        servers.postgres.url(role=SERVICE, database=name),
        servers.postgres.url(role=OWNER, database=name),
    )
    drop_database(servers.postgres, name)


class Agent(NamedTuple):
    """An agent with a key."""

    id: str
    handle: str
    key_id: str
    key: str


class Board(NamedTuple):
    """A space and its members."""

    slug: str
    space_id: int
    members: tuple[Agent, ...]

    @property
    def path(self) -> str:
        return f"/v0/spaces/{self.slug}/tasks"

    @property
    def partition(self) -> str:
        return f"space:{self.slug}"


def migrated(owner_url: str) -> None:
    """Bring a fresh database to the present schema."""
    with admin_engine(owner_url).begin() as connection:
        migrate.upgrade(connection, service_role=SERVICE)


def add_agents(database: Database, handles: Iterable[str]) -> tuple[Agent, ...]:
    """Add agents with one key each."""
    wanted = list(handles)
    with admin_engine(database.owner_url).begin() as connection:
        found = store_agents.ensure_agents(connection, wanted)
        keys = store_agents.issue_keys(connection, wanted)
    return tuple(Agent(found[name].id, name, keys[name].key_id, keys[name].key) for name in wanted)


def add_board(
    database: Database,
    *,
    slug: str = SLUG,
    members: int = 8,
    visibility: Visibility = Visibility.PUBLIC,
    catalog: tuple[CatalogRow, ...] = CATALOG,
) -> Board:
    """Create a space with the MAR catalog and so many members, ``<slug>-0`` and on."""
    found = add_agents(database, [f"{slug}-{number}" for number in range(members)])
    with admin_engine(database.owner_url).begin() as connection:
        space_id = store_spaces.create_space(connection, slug, visibility=visibility, catalog=catalog)
        store_spaces.set_members(connection, space_id, {agent.id: Role.MEMBER for agent in found})
    return Board(slug, space_id, found)


class Request(NamedTuple):
    """One POST of a race."""

    agent: Agent
    path: str
    body: object
    headers: Mapping[str, str] = {}


def headers_of(agent: Agent, **more: str) -> dict[str, str]:
    """Return the agent's Authorization beside further headers (underscores become hyphens)."""
    return {"Authorization": f"Bearer {agent.key}"} | {name.replace("_", "-"): text for name, text in more.items()}


async def post_many(client: httpx.AsyncClient, requests: Sequence[Request]) -> list[httpx.Response]:
    """Send all requests at once, each from its own task, released by a barrier."""
    barrier = asyncio.Barrier(len(requests))

    async def one(request: Request) -> httpx.Response:
        await barrier.wait()
        return await client.post(
            request.path, json=request.body, headers=headers_of(request.agent) | dict(request.headers)
        )

    return list(await asyncio.gather(*map(one, requests)))


async def in_one_window(
    service: "Stack", client: httpx.AsyncClient, several: Sequence[Request]
) -> list[httpx.Response]:
    """Send requests that stand in one window in this order; the worker that takes it starts after the last."""
    async with asyncio.TaskGroup() as group:
        posted = []
        for number, one in enumerate(several, start=1):
            call = client.post(one.path, json=one.body, headers=headers_of(one.agent) | dict(one.headers))
            posted.append(group.create_task(call))
            partition = f"space:{one.path.split('/')[3]}"
            await until("the append", lambda number=number, at=partition: service.open_intents(at) >= number)
        service.start_worker(ready=False)
        return list(await asyncio.gather(*posted))


async def create(client: httpx.AsyncClient, board: Board, agent: Agent, body: object, **headers: str) -> httpx.Response:
    """Post one task."""
    return await client.post(board.path, json=body, headers=headers_of(agent, **headers))


def play(service: "Stack", scenario: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """Run a scenario with a client of the service."""

    async def go() -> None:
        async with service.client() as client:
            await scenario(client)

    asyncio.run(go())


class Stack:
    """Processes of the service. Each ends with this process, and ``close`` ends them before."""

    def __init__(self, folder: Path, *, database: Database, redis_url: str, **settings: int) -> None:
        self.database = database
        self.redis_url = redis_url
        self.folder = folder
        self.settings = settings
        self.workers: list[Child] = []
        self.webs: list[Child] = []
        self._logs: list[Path] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "DIBS_DATABASE_URL": self.database.service_url,
            "DIBS_REDIS_URL": self.redis_url,
            "DIBS_SECRET_KEYS": SECRET_KEYS,
            **{f"DIBS_{name.upper()}": str(number) for name, number in self.settings.items()},
        }

    def start_web(self, processes: int = 1, *, ready: bool = True) -> Child:
        """Start gunicorn on the stack's address and return when it is ready to serve."""
        # The socket outlives a killed server, so that a new one is found under the old address.
        fd = self._socket.fileno()
        web = self._start(
            "web",
            *("-m", "gunicorn", "--config", "deploy/gunicorn.conf.py", "--bind", f"fd://{fd}"),
            *("--workers", str(processes)),
            keep_open=(fd,),
        )
        self.webs.append(web)
        if ready:
            self.wait_ready()
        return web

    def start_worker(self, *arguments: str, ready: bool = True) -> Child:
        """Start a worker and return when it works; arguments are those of ``faulty_worker.py``."""
        worker = self._start(f"worker-{len(self.workers)}", "tests/faulty_worker.py", *arguments)
        self.workers.append(worker)
        if ready:
            self.wait_ready()
        return worker

    def wait_ready(self) -> None:
        """Return when all that was started serves."""
        for web in self.webs:
            wait_for("/readyz to answer 200", lambda web=web: self._answers("/readyz", web))
        for number, worker in enumerate(self.workers):
            log = self.folder / f"worker-{number}.log"
            wait_for(
                "a worker to start",
                lambda worker=worker, log=log: worker.poll() is not None or "worker_started" in log.read_text(),
            )

    def _start(self, name: str, *arguments: str, keep_open: tuple[int, ...] = ()) -> Child:
        log = self.folder / f"{name}.log"
        if log not in self._logs:
            self._logs.append(log)
        log.touch()
        return Child(
            Launch(
                argv=(sys.executable, *arguments),
                env=self.environment,
                cwd=ROOT,
                log=log,
                death_signal=SIGKILL,
                keep_open=keep_open,
            )
        )

    def _answers(self, path: str, web: Child) -> bool:
        assert web.poll() is None, f"gunicorn ended: {self.logs()}"
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}{path}", timeout=2).status_code == 200
        return False

    @asynccontextmanager
    async def client(self, *, patience: float = 30.0):
        """Yield a client of the web processes without a limit on connections."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=patience, limits=limits, trust_env=False) as client:
            yield client

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.redis_url)

    def open_intents(self, partition: str) -> int:
        """Return how many intents of the partition are not answered yet."""
        with self.redis() as client:
            return int(client.hget(f"dibs:p:{partition}", "open") or 0)

    def idle_workers(self) -> int:
        """Return how many workers wait for a job."""
        with self.redis() as client:
            return sum(one["cmd"] == "blmove" and "b" in one["flags"] for one in client.client_list())

    def logs(self) -> str:
        """Return the end of every process's log."""
        return "\n".join(f"--- {log.name}\n{_tail(log)}" for log in self._logs)

    def close(self) -> None:
        """Kill what still runs."""
        for child in (*self.webs, *self.workers):
            child.send(Signals(SIGCONT))
            child.send(Signals(SIGKILL))
            child.wait(seconds=10)
        self._socket.close()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-60:])


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]
