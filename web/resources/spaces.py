"""Spaces: which there are, one of them, and new ones. Contract 2.7."""

from __future__ import annotations

from typing import ClassVar, Final

import falcon.asgi
import msgspec

from models.rules.codes import Code
from models.rules.intents import CreateSpace, actor_partition
from models.rules.outcomes import encode
from models.rules.spaces import SpaceView
from models.store import space_reads
from web.directory import Directory
from web.operations import Auth, Operation
from web.paging import PAGE_QUERY, PROTOCOL, Cursors, Page, limit_of
from web.problems import Refusal
from web.space_inputs import SpaceInput, create_space
from web.sql import Sql
from web.strict_json import parse
from web.transport import BATCH_LIMIT_BYTES, bearer, read_body
from web.writes import Writes

_decoder: Final = msgspec.json.Decoder(SpaceInput)


class SpaceList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of spaces, the latest first."""

    spaces: tuple[SpaceView, ...]
    page: Page
    protocol: str


class Spaces:
    """``/v0/spaces``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="listSpaces",
            summary="The public spaces and those that you are a member of, the latest first",
            answers={200: SpaceList},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.CURSOR_INVALID}),
            query=PAGE_QUERY,
        ),
        "on_post": Operation(
            id="createSpace",
            summary="Create a space; whoever does is its first steward",
            answers={201: SpaceView},
            codes=frozenset({Code.SLUG_INVALID, Code.SLUG_TAKEN, Code.VISIBILITY_UNKNOWN, Code.CATALOG_INVALID}),
            body=SpaceInput,
            intent=CreateSpace,
        ),
    }

    def __init__(self, directory: Directory, sql: Sql, cursors: Cursors, writes: Writes) -> None:
        self._directory = directory
        self._sql = sql
        self._cursors = cursors
        self._writes = writes

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer a page of the spaces that the caller may read."""
        principal = await self._directory.authenticate_optional(bearer(req))
        agent = None if principal is None else principal.agent_id
        query = req.context.query
        limit = limit_of(query)
        scope = ("spaces", agent or "")
        before = int(self._cursors.read(query["cursor"], *scope)) if "cursor" in query else None
        async with self._sql.connection() as connection:
            found = await space_reads.spaces(connection, agent, before=before, limit=limit + 1)
        page = self._cursors.page(limit, [str(number) for number, _ in found], *scope)
        resp.content_type = "application/json"
        views = tuple(view for _, view in found[:limit])
        resp.data = encode(SpaceList(spaces=views, page=page, protocol=PROTOCOL)).encode()

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Propose a space: 201 and the space, or 409 where the slug is not free."""
        body = await read_body(req, BATCH_LIMIT_BYTES)
        principal = await self._directory.authenticate(bearer(req))
        given = parse(body, _decoder)
        intent = create_space(given)
        partition = actor_partition(principal.agent_id)
        await self._writes.answer(
            req, resp, principal=principal, slug=given.slug, intents=[intent], partition=partition
        )


class Space:
    """``GET /v0/spaces/{slug}``."""

    operations: ClassVar = {
        "on_get": Operation(id="getSpace", summary="One space", answers={200: SpaceView}, auth=Auth.OPTIONAL)
    }

    def __init__(self, directory: Directory, sql: Sql) -> None:
        self._directory = directory
        self._sql = sql

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Answer the space."""
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        async with self._sql.connection() as connection:
            found = await space_reads.space(connection, space.id)
        if found is None:
            raise Refusal(Code.SPACE_NOT_FOUND)
        resp.content_type = "application/json"
        resp.data = encode(found).encode()
