"""Tasks of a space. Seed 000, section 4; Contract 2.2, 2.4."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

import falcon.asgi
import msgspec

from models.rules.codes import Code
from models.rules.intents import CreateTask
from models.rules.tasks import LIVE, Status
from models.rules.tasks import Task as TaskView
from models.store import lists, reads
from web.answers import answer
from web.directory import Directory
from web.inputs import BatchInput, TaskInput, batch_decoder, create_task, task_decoder
from web.operations import Auth, Operation, Query
from web.paging import PAGE_QUERY, PROTOCOL, Page, Pages, integer_of, number
from web.paths import task_id_of
from web.problems import Refusal
from web.sql import Sql
from web.strict_json import parse
from web.transport import BATCH_LIMIT_BYTES, BODY_LIMIT_BYTES, bearer, read_body
from web.writes import Writes

_STALE_SECONDS_MAX: Final = 365 * 24 * 3600
_BOOLEANS: Final = MappingProxyType({"true": True, "false": False})
_CREATION: Final = frozenset(
    {
        Code.TITLE_EMPTY,
        Code.TITLE_INVALID,
        Code.BODY_INVALID,
        Code.WORK_ITEM_ID_INVALID,
        Code.DELIVERY_MODE_UNKNOWN,
        Code.VALIDATION_POLICY_UNKNOWN,
    }
)


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tasks, the latest first. Seed 003, AC-5."""

    tasks: tuple[TaskView, ...]
    page: Page
    protocol: str


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one proposal of a batch: a task for 201, else a problem document."""

    status: int
    proposal_id: str
    body: dict[str, Any]


class BatchResults(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to a batch, in request order."""

    results: tuple[BatchResult, ...]


class Tasks:
    """``/v0/spaces/{slug}/tasks``: the board, and one proposal at a time."""

    operations: ClassVar = {
        "on_get": Operation(
            id="listSpaceTasks",
            summary="The tasks of a space, the latest first: the live board, or those in the states that are asked for",
            answers={200: TaskList},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.CURSOR_INVALID}),
            query=MappingProxyType(
                {
                    **PAGE_QUERY,
                    "status": Query({"type": "string"}, "States, separated by commas, or all; absent: the live ones."),
                    "include_superseded": Query(
                        {"type": "boolean", "default": False}, "Superseded tasks beside those asked for."
                    ),
                    "stale": Query(
                        {"type": "integer", "minimum": 0, "maximum": _STALE_SECONDS_MAX},
                        "Only tasks that were claimed at least so many seconds ago and still are.",
                    ),
                }
            ),
        ),
        "on_post": Operation(
            id="createSpaceTask",
            summary="Propose a task; the first proposal of a piece of work becomes its one task",
            answers={201: TaskView},
            codes=_CREATION | {Code.CONFLICT_KEY_OCCUPIED, Code.CONFLICT_KEY_RESERVED},
            body=TaskInput,
            intent=CreateTask,
            etag=True,
        ),
    }

    def __init__(self, directory: Directory, pages: Pages, writes: Writes) -> None:
        self._directory = directory
        self._pages = pages
        self._writes = writes

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Answer a page of the board."""
        query = req.context.query
        statuses = _statuses(query)
        stale = integer_of(query, "stale", 0, _STALE_SECONDS_MAX, 0) if "stale" in query else None
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        tasks, page = await self._pages.read(
            query,
            "tasks",
            str(space.id),
            ",".join(sorted(statuses)),
            str(stale),
            rows=lambda connection, before, limit: lists.tasks(
                connection, space.id, statuses=statuses, stale_seconds=stale, before=number(before), limit=limit
            ),
            position=lambda task: str(task.id),
        )
        answer(resp, TaskList(tasks=tasks, page=page, protocol=PROTOCOL))

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Propose a task: 201 and the task, or 409 and who has it."""
        body = await read_body(req, BODY_LIMIT_BYTES)
        principal = await self._directory.authenticate(bearer(req))
        space = await self._directory.space(slug, principal)
        intent = create_task(parse(body, task_decoder))
        await self._writes.answer(req, resp, principal=principal, slug=space.slug, intents=[intent])


class TaskBatch:
    """``POST /v0/spaces/{slug}/tasks/batch``: up to a hundred proposals with one received_seq."""

    operations: ClassVar = {
        "on_post": Operation(
            id="createSpaceTasks",
            summary="Propose up to a hundred tasks at once; each has its own answer",
            answers={200: BatchResults},
            codes=_CREATION,
            body=BatchInput,
            intent=CreateTask,
        )
    }

    def __init__(self, directory: Directory, writes: Writes) -> None:
        self._directory = directory
        self._writes = writes

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Propose tasks: 200 and a result for each, in request order."""
        body = await read_body(req, BATCH_LIMIT_BYTES)
        principal = await self._directory.authenticate(bearer(req))
        space = await self._directory.space(slug, principal)
        given = parse(body, batch_decoder)
        intents = [create_task(one, at=f"/tasks/{number}") for number, one in enumerate(given.tasks)]
        await self._writes.answer(req, resp, principal=principal, slug=space.slug, intents=intents, batch=True)


class Task:
    """``GET /v0/spaces/{slug}/tasks/{task_id}``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="getSpaceTask",
            summary="One task; a superseded one names its survivor as it was recorded",
            answers={200: TaskView},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.TASK_NOT_FOUND}),
            etag=True,
        )
    }

    def __init__(self, directory: Directory, sql: Sql) -> None:
        self._directory = directory
        self._sql = sql

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, task_id: str) -> None:
        """Answer the task as it stands."""
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        number = task_id_of(task_id)
        async with self._sql.connection() as connection:
            found = await reads.task(connection, space.id, number)
        if found is None:
            raise Refusal(Code.TASK_NOT_FOUND)
        answer(resp, found, revision=found.revision)


def _statuses(query: Mapping[str, str]) -> frozenset[Status]:
    """Return the states that a list is to have.

    Raises:
        Refusal: ``query_invalid``.
    """
    also = _BOOLEANS.get(query.get("include_superseded", "false"))
    asked = query.get("status")
    names = [] if asked is None else asked.split(",")
    if asked == "all" and also is not None:
        return frozenset(Status)
    if also is None or len(set(names)) != len(names) or not {*names} <= {*Status}:
        raise Refusal(Code.QUERY_INVALID)
    statuses = frozenset(map(Status, names)) if names else LIVE
    return statuses | {Status.SUPERSEDED} if also else statuses
