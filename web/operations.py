"""What a route takes and answers, said once: the edge checks the query by it, and OpenAPI is made of it.

A resource declares ``operations``, a mapping from the name of its handler (``on_get``) to an :class:`Operation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from models.rules.codes import Code
from models.rules.intents import REFUSED_IN_DRAIN, Intent

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Auth(StrEnum):
    """Whose key a route takes."""

    NONE = "none"
    OPTIONAL = "optional"
    KEY = "key"


_EDGE: Final = frozenset({Code.HEADER_INVALID, Code.HEADER_REPEATED, Code.QUERY_INVALID, Code.INTERNAL_ERROR})
_IDENTITY: Final = frozenset({Code.AUTHENTICATION_REQUIRED, Code.CREDENTIAL_INVALID, Code.COMMONS_RUNTIME_UNAVAILABLE})
_BODY: Final = frozenset(
    {
        Code.MALFORMED_JSON,
        Code.DUPLICATE_JSON_KEY,
        Code.NESTING_TOO_DEEP,
        Code.BODY_INCOMPLETE,
        Code.LENGTH_REQUIRED,
        Code.REQUEST_TOO_LARGE,
        Code.MEDIA_TYPE_UNSUPPORTED,
        Code.CONTENT_ENCODING_UNSUPPORTED,
        Code.FIELD_UNKNOWN,
        Code.FIELD_MISSING,
        Code.FIELD_INVALID,
    }
)
_WRITE: Final = frozenset(
    {
        Code.IDEMPOTENCY_KEY_INVALID,
        Code.IDEMPOTENCY_KEY_REUSED,
        Code.ACTOR_NOT_ACTIVE,
        Code.RATE_LIMITED,
        Code.INTENT_FAILED,
        Code.ALLOCATION_PENDING,
        Code.WINDOW_FULL,
    }
)


class Query(msgspec.Struct, frozen=True):
    """A query field: its JSON schema and what it does."""

    schema: Mapping[str, Any]
    summary: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of a route.

    ``answers`` maps each 2xx status to the type of its body, or to a tuple of the types it may have. ``codes`` are the
    refusals of the operation itself; those of transport, authentication, writing and reading a space follow from the
    other members (:func:`codes_of`). ``body`` is the type of the request's JSON, ``body_optional`` whether none may be
    sent. ``intent`` is the kind of write that goes through a window; ``if_match`` marks what takes a precondition,
    ``etag`` what answers a revision.
    """

    id: str
    summary: str
    answers: Mapping[int, Any]
    auth: Auth = Auth.KEY
    codes: frozenset[Code] = frozenset()
    body: Any = None
    body_optional: bool = False
    query: Mapping[str, Query] = _NONE
    intent: type[Intent] | None = None
    if_match: bool = False
    etag: bool = False
    media_type: str = "application/json"


_WORK_WRITE: Final = _WRITE - {Code.IDEMPOTENCY_KEY_REUSED}


def is_exchange(path: str) -> bool:
    """Tell whether a route belongs to the work exchange, which has error documents and keys of its own."""
    return path.startswith("/api/")


def codes_of(path: str, operation: Operation) -> frozenset[Code]:
    """Return every code that an operation may answer: its own, and those that follow from what it takes."""
    codes = operation.codes | _EDGE
    if operation.auth is not Auth.NONE:
        codes |= _IDENTITY
    if "{" in path:
        # What does not fit a path's field may be no route at all, such as a control character.
        codes |= {Code.WORK_ROUTE_UNKNOWN if is_exchange(path) else Code.ROUTE_UNKNOWN}
    if "{slug}" in path:
        codes |= {Code.SPACE_NOT_FOUND}
    if operation.body is not None:
        codes |= _BODY - ({Code.FIELD_INVALID} if is_exchange(path) else frozenset())
    if operation.intent is not None:
        codes |= _WORK_WRITE if is_exchange(path) else _WRITE
        if "{slug}" in path:
            codes |= {Code.NOT_A_MEMBER}
        if operation.intent in REFUSED_IN_DRAIN:
            codes |= {Code.WORK_DRAIN_ACTIVE}
    return codes
