"""What happened in a space, by page and as a stream. Contract 1.2 (invariant 10) and 2.7."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar, Final

import falcon.asgi
import msgspec

from models.rules.codes import Code
from web.answers import answer
from web.directory import Directory
from web.feed import CONNECTION, Feed, Ledger
from web.operations import Auth, Operation, Query
from web.paging import PAGE_QUERY, PROTOCOL, integer_of, limit_of
from web.problems import Refusal
from web.readers import EventView, view
from web.transport import bearer

PAGE_BYTES: Final = 1024 * 1024
"""Most data of a page's events, unless its first one alone is larger."""

NUMBER_MAX: Final = 2**53 - 1
_AFTER: Final = Query(
    {"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}, "Number of the last event that was seen; 0: none."
)


class EventsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page block: the next page is the one after ``next_after``, whether or not there is more by now."""

    limit: int
    has_more: bool
    next_after: int


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    """Events in ascending order. Numbers begin at 1 and have no gaps."""

    events: tuple[EventView, ...]
    page: EventsPage
    protocol: str


class Events:
    """``GET /v0/spaces/{slug}/events``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="listSpaceEvents",
            summary="What happened in a space after an event, oldest first; never a gap, however slow a commit was",
            answers={200: EventList},
            auth=Auth.OPTIONAL,
            query=MappingProxyType(
                {
                    "after": Query({**_AFTER.schema, "default": 0}, _AFTER.summary),
                    "limit": PAGE_QUERY["limit"],
                }
            ),
        )
    }

    def __init__(self, directory: Directory, ledger: Ledger) -> None:
        self._directory = directory
        self._ledger = ledger

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Answer the events that follow number ``after``."""
        after = integer_of(req.context.query, "after", 0, NUMBER_MAX, 0)
        limit = limit_of(req.context.query)
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        found = await self._ledger.page(space.id, after, limit=limit, max_bytes=PAGE_BYTES)
        events = tuple(view(event) for event in found.events)
        page = EventsPage(limit=limit, has_more=found.has_more, next_after=events[-1].number if events else after)
        answer(resp, EventList(events=events, page=page, protocol=PROTOCOL))


class EventStream:
    """``GET /v0/spaces/{slug}/events/stream``: server-sent events, one for each event of the space.

    ``Last-Event-ID``, or else ``after``, says behind which number to begin; without either the stream begins with the
    next event that happens. A reader that does not keep up is cut and goes on with Last-Event-ID, as does one whose
    server stops.
    """

    operations: ClassVar = {
        "on_get": Operation(
            id="streamSpaceEvents",
            summary="What happens in a space, as server-sent events: behind Last-Event-ID or after, else from now on",
            answers={200: str},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.HEADER_INVALID, Code.RATE_LIMITED}),
            query=MappingProxyType({"after": _AFTER}),
            media_type="text/event-stream",
        )
    }

    def __init__(self, directory: Directory, feed: Feed) -> None:
        self._directory = directory
        self._feed = feed

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Answer the events as they happen, until one of the two leaves."""
        after = _begins_after(req)
        key = bearer(req)
        principal = await self._directory.authenticate_optional(key)
        space = await self._directory.space(slug, principal)
        resp.content_type = "text/event-stream"
        resp.set_header("Cache-Control", "no-store")
        # A proxy that gathers what it passes on would hold the events back.
        resp.set_header("X-Accel-Buffering", "no")
        resp.stream = await self._feed.open(
            space, key=key, principal=principal, after=after, wire=req.scope.get(CONNECTION)
        )


def _begins_after(req: falcon.asgi.Request) -> int | None:
    """Return the number behind which the stream is to begin, None for the latest.

    Raises:
        Refusal: ``header_invalid``, ``query_invalid``.
    """
    query = req.context.query
    after = integer_of(query, "after", 0, NUMBER_MAX, 0) if "after" in query else None
    seen = req.get_header("Last-Event-ID")
    if seen is None:
        return after
    try:
        return integer_of({"seen": seen}, "seen", 0, NUMBER_MAX, 0)
    except Refusal:
        raise Refusal(Code.HEADER_INVALID, "Send Last-Event-ID as the id of an event of this stream.") from None
