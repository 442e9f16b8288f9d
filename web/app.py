"""The web process: routes and their parts, wired once. Only :func:`get_app` reads the environment."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Any, Final

import falcon
import falcon.asgi
import psycopg
import structlog
from psycopg_pool import PoolTimeout
from redis import RedisError

from models import settings as settings_module
from models.ids import uuid7
from models.rules.codes import Code
from models.settings import Settings
from models.store.database import async_pool
from models.trace import trace_of
from models.window.front import Front, connect
from web import problems, transport, work_problems
from web.directory import Directory
from web.feed import STOPPING, Feed, Ledger
from web.fleet import Heart
from web.intake import Intake
from web.paging import Cursors, Pages
from web.problems import Problem, Renderer
from web.resources.actions import ACTIONS, TaskAction
from web.resources.capabilities import Capabilities
from web.resources.charters import BindPreview, Charter
from web.resources.events import Events, EventStream
from web.resources.health import Alive, Ready
from web.resources.members import Member, Members
from web.resources.notes import Note, Notes, NoteWithdrawal
from web.resources.openapi import OpenApi
from web.resources.proposals import Proposal
from web.resources.spaces import Space, Spaces
from web.resources.tasks import Task, TaskBatch, Tasks
from web.resources.whoami import WhoAmI
from web.resources.windows import Window, Windows
from web.resources.work import Work, WorkItem, WorkProposal, WorkProposals, WorkReads, WorkResolution
from web.resources.work_contract import WorkCapabilities, WorkContract
from web.sql import Sql
from web.work_answers import Receipts
from web.work_writes import WorkWrites
from web.writes import Writes

TIMEOUT_MS: Final = 3_000
"""Longest wait for one statement or one Redis call of this process."""

SQL_CONNECTIONS: Final = 8
REDIS_CONNECTIONS: Final = 8
log = structlog.get_logger(__name__)


class Parts:
    """What the routes share. Connections open in ``start``, inside the process that uses them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid7().hex[-8:]}"
        self.sql = Sql(
            async_pool(
                settings.database_url,
                application_name=f"dibs-web-{self.name}",
                timeout_ms=TIMEOUT_MS,
                size=SQL_CONNECTIONS,
            )
        )
        self.front = Front(
            connect(settings.redis_url, timeout_ms=TIMEOUT_MS, connections=REDIS_CONNECTIONS),
            settings,
            instance=uuid7().hex,
        )
        self.directory = Directory(self.sql, settings.floor)
        self.heart = Heart(self.sql, self.directory, name=self.name, floor=settings.floor)
        self.ledger = Ledger(self.sql)
        self.feed = Feed(self.directory, self.ledger)
        self.intake = Intake(self.front, self.sql, web_id=self.name, wait_ms=settings.wait_ms)
        cursors = Cursors(settings.secret_keys)
        self.pages = Pages(self.sql, cursors)
        self.work_reads = WorkReads(self.directory, self.sql, cursors, settings)
        self.work_writes = WorkWrites(self.intake, self.directory, self.sql, settings, Receipts(settings))
        self.writes = Writes(self.intake, self.directory, self.sql, settings.secret_keys)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open the pool and start the loops. Storage may be down: the process then serves 503 until it is back."""
        await self.sql.open()
        self._tasks = [
            asyncio.create_task(loop, name=name)
            for name, loop in (
                ("watch", self.directory.watch()),
                ("replies", self.intake.run_replies()),
                ("look", self.intake.run_look()),
                ("feed", self.feed.run()),
                ("heart", self.heart.run()),
            )
        ]
        for task in self._tasks:
            task.add_done_callback(_loop_ended)
        # What waits in the socket's queue while processes are exchanged is answered by one that can.
        await self.directory.wait_first_look()

    async def stop(self) -> None:
        """End the loops and close what was opened."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.heart.stop()
        await self.sql.close()
        await self.front.aclose()


def _loop_ended(task: asyncio.Task[None]) -> None:
    """Leave the process to its supervisor when a loop ends by a bug: without it nothing here is answered."""
    if not task.cancelled():
        error = task.exception()
        trace = [] if error is None else list(trace_of(error))
        log.critical("loop_ended", loop=task.get_name(), trace=trace)
        os._exit(70)


class _Lifespan:
    """Falcon's start and stop, as middleware."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def process_startup(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:  # noqa: ARG002
        await self._parts.start()
        scope.get("state", {})[STOPPING] = self._parts.feed.stop

    async def process_shutdown(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:  # noqa: ARG002
        await self._parts.stop()


def create_app(parts: Parts) -> falcon.asgi.App[Any, Any]:
    """Return the application with its routes."""
    app = transport.EdgeApp()
    app.add_middleware(_Lifespan(parts))
    app.add_route("/healthz", Alive())
    app.add_route("/readyz", Ready(parts.directory, parts.sql, parts.front))
    app.add_route("/v0/openapi.json", OpenApi(app.operations))
    app.add_route("/v0/whoami", WhoAmI(parts.directory))
    app.add_route("/v0/proposals/{proposal_id}", Proposal(parts.directory, parts.sql, parts.front))
    space = "/v0/spaces/{slug}"
    app.add_route("/v0/capabilities", Capabilities(parts.directory))
    app.add_route("/v0/spaces", Spaces(parts.directory, parts.pages, parts.writes))
    app.add_route(space, Space(parts.directory, parts.sql))
    app.add_route(f"{space}/charter", Charter(parts.directory, parts.sql, parts.writes))
    app.add_route(f"{space}/bind-preview", BindPreview(parts.directory, parts.sql))
    app.add_route(f"{space}/members", Members(parts.directory, parts.pages))
    app.add_route(f"{space}/members/{{agent}}", Member(parts.directory, parts.sql, parts.writes))
    app.add_route(f"{space}/windows", Windows(parts.directory, parts.pages))
    app.add_route(f"{space}/windows/{{window_id}}", Window(parts.directory, parts.sql))
    board = f"{space}/tasks"
    app.add_route(board, Tasks(parts.directory, parts.pages, parts.writes))
    app.add_route(f"{board}/batch", TaskBatch(parts.directory, parts.writes))
    task = f"{board}/{{task_id}}"
    app.add_route(task, Task(parts.directory, parts.sql))
    for name in ACTIONS:
        app.add_route(f"{task}/{name}", TaskAction(name, parts.directory, parts.writes))
    app.add_route(f"{task}/notes", Notes(parts.directory, parts.pages, parts.writes))
    app.add_route(f"{task}/notes/{{note_id}}", Note(parts.directory, parts.sql))
    withdrawal = NoteWithdrawal(parts.directory, parts.writes)
    app.add_route(f"{task}/notes/{{note_id}}/withdraw", withdrawal)
    app.add_route(f"{space}/notes/{{note_id}}/withdraw", withdrawal, suffix="alone")
    commons = work_problems.PREFIX
    offered = WorkCapabilities(parts.directory, app.operations, parts.settings)
    app.add_route(f"{commons}/capabilities", offered)
    app.add_route(f"{commons}/work-contract", WorkContract(app.operations, parts.settings))
    app.add_route(f"{commons}/work", Work(parts.work_reads, parts.work_writes))
    item = WorkItem(parts.work_reads, parts.work_writes)
    app.add_route(f"{commons}/work/{{work_id}}", item)
    for name in ("corrections", "withdrawal", "proposals"):
        app.add_route(f"{commons}/work/{{work_id}}/{name}", item, suffix=name)
    app.add_route(f"{commons}/work-proposals", WorkProposals(parts.work_reads))
    work_proposal = WorkProposal(parts.work_reads, parts.work_writes)
    app.add_route(f"{commons}/work-proposals/{{work_proposal_id}}", work_proposal)
    app.add_route(f"{commons}/work-proposals/{{work_proposal_id}}/actions", work_proposal, suffix="actions")
    app.add_route(f"{commons}/work-resolution", WorkResolution(parts.work_writes))
    app.add_route(f"{space}/events", Events(parts.directory, parts.ledger))
    app.add_route(f"{space}/events/stream", EventStream(parts.directory, parts.feed))
    transport.install(app)
    problems.install(app, renderer_of=_renderer_of)
    for kind in (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout, RedisError):
        app.add_error_handler(kind, _unreachable)
    return app


def _renderer_of(path: str) -> Renderer:
    """Return how an error of a path reads: each of the two APIs has its own shape."""
    return work_problems.work_document if path.startswith(work_problems.PREFIX) else problems.spaces_document


async def _unreachable(
    req: falcon.asgi.Request, resp: falcon.asgi.Response, error: Exception, _params: dict[str, Any]
) -> None:
    """Answer that storage is out of reach. Waiting for an outcome never ends here, so nothing was written."""
    log.warning("storage_unreachable", kind=type(error).__name__)
    found = Problem(code=Code.COMMONS_RUNTIME_UNAVAILABLE, write_occurred=False)
    problems.write(resp, found, _renderer_of(req.path))


def get_app() -> falcon.asgi.App[Any, Any]:
    """Return the application for a server such as gunicorn: ``web.app:get_app()``."""
    return create_app(Parts(settings_module.load()))
