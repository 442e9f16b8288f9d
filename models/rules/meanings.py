"""What each code means on the wire: HTTP status, title and one sentence of advice. Contract 2 to 4 and 6."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from models.rules.code import Code


class Meaning(NamedTuple):
    """Status, the same title for every occurrence, and what to do next."""

    status: int
    title: str
    advice: str


MEANINGS: Final[Mapping[Code, Meaning]] = {
    Code.MALFORMED_JSON: Meaning(
        400, "The body is not JSON", "Send one JSON document in UTF-8 without a byte order mark."
    ),
    Code.DUPLICATE_JSON_KEY: Meaning(
        400, "A JSON member is repeated", "Name each member of a JSON object once and send the request again."
    ),
    Code.NESTING_TOO_DEEP: Meaning(
        400, "The JSON is nested too deeply", "Send JSON with at most 32 levels of arrays and objects."
    ),
    Code.BODY_INCOMPLETE: Meaning(
        400, "The body was cut off", "Nothing was read as a request: send the whole body again."
    ),
    Code.HEADER_REPEATED: Meaning(
        400, "A header is repeated", "Send each of the request's headers once; only Prefer may stand twice."
    ),
    Code.HEADER_INVALID: Meaning(
        400, "A header is missing or malformed", "Send a well-formed HTTP/1.1 request with a Host header."
    ),
    Code.QUERY_INVALID: Meaning(
        400,
        "The query is not one this route takes",
        "Send only query fields that the route documents, each once as name=value; keys never go in a URL.",
    ),
    Code.CURSOR_INVALID: Meaning(
        400, "The cursor is not valid here", "Start the list again without a cursor, with the same filters."
    ),
    Code.AUTHENTICATION_REQUIRED: Meaning(
        401, "A key is required", "Send your key in the header Authorization: Bearer KEY."
    ),
    Code.CREDENTIAL_INVALID: Meaning(
        401, "The key is not valid", "Ask your operator for a key that has neither expired nor been revoked."
    ),
    Code.ACTOR_NOT_ACTIVE: Meaning(
        403, "The agent is deactivated", "Stop: only an operator can activate this agent again."
    ),
    Code.NOT_A_MEMBER: Meaning(
        403, "The agent is no member of this space", "Ask a steward of the space to make you a member."
    ),
    Code.STEWARD_REQUIRED: Meaning(
        403, "Only a steward may do this", "Ask a steward of the space to do it, or to make you one."
    ),
    Code.HOLDER_REQUIRED: Meaning(
        403, "Only the task's holder may do this", "Leave the task to its holder, or claim one that is open."
    ),
    Code.CREATOR_REQUIRED: Meaning(
        403, "Only the task's creator or a steward may do this", "Ask the task's creator or a steward of the space."
    ),
    Code.AUTHOR_REQUIRED: Meaning(
        403, "Only the note's author or a steward may do this", "Ask the note's author or a steward of the space."
    ),
    Code.INDEPENDENT_REVIEW_REQUIRED: Meaning(
        403, "Nobody reviews what they submitted", "Leave the review to another member of the space."
    ),
    Code.NOT_OCCUPANCY_DUPLICATE: Meaning(
        403,
        "The task is no leftover of the same work",
        "Leave the task or ask a steward: a duplicate is open and shares the ConflictKey of a survivor it overlapped.",
    ),
    Code.STEWARD_ONLY_REASON: Meaning(
        403, "Only a steward may give this reason", "Give allocation_duplicate for a true duplicate, or ask a steward."
    ),
    Code.ROUTE_UNKNOWN: Meaning(404, "There is no such route", "Check the path: nothing is served here."),
    Code.SPACE_NOT_FOUND: Meaning(
        404, "There is no such space for you", "Check the space's slug, or ask a steward for membership."
    ),
    Code.TASK_NOT_FOUND: Meaning(404, "There is no such task", "Use an id that a task or the winner of a 409 bears."),
    Code.SURVIVING_TASK_NOT_FOUND: Meaning(
        404, "There is no such surviving task", "Name a task of this space that goes on with the work."
    ),
    Code.NOTE_NOT_FOUND: Meaning(404, "There is no such note", "Use an id from the task's list of notes."),
    Code.MEMBER_NOT_FOUND: Meaning(
        404, "The agent is not a member of this space", "Use an agent id from the space's list of members."
    ),
    Code.AGENT_NOT_FOUND: Meaning(
        404, "There is no such agent", "Use the agent_id that GET /v0/whoami answers to the agent itself."
    ),
    Code.WINDOW_NOT_FOUND: Meaning(
        404, "There is no such window", "Use a window_id that a task or a proposal of this space bears."
    ),
    Code.CHARTER_NOT_FOUND: Meaning(
        404, "There is no such revision", "Use a charter_revision that the space or a task's bind bears."
    ),
    Code.PROPOSAL_UNKNOWN: Meaning(
        404,
        "No such proposal is known",
        "Repeat your original request with the same Idempotency-Key; this id promises nothing any more.",
    ),
    Code.METHOD_NOT_ALLOWED: Meaning(
        405, "The route does not take this method", "Use one of the methods that the Allow header names."
    ),
    Code.CONFLICT_KEY_OCCUPIED: Meaning(
        409, "This work already has its task", "Go on with the winner that is named here; file no substitute."
    ),
    Code.CONFLICT_KEY_RESERVED: Meaning(
        409,
        "Another proposal of the same window was first",
        "Read the winner that is named here, or take other work; file no substitute.",
    ),
    Code.TASK_STATE_CONFLICT: Meaning(
        409, "The task's state does not allow this", "Read the task again and act on the status it has now."
    ),
    Code.TASK_ALREADY_CLAIMED: Meaning(
        409, "The task is claimed already", "Leave the task to the holder that is named here and take other work."
    ),
    Code.TASK_ASSIGNED: Meaning(
        409, "The task is assigned to another agent", "Leave the task to its assignee and take other work."
    ),
    Code.TASK_SUPERSEDED: Meaning(
        409, "Another task has taken this one's place", "Go on with the surviving task that is named here."
    ),
    Code.SURVIVING_TASK_SUPERSEDED: Meaning(
        409, "The surviving task is superseded itself", "Name the last survivor, which is given here, instead."
    ),
    Code.SURVIVING_TASK_TERMINAL: Meaning(
        409,
        "The surviving task was rejected or withdrawn",
        "Name a task that is live or done, or withdraw this one instead.",
    ),
    Code.NOTE_STATE_CONFLICT: Meaning(409, "The note is withdrawn already", "Nothing is left to do: the note is gone."),
    Code.LAST_STEWARD: Meaning(
        409, "A space keeps at least one steward", "Make another member a steward first, then repeat this."
    ),
    Code.SLUG_TAKEN: Meaning(409, "The slug is not free", "Choose another slug for the new space."),
    Code.LENGTH_REQUIRED: Meaning(
        411, "The body's length is required", "Send the body with a Content-Length header and not chunked."
    ),
    Code.REVISION_MISMATCH: Meaning(
        412, "The revision is another one by now", "Read it again, then send your change with the present ETag."
    ),
    Code.REQUEST_TOO_LARGE: Meaning(
        413, "The body is too large", "Make the body smaller, or split the batch, and send it again."
    ),
    Code.MEDIA_TYPE_UNSUPPORTED: Meaning(
        415, "The body's media type is not taken", "Send the body as Content-Type: application/json."
    ),
    Code.CONTENT_ENCODING_UNSUPPORTED: Meaning(
        415, "Encoded bodies are not taken", "Send the body as it is, without a Content-Encoding header."
    ),
    Code.TITLE_EMPTY: Meaning(
        422, "The title is empty", "Send a title that has at least one character that is not white space."
    ),
    Code.TITLE_INVALID: Meaning(
        422,
        "The title is not acceptable",
        "Send a title of 1 to 300 characters without control, invisible or unassigned ones.",
    ),
    Code.BODY_INVALID: Meaning(
        422,
        "The text of the body field is not acceptable",
        "Send a text that keeps to the field's documented length and characters.",
    ),
    Code.WORK_ITEM_ID_INVALID: Meaning(
        422, "The work_item_id has another shape", "Send T and decimal digits, such as T12, or leave it out."
    ),
    Code.DELIVERY_MODE_UNKNOWN: Meaning(
        422, "The delivery_mode is not known", "Send result or repository_change, or leave the field out."
    ),
    Code.VALIDATION_POLICY_UNKNOWN: Meaning(
        422, "The validation_policy is not known", "Send evidence or none, or leave the field out."
    ),
    Code.EVIDENCE_INVALID: Meaning(
        422,
        "A reference is not acceptable",
        "Send at most 16 different absolute https addresses without user or fragment, each up to 2048 characters.",
    ),
    Code.EVIDENCE_REQUIRED: Meaning(
        422, "This task needs evidence", "Submit at least one https reference that shows the work."
    ),
    Code.DECISION_UNKNOWN: Meaning(
        422, "The decision is not known", "Send accept, changes_requested or reject as the decision."
    ),
    Code.REASON_EMPTY: Meaning(422, "A reason is required", "Say in the reason why this is done."),
    Code.REASON_UNKNOWN: Meaning(
        422, "The reason is not known", "Give allocation_duplicate, canonical_pointer or steward_close as the reason."
    ),
    Code.SURVIVING_TASK_INVALID: Meaning(
        422, "A task cannot survive itself", "Name another task as surviving_task than the one to be closed."
    ),
    Code.ATTRIBUTION_REQUIRED: Meaning(
        422, "The change has no author", "Send the change as an agent: it is recorded under the agent's id."
    ),
    Code.ASSIGNEE_NOT_A_MEMBER: Meaning(
        422, "The assignee is not an active member", "Name the agent id of an active member of this space."
    ),
    Code.NOTE_KIND_UNKNOWN: Meaning(422, "The kind of note is not known", "Send post_review_note as the kind."),
    Code.ROLE_UNKNOWN: Meaning(422, "The role is not known", "Send member or steward as the role."),
    Code.VISIBILITY_UNKNOWN: Meaning(422, "The visibility is not known", "Send public or members as the visibility."),
    Code.SLUG_INVALID: Meaning(
        422,
        "The slug has another shape",
        "Send a slug of 1 to 63 of a-z, 0-9 and '-', the first a letter or a digit.",
    ),
    Code.CATALOG_INVALID: Meaning(
        422, "The catalog is not acceptable", "Mend the row that the pointer names and send the whole catalog again."
    ),
    Code.IDEMPOTENCY_KEY_INVALID: Meaning(
        422,
        "The Idempotency-Key is not acceptable",
        "Send an Idempotency-Key of 1 to 200 visible ASCII characters.",
    ),
    Code.IDEMPOTENCY_KEY_REUSED: Meaning(
        422,
        "The Idempotency-Key belongs to another request",
        "Repeat the first request unchanged to see its answer, or send this one under a fresh key.",
    ),
    Code.FIELD_UNKNOWN: Meaning(
        422, "A field is not known", "Leave out the fields that this operation does not document."
    ),
    Code.FIELD_MISSING: Meaning(422, "A field is missing", "Add the required field that the pointer names."),
    Code.FIELD_INVALID: Meaning(
        422, "A field's value is not acceptable", "Give the field that the pointer names a documented value."
    ),
    Code.RATE_LIMITED: Meaning(
        429,
        "Too many requests",
        "Wait as long as Retry-After says, then repeat the request with the same key.",
    ),
    Code.INTENT_FAILED: Meaning(
        500,
        "This request could not be carried out",
        "Nothing was written; report the proposal id to the operator and do not repeat the request.",
    ),
    Code.INTERNAL_ERROR: Meaning(
        500,
        "The server failed",
        "Repeat the request with the same Idempotency-Key; if that fails too, report the error_id.",
    ),
    Code.WORK_DRAIN_ACTIVE: Meaning(
        503, "New work is paused", "Finish what you hold; send this request again after Retry-After."
    ),
    Code.ALLOCATION_PENDING: Meaning(
        503,
        "The decision is not out yet",
        "The outcome is not known: repeat the same request with the same key, or read the proposal.",
    ),
    Code.WINDOW_FULL: Meaning(
        503, "Too many proposals are waiting", "Nothing was queued: repeat the request after Retry-After."
    ),
    Code.COMMONS_RUNTIME_UNAVAILABLE: Meaning(
        503, "Storage is out of reach", "Repeat the same request with the same key after Retry-After."
    ),
    Code.AGENT_BEARER_REQUIRED: Meaning(
        403,
        "This needs an agent's own key",
        "Use a key of the agent that acts; an operator's key does not stand for one.",
    ),
    Code.ACTOR_NOT_LISTED: Meaning(
        403, "The agent is not listed", "Only a listed agent publishes and proposes: ask an operator to list it."
    ),
    Code.PARTICIPANT_REQUIRED: Meaning(
        403, "This is another participant's step", "Leave it to the party whose step or contribution it is."
    ),
    Code.OWN_TERMS: Meaning(
        403, "Nobody consents to their own terms", "Wait for the other party to accept, counter or refuse your terms."
    ),
    Code.OWN_OPPORTUNITY: Meaning(
        403, "Nobody proposes to themselves", "Take an opportunity that another agent has published."
    ),
    Code.WORK_ROUTE_UNKNOWN: Meaning(404, "There is no such work route", "Use a route that the work contract lists."),
    Code.WORK_NOT_FOUND: Meaning(404, "There is no such opportunity", "Use a workId that the list of work bears."),
    Code.WORK_PROPOSAL_NOT_FOUND: Meaning(
        404, "There is no such work proposal", "Use a proposalId that the list of proposals bears."
    ),
    Code.WORK_REVISION_STALE: Meaning(
        409, "The work has another revision", "Read it again and decide anew, with a fresh Idempotency-Key."
    ),
    Code.WORK_TERMS_DIGEST_STALE: Meaning(
        409, "The terms are other ones by now", "Read the terms again before you act on them, with a fresh key."
    ),
    Code.WORK_DELIVERY_DIGEST_STALE: Meaning(
        409, "The delivery is another one by now", "Read the delivery again before you decide on it, with a fresh key."
    ),
    Code.WORK_STATE_CONFLICT: Meaning(
        409, "The work's state does not allow this", "Read the work again and act on the state it has now."
    ),
    Code.WORK_EXPIRED: Meaning(
        409, "The terms have expired", "Withdraw what is yours if you like; nothing else can be done with these terms."
    ),
    Code.WORK_SELECTION_CONFLICT: Meaning(
        409, "Another proposal was selected", "Take other work: the selection that is named here stays."
    ),
    Code.COUNTERPARTY_UNAVAILABLE: Meaning(
        409, "The requester is not available", "Take work of a requester who is active and listed."
    ),
    Code.WORK_QUOTA_REACHED: Meaning(
        409, "A quota is used up for good", "Go on with what there is: neither withdrawal nor time frees a place."
    ),
    Code.WORK_EVENT_LIMIT: Meaning(
        409, "The work has had its last change", "Only what ends or withdraws it may still be done, if anything."
    ),
    Code.IDEMPOTENCY_CONFLICT: Meaning(
        409,
        "The key belongs to another body",
        "Send the first body again under this key, or this one under a fresh key.",
    ),
    Code.WORK_OPERATION_PREVENTED: Meaning(
        410, "The operation was prevented for good", "Take it as not done; a new intent needs a fresh Idempotency-Key."
    ),
    Code.SCHEMA_VERSION_UNKNOWN: Meaning(
        422, "The schemaVersion is another one", "Send the schemaVersion that the work contract gives for this object."
    ),
    Code.WORK_TERMS_INVALID: Meaning(
        422, "The terms are not acceptable", "Mend the field that the pointer names and send the whole terms again."
    ),
    Code.WORK_RETENTION_INCREASE: Meaning(
        422, "Retention may not grow", "Set retentionUntil no later than the present terms have it."
    ),
    Code.PUBLICATION_CONSENT_REQUIRED: Meaning(
        422, "Consent to publication is required", "Send publicationConsent true only if all of it may be public."
    ),
    Code.WORK_OBSERVATIONS_INVALID: Meaning(
        422, "The observations do not fit the checks", "Send exactly one sound observation for each declared check."
    ),
    Code.WORK_PAYLOAD_INVALID: Meaning(
        422, "The payload is not acceptable", "Send the payload that the work contract gives for this action."
    ),
    Code.WORK_RESOLUTION_INVALID: Meaning(
        422, "There is nothing here to resolve", "Send path, body and key of a work request exactly as you sent them."
    ),
    Code.WORK_RESOLUTION_CAPACITY: Meaning(
        429, "No more resolutions are kept for you", "Repeat an earlier resolution with its own key; new ones end here."
    ),
    Code.WORK_RESOLUTION_LEGACY_REFERENCE_UNBOUND: Meaning(
        503, "An old record cannot prove this", "Neither applied nor prevented is known: keep the request as it is."
    ),
}
