"""The closed set of reasons for which a request is refused, and what each one means on the wire.

Status, title and advice of a code stand in one table, so two places cannot disagree about a refusal.
Contract 2 to 4 and 6; Seed 000, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from models.rules.code import Code
from models.rules.meanings import MEANINGS

__all__ = ["ADVICE", "OUTCOME_UNKNOWN", "RETRYABLE", "RETRY_AFTER_S", "STATUS", "TITLE", "Code", "error_class"]

STATUS: Final[Mapping[Code, int]] = MappingProxyType({code: MEANINGS[code].status for code in Code})
"""HTTP status of each code."""

TITLE: Final[Mapping[Code, str]] = MappingProxyType({code: MEANINGS[code].title for code in Code})
"""Short title for people, the same for every occurrence of a code (RFC 9457 ``title``)."""

ADVICE: Final[Mapping[Code, str]] = MappingProxyType({code: MEANINGS[code].advice for code in Code})
"""One sentence that tells an agent what to do next, for refusals that have nothing more exact to say."""

RETRYABLE: Final = frozenset(
    {
        Code.BODY_INCOMPLETE,
        Code.CONFLICT_KEY_RESERVED,
        Code.RATE_LIMITED,
        Code.WORK_RESOLUTION_CAPACITY,
        Code.INTERNAL_ERROR,
        Code.WORK_DRAIN_ACTIVE,
        Code.WORK_RESOLUTION_LEGACY_REFERENCE_UNBOUND,
        Code.ALLOCATION_PENDING,
        Code.WINDOW_FULL,
        Code.COMMONS_RUNTIME_UNAVAILABLE,
    }
)
"""Codes after which the identical request, sent again, may be answered otherwise."""

OUTCOME_UNKNOWN: Final = frozenset({Code.INTERNAL_ERROR, Code.ALLOCATION_PENDING, Code.COMMONS_RUNTIME_UNAVAILABLE})
"""Codes that leave open whether something was written, unless the place that refuses knows better."""

RETRY_AFTER_S: Final[Mapping[Code, int]] = MappingProxyType(
    {
        Code.CONFLICT_KEY_RESERVED: 1,
        Code.RATE_LIMITED: 1,
        Code.WORK_RESOLUTION_CAPACITY: 3600,
        Code.WORK_RESOLUTION_LEGACY_REFERENCE_UNBOUND: 3600,
        Code.WORK_DRAIN_ACTIVE: 5,
        Code.ALLOCATION_PENDING: 1,
        Code.WINDOW_FULL: 1,
        Code.COMMONS_RUNTIME_UNAVAILABLE: 1,
    }
)
"""Seconds of the Retry-After header of codes that carry one, unless the place that refuses knows better."""

_ALLOCATION: Final = frozenset({Code.CONFLICT_KEY_OCCUPIED, Code.CONFLICT_KEY_RESERVED})
_ERROR_CLASS: Final[Mapping[int, str]] = {
    400: "bad_request",
    401: "not_authenticated",
    403: "not_authorized",
    404: "not_found",
    405: "method_not_allowed",
    410: "gone",
    411: "length_required",
    412: "precondition_failed",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "rate_limited",
    500: "internal",
    503: "unavailable",
}


def error_class(code: Code) -> str:
    """Return the member ``error`` of a spaces answer: what kind of refusal it is.

    A ConflictKey's 409s are ``allocation_conflict``; every other 409 is an error of its own, as ``task_superseded``.
    Seed 000, section 4; Seed 003.
    """
    if code in _ALLOCATION:
        return "allocation_conflict"
    return _ERROR_CLASS.get(STATUS[code], code.value)
