"""Refusals and failures as answers: one shape of error document, whoever found the fault.

Whatever goes wrong behind the door becomes a :class:`Problem` and leaves through :func:`write`: the refusals
of this package, Falcon's own errors, and bugs. Nothing of the request, of a parser or of a trace is quoted.
Seed 000, section 4; Contract 2.4 and 6; RFC 9457.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import falcon
import falcon.asgi
import msgspec
import structlog

from models.rules.codes import ADVICE, OUTCOME_UNKNOWN, RETRY_AFTER_S, STATUS, Code
from models.rules.outcomes import encode, problem
from models.trace import trace_of
from web.strict_json import JsonRefused

PROBLEM_JSON: Final = "application/problem+json"

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NO_MEMBERS: Final[Mapping[str, Any]] = MappingProxyType({})
_CODE_OF_STATUS: Final[Mapping[int, Code]] = {
    404: Code.ROUTE_UNKNOWN,
    405: Code.METHOD_NOT_ALLOWED,
    411: Code.LENGTH_REQUIRED,
    413: Code.REQUEST_TOO_LARGE,
    415: Code.MEDIA_TYPE_UNSUPPORTED,
}
_log: Final = structlog.stdlib.get_logger(__name__)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What an error answer says, before it has a shape.

    ``detail`` is one sentence on what to do next; the code's own advice stands in for None.
    ``write_occurred`` is False (nothing was written) or None (unknown); unset, the code decides.
    ``retry_after_s`` replaces the code's own Retry-After and is at least 1 on the wire. ``allow`` is the
    Allow header. ``members`` are further members of the document, such as ``proposal_id``.
    """

    code: Code
    detail: str | None = None
    pointer: str | None = None
    write_occurred: Literal[False] | msgspec.UnsetType | None = msgspec.UNSET
    retry_after_s: int | None = None
    allow: str | None = None
    members: Mapping[str, Any] = _NO_MEMBERS


Renderer: TypeAlias = Callable[[Problem], bytes]
"""Gives a problem the shape of one API's error document."""


class Refusal(Exception):  # noqa: N818 - the client is refused; nothing erred here
    """Ends a request with a problem. Raised inside this package only, never by rules or stores."""

    def __init__(
        self,
        code: Code,
        detail: str | None = None,
        *,
        pointer: str | None = None,
        write_occurred: Literal[False] | msgspec.UnsetType | None = msgspec.UNSET,
        retry_after_s: int | None = None,
        members: Mapping[str, Any] = _NO_MEMBERS,
    ) -> None:
        super().__init__(code)
        self.problem = Problem(
            code=code,
            detail=detail,
            pointer=pointer,
            write_occurred=write_occurred,
            retry_after_s=retry_after_s,
            members=members,
        )


def spaces_document(found: Problem) -> bytes:
    """Return the document of the spaces API: the seed's members beside those of RFC 9457."""
    write_occurred = found.write_occurred
    if write_occurred is msgspec.UNSET:
        write_occurred = None if found.code in OUTCOME_UNKNOWN else False
    return encode(
        problem(
            found.code,
            ADVICE[found.code] if found.detail is None else found.detail,
            pointer=found.pointer,
            **found.members,
            write_occurred=write_occurred,
        )
    ).encode()


def dress(resp: falcon.asgi.Response, code: Code, *, retry_after_s: int | None = None) -> None:
    """Set status, media type and the headers that a code asks for: Retry-After, WWW-Authenticate.

    For error documents that exist as bytes already, such as a stored outcome.
    """
    resp.status = STATUS[code]
    resp.content_type = PROBLEM_JSON
    wait_s = RETRY_AFTER_S.get(code) if retry_after_s is None else retry_after_s
    if wait_s is not None:
        resp.set_header("Retry-After", str(max(1, wait_s)))
    if code is Code.AUTHENTICATION_REQUIRED:
        resp.set_header("WWW-Authenticate", 'Bearer realm="dibs"')
    elif code is Code.CREDENTIAL_INVALID:
        resp.set_header("WWW-Authenticate", 'Bearer realm="dibs", error="invalid_token"')


def write(resp: falcon.asgi.Response, found: Problem, render: Renderer = spaces_document) -> None:
    """Make the response the problem's, body and headers."""
    dress(resp, found.code, retry_after_s=found.retry_after_s)
    if found.allow is not None:
        resp.set_header("Allow", found.allow)
    resp.data = render(found)


def _failure(error: Exception, req: falcon.asgi.Request) -> Problem:
    """Log a bug under a random id and return the problem that names the id."""
    error_id = f"err_{secrets.token_hex(8)}"
    _log.error(
        "request_failed",
        error_id=error_id,
        method=req.method,
        route=req.uri_template,
        trace=list(trace_of(error)),
    )
    return Problem(
        code=Code.INTERNAL_ERROR,
        write_occurred=False if req.method in _SAFE_METHODS else None,
        members={"error_id": error_id},
    )


def _problem_of(error: Exception, req: falcon.asgi.Request) -> Problem:
    match error:
        case Refusal():
            return error.problem
        case JsonRefused():
            return Problem(code=error.code, detail=error.detail, pointer=error.pointer)
        case falcon.HTTPError() if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            # Falcon found it: an unknown route, a wrong method, a header it cannot read.
            code = _CODE_OF_STATUS.get(error.status_code, Code.HEADER_INVALID)
            headers = error.headers or ()
            pairs = headers.items() if isinstance(headers, Mapping) else headers
            return Problem(code=code, allow=dict(pairs).get("Allow"))
        case _:
            return _failure(error, req)


def _always_spaces(_path: str) -> Renderer:
    return spaces_document


def install(app: falcon.asgi.App[Any, Any], *, renderer_of: Callable[[str], Renderer] = _always_spaces) -> None:
    """Make every exception that reaches Falcon leave as a problem.

    ``renderer_of`` picks the shape of the document by the request's path. A handler that is added for an
    exception's own class goes before this one.
    """

    async def answer(
        req: falcon.asgi.Request,
        resp: falcon.asgi.Response | None,
        error: Exception,
        _params: dict[str, Any],
        ws: falcon.asgi.WebSocket | None = None,
    ) -> None:
        found = _problem_of(error, req)
        if resp is not None:
            write(resp, found, renderer_of(req.path))
        elif ws is not None:
            # A handshake has no response to write into; servers answer one that is closed with 403.
            await ws.close()

    app.add_error_handler(Exception, answer)
    app.add_error_handler(falcon.HTTPError, answer)
