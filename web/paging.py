"""Lists in pages: opaque cursors that only their own list takes, and the block that every page bears. Contract 2.6."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from models.rules.canonical import keyed_digest
from models.rules.codes import Code
from models.settings import SecretKey
from models.store.reads import Connection
from web.operations import Query
from web.problems import Refusal
from web.sql import Sql

PROTOCOL: Final = "spaces/0.1-draft"
LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 100

PAGE_QUERY: Final[Mapping[str, Query]] = MappingProxyType(
    {
        "limit": Query(
            {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}, "Rows of a page."
        ),
        "cursor": Query({"type": "string", "maxLength": 512}, "page.next_cursor of the page before, as it was given."),
    }
)
"""Query fields of every list."""

_PURPOSE: Final = "spaces/cursor"
_MAC_BYTES: Final = 16


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The page block: ``next_cursor`` is null on the last page."""

    limit: int
    has_more: bool
    next_cursor: str | None


class Cursors:
    """Writes and reads cursors. A cursor is a position and a MAC over it and the list it belongs to.

    It names no row: that one may be gone by the time the cursor comes back, and paging goes on behind its place.
    """

    def __init__(self, secrets: Sequence[SecretKey]) -> None:
        self._secrets = secrets

    def write(self, position: str, *scope: str) -> str:
        """Return the cursor of a place in the list that ``scope`` names: route, space, every filter."""
        raw = position.encode()
        return base64.urlsafe_b64encode(self._mac(self._secrets[0], raw, scope) + raw).rstrip(b"=").decode()

    def read(self, cursor: str, *scope: str) -> str:
        """Return the place behind a cursor of the same list.

        Raises:
            Refusal: ``cursor_invalid`` for any other text: forged, cut, changed, or another list's.
        """
        try:
            found = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise Refusal(Code.CURSOR_INVALID) from None
        mac, raw = found[:_MAC_BYTES], found[_MAC_BYTES:]
        # One place has one cursor: bits that base64 leaves over do not make a second.
        canonical = base64.urlsafe_b64encode(found).rstrip(b"=") == cursor.encode()
        genuine = any(hmac.compare_digest(mac, self._mac(secret, raw, scope)) for secret in self._secrets)
        if not (canonical and genuine):
            raise Refusal(Code.CURSOR_INVALID)
        return raw.decode()

    def page(self, limit: int, positions: Sequence[str], *scope: str) -> Page:
        """Return the block of a page whose rows have these places; one row more than ``limit`` says there are more."""
        more = len(positions) > limit
        return Page(limit=limit, has_more=more, next_cursor=self.write(positions[limit - 1], *scope) if more else None)

    @staticmethod
    def _mac(secret: SecretKey, raw: bytes, scope: Sequence[str]) -> bytes:
        return keyed_digest(secret.secret, _PURPOSE, raw, *scope)[:_MAC_BYTES]


Row = TypeVar("Row")


class Pages:
    """Reads pages of any list: the one way from a query to rows and their page block."""

    def __init__(self, sql: Sql, cursors: Cursors) -> None:
        self._sql = sql
        self._cursors = cursors

    async def read(
        self,
        query: Mapping[str, str],
        *scope: str,
        rows: Callable[[Connection, str | None, int], Awaitable[list[Row]]],
        position: Callable[[Row], str],
    ) -> tuple[tuple[Row, ...], Page]:
        """Return a page of the list that ``scope`` names.

        ``rows`` reads so many rows behind a place (None: from the beginning); ``position`` says a row's own place.

        Raises:
            Refusal: ``query_invalid``, ``cursor_invalid``.
        """
        limit = limit_of(query)
        behind = self._cursors.read(query["cursor"], *scope) if "cursor" in query else None
        async with self._sql.connection() as connection:
            found = await rows(connection, behind, limit + 1)
        page = self._cursors.page(limit, [position(row) for row in found], *scope)
        return tuple(found[:limit]), page


def number(place: str | None) -> int | None:
    """Return a place that is an id; only a genuine cursor brings one."""
    return None if place is None else int(place)


def limit_of(query: Mapping[str, str]) -> int:
    """Return how many rows a page is to have.

    Raises:
        Refusal: ``query_invalid`` for anything but a decimal from 1 to 100.
    """
    return integer_of(query, "limit", 1, LIMIT_MAX, LIMIT_DEFAULT)


def integer_of(query: Mapping[str, str], name: str, least: int, most: int, default: int) -> int:
    """Return a query field that is a decimal without sign or leading zeros.

    Raises:
        Refusal: ``query_invalid``.
    """
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or (text[0] == "0" and text != "0") or len(text) > len(str(most)):
        raise Refusal(Code.QUERY_INVALID, f"Send {name} as a whole number from {least} to {most}.")
    number = int(text)
    if not least <= number <= most:
        raise Refusal(Code.QUERY_INVALID, f"Send {name} as a whole number from {least} to {most}.")
    return number
