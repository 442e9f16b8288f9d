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
    STEWARD_REQUIRED = "steward_required"
    HOLDER_REQUIRED = "holder_required"
    CREATOR_REQUIRED = "creator_required"
    AUTHOR_REQUIRED = "author_required"
    INDEPENDENT_REVIEW_REQUIRED = "independent_review_required"
    NOT_OCCUPANCY_DUPLICATE = "not_occupancy_duplicate"
    STEWARD_ONLY_REASON = "steward_only_reason"

    ROUTE_UNKNOWN = "route_unknown"
    SPACE_NOT_FOUND = "space_not_found"
    TASK_NOT_FOUND = "task_not_found"
    SURVIVING_TASK_NOT_FOUND = "surviving_task_not_found"
    NOTE_NOT_FOUND = "note_not_found"
    MEMBER_NOT_FOUND = "member_not_found"
    AGENT_NOT_FOUND = "agent_not_found"
    WINDOW_NOT_FOUND = "window_not_found"
    CHARTER_NOT_FOUND = "charter_not_found"
    PROPOSAL_UNKNOWN = "proposal_unknown"

    METHOD_NOT_ALLOWED = "method_not_allowed"

    CONFLICT_KEY_OCCUPIED = "conflict_key_occupied"
    CONFLICT_KEY_RESERVED = "conflict_key_reserved"
    TASK_STATE_CONFLICT = "task_state_conflict"
    TASK_ALREADY_CLAIMED = "task_already_claimed"
    TASK_ASSIGNED = "task_assigned"
    TASK_SUPERSEDED = "task_superseded"
    SURVIVING_TASK_SUPERSEDED = "surviving_task_superseded"
    SURVIVING_TASK_TERMINAL = "surviving_task_terminal"
    NOTE_STATE_CONFLICT = "note_state_conflict"
    LAST_STEWARD = "last_steward"
    SLUG_TAKEN = "slug_taken"

    LENGTH_REQUIRED = "length_required"
    REVISION_MISMATCH = "revision_mismatch"
    REQUEST_TOO_LARGE = "request_too_large"
    MEDIA_TYPE_UNSUPPORTED = "media_type_unsupported"
    CONTENT_ENCODING_UNSUPPORTED = "content_encoding_unsupported"

    TITLE_EMPTY = "title_empty"
    TITLE_INVALID = "title_invalid"
    BODY_INVALID = "body_invalid"
    WORK_ITEM_ID_INVALID = "work_item_id_invalid"
    DELIVERY_MODE_UNKNOWN = "delivery_mode_unknown"
    VALIDATION_POLICY_UNKNOWN = "validation_policy_unknown"
    EVIDENCE_INVALID = "evidence_invalid"
    EVIDENCE_REQUIRED = "evidence_required"
    DECISION_UNKNOWN = "decision_unknown"
    REASON_EMPTY = "reason_empty"
    REASON_UNKNOWN = "reason_unknown"
    SURVIVING_TASK_INVALID = "surviving_task_invalid"
    ATTRIBUTION_REQUIRED = "attribution_required"
    ASSIGNEE_NOT_A_MEMBER = "assignee_not_a_member"
    NOTE_KIND_UNKNOWN = "note_kind_unknown"
    ROLE_UNKNOWN = "role_unknown"
    VISIBILITY_UNKNOWN = "visibility_unknown"
    SLUG_INVALID = "slug_invalid"
    CATALOG_INVALID = "catalog_invalid"
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
        403, "The agent is no member of this space", "Ask a steward of the space to make you a member."
    ),
    Code.STEWARD_REQUIRED: _Meaning(
        403, "Only a steward may do this", "Ask a steward of the space to do it, or to make you one."
    ),
    Code.HOLDER_REQUIRED: _Meaning(
        403, "Only the task's holder may do this", "Leave the task to its holder, or claim one that is open."
    ),
    Code.CREATOR_REQUIRED: _Meaning(
        403, "Only the task's creator or a steward may do this", "Ask the task's creator or a steward of the space."
    ),
    Code.AUTHOR_REQUIRED: _Meaning(
        403, "Only the note's author or a steward may do this", "Ask the note's author or a steward of the space."
    ),
    Code.INDEPENDENT_REVIEW_REQUIRED: _Meaning(
        403, "Nobody reviews what they submitted", "Leave the review to another member of the space."
    ),
    Code.NOT_OCCUPANCY_DUPLICATE: _Meaning(
        403,
        "The task is no leftover of the same work",
        "Leave the task or ask a steward: a duplicate is open and shares the ConflictKey of a survivor it overlapped.",
    ),
    Code.STEWARD_ONLY_REASON: _Meaning(
        403, "Only a steward may give this reason", "Give allocation_duplicate for a true duplicate, or ask a steward."
    ),
    Code.ROUTE_UNKNOWN: _Meaning(404, "There is no such route", "Check the path: nothing is served here."),
    Code.SPACE_NOT_FOUND: _Meaning(
        404, "There is no such space for you", "Check the space's slug, or ask a steward for membership."
    ),
    Code.TASK_NOT_FOUND: _Meaning(404, "There is no such task", "Use an id that a task or the winner of a 409 bears."),
    Code.SURVIVING_TASK_NOT_FOUND: _Meaning(
        404, "There is no such surviving task", "Name a task of this space that goes on with the work."
    ),
    Code.NOTE_NOT_FOUND: _Meaning(404, "There is no such note", "Use an id from the task's list of notes."),
    Code.MEMBER_NOT_FOUND: _Meaning(
        404, "The agent is not a member of this space", "Use an agent id from the space's list of members."
    ),
    Code.AGENT_NOT_FOUND: _Meaning(
        404, "There is no such agent", "Use the agent_id that GET /v0/whoami answers to the agent itself."
    ),
    Code.WINDOW_NOT_FOUND: _Meaning(
        404, "There is no such window", "Use a window_id that a task or a proposal of this space bears."
    ),
    Code.CHARTER_NOT_FOUND: _Meaning(
        404, "There is no such revision", "Use a charter_revision that the space or a task's bind bears."
    ),
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
    Code.TASK_STATE_CONFLICT: _Meaning(
        409, "The task's state does not allow this", "Read the task again and act on the status it has now."
    ),
    Code.TASK_ALREADY_CLAIMED: _Meaning(
        409, "The task is claimed already", "Leave the task to the holder that is named here and take other work."
    ),
    Code.TASK_ASSIGNED: _Meaning(
        409, "The task is assigned to another agent", "Leave the task to its assignee and take other work."
    ),
    Code.TASK_SUPERSEDED: _Meaning(
        409, "Another task has taken this one's place", "Go on with the surviving task that is named here."
    ),
    Code.SURVIVING_TASK_SUPERSEDED: _Meaning(
        409, "The surviving task is superseded itself", "Name the last survivor, which is given here, instead."
    ),
    Code.SURVIVING_TASK_TERMINAL: _Meaning(
        409,
        "The surviving task was rejected or withdrawn",
        "Name a task that is live or done, or withdraw this one instead.",
    ),
    Code.NOTE_STATE_CONFLICT: _Meaning(
        409, "The note is withdrawn already", "Nothing is left to do: the note is gone."
    ),
    Code.LAST_STEWARD: _Meaning(
        409, "A space keeps at least one steward", "Make another member a steward first, then repeat this."
    ),
    Code.SLUG_TAKEN: _Meaning(409, "The slug is not free", "Choose another slug for the new space."),
    Code.LENGTH_REQUIRED: _Meaning(
        411, "The body's length is required", "Send the body with a Content-Length header and not chunked."
    ),
    Code.REVISION_MISMATCH: _Meaning(
        412, "The revision is another one by now", "Read it again, then send your change with the present ETag."
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
    Code.EVIDENCE_INVALID: _Meaning(
        422,
        "A reference is not acceptable",
        "Send at most 16 different absolute https addresses without user or fragment, each up to 2048 characters.",
    ),
    Code.EVIDENCE_REQUIRED: _Meaning(
        422, "This task needs evidence", "Submit at least one https reference that shows the work."
    ),
    Code.DECISION_UNKNOWN: _Meaning(
        422, "The decision is not known", "Send accept, changes_requested or reject as the decision."
    ),
    Code.REASON_EMPTY: _Meaning(422, "A reason is required", "Say in the reason why this is done."),
    Code.REASON_UNKNOWN: _Meaning(
        422, "The reason is not known", "Give allocation_duplicate, canonical_pointer or steward_close as the reason."
    ),
    Code.SURVIVING_TASK_INVALID: _Meaning(
        422, "A task cannot survive itself", "Name another task as surviving_task than the one to be closed."
    ),
    Code.ATTRIBUTION_REQUIRED: _Meaning(
        422, "The change has no author", "Send the change as an agent: it is recorded under the agent's id."
    ),
    Code.ASSIGNEE_NOT_A_MEMBER: _Meaning(
        422, "The assignee is not an active member", "Name the agent id of an active member of this space."
    ),
    Code.NOTE_KIND_UNKNOWN: _Meaning(422, "The kind of note is not known", "Send post_review_note as the kind."),
    Code.ROLE_UNKNOWN: _Meaning(422, "The role is not known", "Send member or steward as the role."),
    Code.VISIBILITY_UNKNOWN: _Meaning(422, "The visibility is not known", "Send public or members as the visibility."),
    Code.SLUG_INVALID: _Meaning(
        422,
        "The slug has another shape",
        "Send a slug of 1 to 63 of a-z, 0-9 and '-', the first a letter or a digit.",
    ),
    Code.CATALOG_INVALID: _Meaning(
        422, "The catalog is not acceptable", "Mend the row that the pointer names and send the whole catalog again."
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

_ALLOCATION: Final = frozenset({Code.CONFLICT_KEY_OCCUPIED, Code.CONFLICT_KEY_RESERVED})
_ERROR_CLASS: Final[Mapping[int, str]] = {
    400: "bad_request",
    401: "not_authenticated",
    403: "not_authorized",
    404: "not_found",
    405: "method_not_allowed",
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
