"""Windows: when they were decided, in which order, and why who lost. Contract 2.7."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

import falcon.asgi
import msgspec

from models.rules.codes import Code
from models.rules.intents import partition_of
from models.rules.windows import ExplainedWindow, WindowView, explain
from models.store import space_reads
from web.answers import answer
from web.directory import Directory
from web.operations import Auth, Operation
from web.paging import PAGE_QUERY, PROTOCOL, Page, Pages, number
from web.problems import Refusal
from web.sql import Sql
from web.transport import bearer


class WindowList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of windows, the latest first."""

    windows: tuple[WindowView, ...]
    page: Page
    protocol: str


class Windows:
    """``GET /v0/spaces/{slug}/windows``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="listSpaceWindows",
            summary="The windows of the last 30 days, the latest first",
            answers={200: WindowList},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.CURSOR_INVALID}),
            query=PAGE_QUERY,
        )
    }

    def __init__(self, directory: Directory, pages: Pages) -> None:
        self._directory = directory
        self._pages = pages

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Answer a page of windows."""
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        partition = partition_of(space.slug)
        windows, page = await self._pages.read(
            req.context.query,
            "windows",
            str(space.id),
            rows=lambda connection, before, limit: space_reads.windows(
                connection, partition, before=number(before), limit=limit
            ),
            position=lambda window: str(window.last_seq),
        )
        answer(resp, WindowList(windows=windows, page=page, protocol=PROTOCOL))


class Window:
    """``GET /v0/spaces/{slug}/windows/{window_id}``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="explainSpaceWindow",
            summary="One window: its intents in the order in which they were decided, and who lost to whom",
            answers={200: ExplainedWindow},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.WINDOW_NOT_FOUND}),
        )
    }

    def __init__(self, directory: Directory, sql: Sql) -> None:
        self._directory = directory
        self._sql = sql

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, window_id: str) -> None:
        """Answer the window."""
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        try:
            wanted = UUID(window_id)
        except ValueError:
            raise Refusal(Code.WINDOW_NOT_FOUND) from None
        async with self._sql.connection() as connection:
            found = await space_reads.window(connection, partition_of(space.slug), wanted)
        if found is None or str(wanted) != window_id:
            raise Refusal(Code.WINDOW_NOT_FOUND)
        view, outcomes, reserved = found
        answer(resp, explain(view, outcomes, space=space.slug, reserved=reserved))
