"""The closed set of reasons for which a request is refused, and what each one means on the wire.

Status, title and advice of a code stand here and nowhere else, so two places cannot disagree about a refusal.
Contract 2 to 4 and 6; Seed 000, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class Code(StrEnum):
    """Why a request was refused or could not be answered; the value is the member ``code`` of the answer."""

    MALFORMED_JSON = "malformed_json"
    DUPLICATE_JSON_KEY = "duplicate_json_key"
    NESTING_TOO_DEEP = "nesting_too_deep"
    BODY_INCOMPLETE = "body_incomplete"
    HEADER_REPEATED = "header_repeated"
    HEADER_INVALID = "header_invalid"
    QUERY_INVALID = "query_invalid"
    CURSOR_INVALID = "cursor_invalid"

    AUTHENTICATION_REQUIRED = "authentication_required"
    CREDENTIAL_INVALID = "credential_invalid"

    ACTOR_NOT_ACTIVE = "actor_not_active"
    NOT_A_MEMBER = "not_a_member"

    ROUTE_UNKNOWN = "route_unknown"
    SPACE_NOT_FOUND = "space_not_found"
    TASK_NOT_FOUND = "task_not_found"
    PROPOSAL_UNKNOWN = "proposal_unknown"

    METHOD_NOT_ALLOWED = "method_not_allowed"

    CONFLICT_KEY_OCCUPIED = "conflict_key_occupied"
    CONFLICT_KEY_RESERVED = "conflict_key_reserved"

    LENGTH_REQUIRED = "length_required"
    REQUEST_TOO_LARGE = "request_too_large"
    MEDIA_TYPE_UNSUPPORTED = "media_type_unsupported"
    CONTENT_ENCODING_UNSUPPORTED = "content_encoding_unsupported"

    TITLE_EMPTY = "title_empty"
    TITLE_INVALID = "title_invalid"
    BODY_INVALID = "body_invalid"
    WORK_ITEM_ID_INVALID = "work_item_id_invalid"
    DELIVERY_MODE_UNKNOWN = "delivery_mode_unknown"
    VALIDATION_POLICY_UNKNOWN = "validation_policy_unknown"
    IDEMPOTENCY_KEY_INVALID = "idempotency_key_invalid"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    FIELD_UNKNOWN = "field_unknown"
    FIELD_MISSING = "field_missing"
    FIELD_INVALID = "field_invalid"

    RATE_LIMITED = "rate_limited"

    INTENT_FAILED = "intent_failed"
    INTERNAL_ERROR = "internal_error"

    WORK_DRAIN_ACTIVE = "work_drain_active"
    ALLOCATION_PENDING = "allocation_pending"
    WINDOW_FULL = "window_full"
    COMMONS_RUNTIME_UNAVAILABLE = "commons_runtime_unavailable"


class _Meaning(NamedTuple):
    status: int
    title: str
    advice: str


_MEANINGS: Final[Mapping[Code, _Meaning]] = {
    Code.MALFORMED_JSON: _Meaning(
        400, "The body is not JSON", "Send one JSON document in UTF-8 without a byte order mark."
    ),
    Code.DUPLICATE_JSON_KEY: _Meaning(
        400, "A JSON member is repeated", "Name each member of a JSON object once and send the request again."
    ),
    Code.NESTING_TOO_DEEP: _Meaning(
        400, "The JSON is nested too deeply", "Send JSON with at most 32 levels of arrays and objects."
    ),
    Code.BODY_INCOMPLETE: _Meaning(
        400, "The body was cut off", "Nothing was read as a request: send the whole body again."
    ),
    Code.HEADER_REPEATED: _Meaning(
        400, "A header is repeated", "Send each of the request's headers once; only Prefer may stand twice."
    ),
    Code.HEADER_INVALID: _Meaning(
        400, "A header is missing or malformed", "Send a well-formed HTTP/1.1 request with a Host header."
    ),
    Code.QUERY_INVALID: _Meaning(
        400,
        "The query is not one this route takes",
        "Send only query fields that the route documents, each once as name=value; keys never go in a URL.",
    ),
    Code.CURSOR_INVALID: _Meaning(
        400, "The cursor is not valid here", "Start the list again without a cursor, with the same filters."
    ),
    Code.AUTHENTICATION_REQUIRED: _Meaning(
        401, "A key is required", "Send your key in the header Authorization: Bearer KEY."
    ),
    Code.CREDENTIAL_INVALID: _Meaning(
        401, "The key is not valid", "Ask your operator for a key that has neither expired nor been revoked."
    ),
    Code.ACTOR_NOT_ACTIVE: _Meaning(
        403, "The agent is deactivated", "Stop: only an operator can activate this agent again."
    ),
    Code.NOT_A_MEMBER: _Meaning(
        403, "The agent is not a member of this space", "Ask a steward of the space to make you a member."
    ),
    Code.ROUTE_UNKNOWN: _Meaning(404, "There is no such route", "Check the path: nothing is served here."),
    Code.SPACE_NOT_FOUND: _Meaning(
        404, "There is no such space for you", "Check the space's slug, or ask a steward for membership."
    ),
    Code.TASK_NOT_FOUND: _Meaning(404, "There is no such task", "Use an id that a task or the winner of a 409 bears."),
    Code.PROPOSAL_UNKNOWN: _Meaning(
        404,
        "No such proposal is known",
        "Repeat your original request with the same Idempotency-Key; this id promises nothing any more.",
    ),
    Code.METHOD_NOT_ALLOWED: _Meaning(
        405, "The route does not take this method", "Use one of the methods that the Allow header names."
    ),
    Code.CONFLICT_KEY_OCCUPIED: _Meaning(
        409, "This work already has its task", "Go on with the winner that is named here; file no substitute."
    ),
    Code.CONFLICT_KEY_RESERVED: _Meaning(
        409,
        "Another proposal of the same window was first",
        "Read the winner that is named here, or take other work; file no substitute.",
    ),
    Code.LENGTH_REQUIRED: _Meaning(
        411, "The body's length is required", "Send the body with a Content-Length header and not chunked."
    ),
    Code.REQUEST_TOO_LARGE: _Meaning(
        413, "The body is too large", "Make the body smaller, or split the batch, and send it again."
    ),
    Code.MEDIA_TYPE_UNSUPPORTED: _Meaning(
        415, "The body's media type is not taken", "Send the body as Content-Type: application/json."
    ),
    Code.CONTENT_ENCODING_UNSUPPORTED: _Meaning(
        415, "Encoded bodies are not taken", "Send the body as it is, without a Content-Encoding header."
    ),
    Code.TITLE_EMPTY: _Meaning(
        422, "The title is empty", "Send a title that has at least one character that is not white space."
    ),
    Code.TITLE_INVALID: _Meaning(
        422,
        "The title is not acceptable",
        "Send a title of 1 to 300 characters without control, invisible or unassigned ones.",
    ),
    Code.BODY_INVALID: _Meaning(
        422,
        "The text of the body field is not acceptable",
        "Send a text that keeps to the field's documented length and characters.",
    ),
    Code.WORK_ITEM_ID_INVALID: _Meaning(
        422, "The work_item_id has another shape", "Send T and decimal digits, such as T12, or leave it out."
    ),
    Code.DELIVERY_MODE_UNKNOWN: _Meaning(
        422, "The delivery_mode is not known", "Send result or repository_change, or leave the field out."
    ),
    Code.VALIDATION_POLICY_UNKNOWN: _Meaning(
        422, "The validation_policy is not known", "Send evidence or none, or leave the field out."
    ),
    Code.IDEMPOTENCY_KEY_INVALID: _Meaning(
        422,
        "The Idempotency-Key is not acceptable",
        "Send an Idempotency-Key of 1 to 200 visible ASCII characters.",
    ),
    Code.IDEMPOTENCY_KEY_REUSED: _Meaning(
        422,
        "The Idempotency-Key belongs to another request",
        "Repeat the first request unchanged to see its answer, or send this one under a fresh key.",
    ),
    Code.FIELD_UNKNOWN: _Meaning(
        422, "A field is not known", "Leave out the fields that this operation does not document."
    ),
    Code.FIELD_MISSING: _Meaning(422, "A field is missing", "Add the required field that the pointer names."),
    Code.FIELD_INVALID: _Meaning(
        422, "A field's value is not acceptable", "Give the field that the pointer names a documented value."
    ),
    Code.RATE_LIMITED: _Meaning(
        429,
        "Too many requests",
        "Wait as long as Retry-After says, then repeat the request with the same key.",
    ),
    Code.INTENT_FAILED: _Meaning(
        500,
        "This request could not be carried out",
        "Nothing was written; report the proposal id to the operator and do not repeat the request.",
    ),
    Code.INTERNAL_ERROR: _Meaning(
        500,
        "The server failed",
        "Repeat the request with the same Idempotency-Key; if that fails too, report the error_id.",
    ),
    Code.WORK_DRAIN_ACTIVE: _Meaning(
        503, "New work is paused", "Finish what you hold; send this request again after Retry-After."
    ),
    Code.ALLOCATION_PENDING: _Meaning(
        503,
        "The decision is not out yet",
        "The outcome is not known: repeat the same request with the same key, or read the proposal.",
    ),
    Code.WINDOW_FULL: _Meaning(
        503, "Too many proposals are waiting", "Nothing was queued: repeat the request after Retry-After."
    ),
    Code.COMMONS_RUNTIME_UNAVAILABLE: _Meaning(
        503, "Storage is out of reach", "Repeat the same request with the same key after Retry-After."
    ),
}

STATUS: Final[Mapping[Code, int]] = MappingProxyType({code: _MEANINGS[code].status for code in Code})
"""HTTP status of each code."""

TITLE: Final[Mapping[Code, str]] = MappingProxyType({code: _MEANINGS[code].title for code in Code})
"""Short title for people, the same for every occurrence of a code (RFC 9457 ``title``)."""

ADVICE: Final[Mapping[Code, str]] = MappingProxyType({code: _MEANINGS[code].advice for code in Code})
"""One sentence that tells an agent what to do next, for refusals that have nothing more exact to say."""

RETRYABLE: Final = frozenset(
    {
        Code.BODY_INCOMPLETE,
        Code.CONFLICT_KEY_RESERVED,
        Code.RATE_LIMITED,
        Code.INTERNAL_ERROR,
        Code.WORK_DRAIN_ACTIVE,
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
        Code.WORK_DRAIN_ACTIVE: 5,
        Code.ALLOCATION_PENDING: 1,
        Code.WINDOW_FULL: 1,
        Code.COMMONS_RUNTIME_UNAVAILABLE: 1,
    }
)
"""Seconds of the Retry-After header of codes that carry one, unless the place that refuses knows better."""

_ERROR_CLASS: Final[Mapping[int, str]] = {
    400: "bad_request",
    401: "not_authenticated",
    403: "not_authorized",
    404: "not_found",
    405: "method_not_allowed",
    409: "allocation_conflict",
    411: "length_required",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "rate_limited",
    500: "internal",
    503: "unavailable",
}


def error_class(code: Code) -> str:
    """Return the member ``error`` of a spaces answer: what kind of refusal it is (Seed 000, section 4)."""
    return _ERROR_CLASS[STATUS[code]]
