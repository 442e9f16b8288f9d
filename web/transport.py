"""What HTTP leaves open and the contract does not: headers, query and body are taken in one form only.

Servers and frameworks repair what they get: Falcon joins repeated headers, takes the last of repeated query
fields, hands a cut body over as a short one and has no limit. Each such repair is a second reading of one
request, so it is refused here instead. The functions look at one matter each; :class:`Edge` applies those
that hold on every route. Contract 6.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

import falcon
import falcon.asgi
from falcon.routing.util import map_http_methods

from models.rules.codes import Code
from web.operations import Operation
from web.problems import Refusal

BODY_LIMIT_BYTES: Final = 64 * 1024
"""Limit of a spaces body."""

BATCH_LIMIT_BYTES: Final = 1024 * 1024
"""Limit of a batch."""

SINGLE_HEADERS: Final = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"last-event-id",
        b"transfer-encoding",
    }
)
"""Headers that decide what a request means and may stand in it once. Prefer is a list and may be repeated."""

IDEMPOTENCY_KEY_CHARACTERS: Final = 200
"""Longest Idempotency-Key."""

MAX_KEY_CHARACTERS: Final = 512
"""Bound of a bearer key, far above any that is issued here."""

Scope: TypeAlias = Mapping[str, Any]

_NO_FIELDS: Final[frozenset[str]] = frozenset()
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
_MEDIA_TYPE: Final = re.compile(
    r'application/json(?:[ \t]*;[ \t]*charset=(?:utf-8|"utf-8"))?[ \t]*\Z', re.IGNORECASE | re.ASCII
)
_LENGTH: Final = re.compile(r"[0-9]+\Z")
_LENGTH_DIGITS: Final = 18
_BEARER_KEY: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*\Z")
_IDEMPOTENCY_KEY: Final = re.compile(rf"[\x21-\x7e]{{1,{IDEMPOTENCY_KEY_CHARACTERS}}}\Z")
_QUERY: Final = re.compile(rb"(?:[A-Za-z0-9\-._~!$'()*+,;:@/?=&]|%[0-9A-Fa-f]{2})*+\Z")
_ENTITY_TAG: Final = r'(?:W/)?"[\x21\x23-\x7e]*+"'
_ENTITY_TAGS: Final = re.compile(rf"[ \t]*+{_ENTITY_TAG}(?:[ \t]*+,[ \t]*+{_ENTITY_TAG})*+[ \t]*+\Z")
_REVISIONS: Final = re.compile(r'(?<!/)"([1-9][0-9]{0,9})"')
# One element of a Prefer list: name, its value if any, parameters. Possessive throughout, so that no header
# makes the matcher try its spaces twice.
_TCHARS: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_VALUE: Final = rf'(?:"(?:[^"\\]|\\.)*+"|{_TCHARS})?+'
_PREFERENCE: Final = re.compile(
    rf"[ \t]*+(?:({_TCHARS})[ \t]*+(?:=[ \t]*+({_VALUE})[ \t]*+)?+"
    rf"(?:;[ \t]*+(?:{_TCHARS}[ \t]*+(?:=[ \t]*+{_VALUE}[ \t]*+)?+)?+)*+)?+(?:,|\Z)"
)


class EdgeRequest(falcon.asgi.Request):
    """A request whose construction cannot fail, and whose unheard-of methods meet Falcon's own 405.

    Falcon decodes the query before any error handler can see a failure, and answers 400 without Allow to a
    method it has not heard of. Both are settled here. ``scope`` holds the query as it was sent.
    """

    __slots__ = ()

    def __init__(self, scope: dict[str, Any], *args: Any, **options: Any) -> None:  # noqa: ANN401 - Falcon's own
        if not isinstance(scope["headers"], list):
            # ASGI allows an iterator, which would show its headers to Falcon and none to the checks.
            scope = {**scope, "headers": [tuple(pair) for pair in scope["headers"]]}
        if scope["query_string"].isascii():
            super().__init__(scope, *args, **options)
        else:
            super().__init__({**scope, "query_string": b""}, *args, **options)
            self.scope = scope
        if self.method not in _METHODS:
            # A method that Falcon knows and that no resource here implements.
            self.method = "TRACE"


class EdgeApp(falcon.asgi.App[EdgeRequest, falcon.asgi.Response]):
    """A Falcon app that looks at the head of a request before it asks the server for the body.

    Falcon waits for the first piece of the body before it looks at anything. So a client that announces too much
    would be told to go on (100 Continue) before it is told to stop, and one that announces a body and sends none
    would end in the server's own 500, because Falcon does not answer a request whose first event is its end.
    """

    def __init__(self) -> None:
        super().__init__(request_type=EdgeRequest)
        self.operations: dict[tuple[str, str], Operation | None] = {}
        """What each method of each route does; None where its resource does not say."""

    def add_route(self, uri_template: str, resource: object, **options: Any) -> None:  # noqa: ANN401 - Falcon's own
        """Add a route and learn its operations."""
        super().add_route(uri_template, resource, **options)
        declared = getattr(resource, "operations", {})
        for method, handler in map_http_methods(resource, suffix=options.get("suffix")).items():
            self.operations[uri_template, method] = declared.get(getattr(handler, "__name__", ""))

    async def __call__(  # type: ignore[override]  # Falcon derives its ASGI app from its WSGI app
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Mapping[str, Any]]],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one connection scope of the server (ASGI 3)."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        asked = False

        async def head_first() -> Mapping[str, Any]:
            nonlocal asked
            if asked:
                return await receive()
            asked = True
            return {"type": "http.request", "body": b"", "more_body": True}

        await super().__call__(scope, head_first, send)


def refuse_repeated_headers(scope: Scope) -> None:
    """Refuse a request in which one of SINGLE_HEADERS stands twice.

    Raises:
        Refusal: ``header_repeated``.
    """
    found = [name for name, _ in scope["headers"] if name in SINGLE_HEADERS]
    if len(set(found)) != len(found):
        raise Refusal(Code.HEADER_REPEATED)


def refuse_missing_host(scope: Scope) -> None:
    """Refuse an HTTP/1.1 request without Host (RFC 9112, section 3.2), which gunicorn lets through.

    Raises:
        Refusal: ``header_invalid``.
    """
    if scope.get("http_version") == "1.1" and all(name != b"host" for name, _ in scope["headers"]):
        raise Refusal(Code.HEADER_INVALID, "Send the request with a Host header.")


def refuse_query(req: falcon.asgi.Request, allowed: AbstractSet[str]) -> dict[str, str]:
    """Return the query's fields, decoded, unless there is one that the route does not take.

    Only ``name=value`` pairs pass, each name once, percent-encoded UTF-8 without control characters; ``+`` is
    a space.

    Raises:
        Refusal: ``query_invalid``.
    """
    raw: bytes = req.scope["query_string"]
    if not raw:
        return {}
    if not allowed or not _QUERY.match(raw):
        raise Refusal(Code.QUERY_INVALID)
    fields: dict[str, str] = {}
    for pair in raw.split(b"&"):
        name_bytes, equals, value_bytes = pair.partition(b"=")
        name, value = _decoded(name_bytes), _decoded(value_bytes)
        if not equals or name not in allowed or name in fields:
            raise Refusal(Code.QUERY_INVALID)
        fields[name] = value
    return fields


def _decoded(part: bytes) -> str:
    try:
        text = unquote_to_bytes(part.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal(Code.QUERY_INVALID) from None
    if not text.isprintable():
        raise Refusal(Code.QUERY_INVALID)
    return text


def body_length(req: falcon.asgi.Request, limit_bytes: int) -> int:
    """Return the length of a JSON body, in bytes, that the headers announce and the limit allows.

    Raises:
        Refusal: ``media_type_unsupported``, ``content_encoding_unsupported`` (identity too),
            ``length_required`` (absent or chunked), ``header_invalid`` (a length that is no number),
            ``request_too_large``.
    """
    if not _MEDIA_TYPE.match(req.get_header("Content-Type") or ""):
        raise Refusal(Code.MEDIA_TYPE_UNSUPPORTED)
    if req.get_header("Content-Encoding") is not None:
        raise Refusal(Code.CONTENT_ENCODING_UNSUPPORTED)
    announced = req.get_header("Content-Length")
    # The end of a chunked body that was cut cannot be told from its true end.
    if announced is None or req.get_header("Transfer-Encoding") is not None:
        raise Refusal(Code.LENGTH_REQUIRED)
    if not _LENGTH.match(announced):
        raise Refusal(Code.HEADER_INVALID, "Send Content-Length as a decimal number of bytes.")
    if len(announced) > _LENGTH_DIGITS or int(announced) > limit_bytes:
        raise Refusal(Code.REQUEST_TOO_LARGE, f"Send a body of at most {limit_bytes} bytes.")
    return int(announced)


async def read_body(req: falcon.asgi.Request, limit_bytes: int) -> bytes:
    """Return the whole JSON body, or refuse it before reading, or because its end never came.

    Raises:
        Refusal: as :func:`body_length`, or ``body_incomplete``.
    """
    length = body_length(req, limit_bytes)
    body = await req.stream.read(length)
    if len(body) != length:
        raise Refusal(Code.BODY_INCOMPLETE)
    return body


async def read_optional_body(req: falcon.asgi.Request, limit_bytes: int) -> bytes:
    """Return the JSON body as :func:`read_body` does, or ``{}`` for a request that says that it has none.

    Raises:
        Refusal: as :func:`read_body`.
    """
    if req.get_header("Content-Length") in {None, "0"} and req.get_header("Transfer-Encoding") is None:
        return b"{}"
    return await read_body(req, limit_bytes)


def if_match(req: falcon.asgi.Request) -> tuple[int, ...] | None:
    """Return the revisions that If-Match allows; None without that header or for ``*``.

    An entity tag that names no revision, a weak one for instance, matches none (RFC 9110, section 13.1.1).

    Raises:
        Refusal: ``header_invalid`` for anything but ``*`` or a list of entity tags.
    """
    value = req.get_header("If-Match")
    if value is None or value.strip(" \t") == "*":
        return None
    if not _ENTITY_TAGS.match(value):
        raise Refusal(Code.HEADER_INVALID, 'Send If-Match as the ETag that was answered, such as "3".')
    return tuple(int(digits) for digits in _REVISIONS.findall(value))


def bearer(req: falcon.asgi.Request) -> str | None:
    """Return the key of ``Authorization: Bearer KEY`` (RFC 6750), None without that header.

    Raises:
        Refusal: ``authentication_required`` for another scheme, ``credential_invalid`` for a key that cannot
            have been issued here.
    """
    value = req.get_header("Authorization")
    if value is None:
        return None
    scheme, _, key = value.strip(" \t").partition(" ")
    if scheme.lower() != "bearer":
        raise Refusal(Code.AUTHENTICATION_REQUIRED)
    key = key.lstrip(" ")
    if len(key) > MAX_KEY_CHARACTERS or not _BEARER_KEY.match(key):
        raise Refusal(Code.CREDENTIAL_INVALID)
    return key


def idempotency_key(req: falcon.asgi.Request) -> str | None:
    """Return the Idempotency-Key, 1 to 200 visible ASCII characters, None without that header.

    Raises:
        Refusal: ``idempotency_key_invalid``.
    """
    value = req.get_header("Idempotency-Key")
    if value is not None and not _IDEMPOTENCY_KEY.match(value):
        raise Refusal(Code.IDEMPOTENCY_KEY_INVALID)
    return value


def prefer_async(req: falcon.asgi.Request) -> bool:
    """Tell whether the client prefers 202 to waiting: ``Prefer: respond-async`` (RFC 7240).

    The first mention counts, values make it another preference, and a malformed header is no preference.
    """
    value = req.get_header("Prefer") or ""
    found: bool | None = None
    at = 0
    while at < len(value):
        element = _PREFERENCE.match(value, at)
        if element is None:
            return False
        if found is None and element[1] is not None and element[1].lower() == "respond-async":
            found = element[2] in {None, "", '""'}
        at = element.end()
    return found is True


class Edge:
    """Falcon middleware: what holds on every route, once route and method are known to exist.

    Refuses a missing Host, repeated headers and every query field that the handler does not declare; the
    fields then are ``req.context.query``, a dict of strings. A resource declares them by handler, in
    ``operations`` (:mod:`web.operations`). Every answer forbids sniffing and, unless its handler says otherwise,
    storing.
    """

    def __init__(self, app: EdgeApp) -> None:
        """Learn the app's operations; routes that are added later are not served."""
        self._operations = dict(app.operations)

    async def process_request(self, req: falcon.asgi.Request, _resp: falcon.asgi.Response) -> None:
        """Answer 404 to paths with control characters: no route has one, and no store should meet a NUL."""
        if not req.path.isprintable():
            raise Refusal(Code.ROUTE_UNKNOWN)

    async def process_resource(
        self,
        req: falcon.asgi.Request,
        _resp: falcon.asgi.Response,
        _resource: object,
        _params: Mapping[str, Any],
    ) -> None:
        """Apply the checks, unless Falcon is about to answer 405 or OPTIONS by itself."""
        route = (req.uri_template or "", req.method)
        if route not in self._operations:
            return
        operation = self._operations[route]
        refuse_missing_host(req.scope)
        refuse_repeated_headers(req.scope)
        req.context.query = refuse_query(req, operation.query.keys() if operation else _NO_FIELDS)

    async def process_response(
        self,
        _req: falcon.asgi.Request,
        resp: falcon.asgi.Response,
        _resource: object,
        _req_succeeded: bool,  # noqa: FBT001 - Falcon's signature
    ) -> None:
        """Set the headers that every answer bears, errors included."""
        resp.set_header("X-Content-Type-Options", "nosniff")
        if resp.get_header("Cache-Control") is None:
            resp.set_header("Cache-Control", "no-store")


def install(app: EdgeApp) -> None:
    """Put the edge in front of the app's routes, all of which must have been added. Once for each app."""
    app.add_middleware(Edge(app))
