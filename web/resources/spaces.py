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
from web.answers import answer
from web.directory import Directory
from web.operations import Auth, Operation
from web.paging import PAGE_QUERY, PROTOCOL, Page, Pages, number
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

    def __init__(self, directory: Directory, pages: Pages, writes: Writes) -> None:
        self._directory = directory
        self._pages = pages
        self._writes = writes

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer a page of the spaces that the caller may read."""
        principal = await self._directory.authenticate_optional(bearer(req))
        agent = None if principal is None else principal.agent_id
        found, page = await self._pages.read(
            req.context.query,
            "spaces",
            agent or "",
            rows=lambda connection, before, limit: space_reads.spaces(
                connection, agent, before=number(before), limit=limit
            ),
            position=lambda row: str(row[0]),
        )
        resp.content_type = "application/json"
        views = tuple(view for _, view in found)
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
        answer(resp, found)
