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

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Auth(StrEnum):
    """Whose key a route takes."""

    NONE = "none"
    OPTIONAL = "optional"
    KEY = "key"


class Query(msgspec.Struct, frozen=True):
    """A query field: its JSON schema and what it does."""

    schema: Mapping[str, Any]
    summary: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of a route.

    ``answers`` maps each 2xx status to the type of its body (None: no body). ``codes`` are the refusals of the
    operation itself; those of transport, authentication, writing and reading a space follow from the other members.
    ``body`` is the type of the request's JSON, ``body_optional`` whether none may be sent. ``write`` marks what goes
    through a window; ``if_match`` what takes a precondition; ``etag`` what answers a revision.
    """

    id: str
    summary: str
    answers: Mapping[int, Any]
    auth: Auth = Auth.KEY
    codes: frozenset[Code] = frozenset()
    body: Any = None
    body_optional: bool = False
    query: Mapping[str, Query] = _NONE
    write: bool = False
    if_match: bool = False
    etag: bool = False
    media_type: str = "application/json"
