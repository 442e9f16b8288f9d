"""Tasks of a space. Seed 000, section 4; Contract 2.2, 2.4."""

from __future__ import annotations

import falcon.asgi

from models.rules.codes import Code
from models.rules.outcomes import encode
from models.store import reads
from web.directory import Directory
from web.inputs import batch_decoder, create_task, task_decoder
from web.problems import Refusal
from web.sql import Sql
from web.strict_json import parse
from web.transport import BATCH_LIMIT_BYTES, BODY_LIMIT_BYTES, bearer, read_body
from web.writes import Writes

_LARGEST_ID = 2**63 - 1


class Tasks:
    """``POST /v0/spaces/{slug}/tasks``: one proposal, one answer."""

    def __init__(self, directory: Directory, writes: Writes) -> None:
        self._directory = directory
        self._writes = writes

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Propose a task: 201 and the task, or 409 and who has it."""
        body = await read_body(req, BODY_LIMIT_BYTES)
        principal = await self._directory.authenticate(bearer(req))
        space = await self._directory.space(slug, principal)
        intent = create_task(parse(body, task_decoder))
        await self._writes.answer(req, resp, principal=principal, slug=space.slug, intents=[intent])


class TaskBatch:
    """``POST /v0/spaces/{slug}/tasks/batch``: up to a hundred proposals with one received_seq."""

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

    def __init__(self, directory: Directory, sql: Sql) -> None:
        self._directory = directory
        self._sql = sql

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, task_id: str) -> None:
        """Answer the task as it stands."""
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        number = _task_id(task_id)
        async with self._sql.connection() as connection:
            found = await reads.task(connection, space.id, number)
        if found is None:
            raise Refusal(Code.TASK_NOT_FOUND)
        resp.content_type = "application/json"
        resp.data = encode(found).encode()


def _task_id(text: str) -> int:
    """Return a task id as it is written: decimal, without sign or leading zero; any other names no task."""
    if not (text.isascii() and text.isdigit()) or text[0] == "0" or len(text) > len(str(_LARGEST_ID)):
        raise Refusal(Code.TASK_NOT_FOUND)
    number = int(text)
    if number > _LARGEST_ID:
        raise Refusal(Code.TASK_NOT_FOUND)
    return number
