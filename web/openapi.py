"""The API's description, made of what serves it: routes, their operations, the validating structs, the table of codes.

OpenAPI 3.1. Nothing is said here that another place says already, so the two cannot part. Contract 2.7; Seed 003.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from models.rules.codes import OUTCOME_UNKNOWN, RETRY_AFTER_S, STATUS, Code, error_class
from models.rules.conflict import ConflictKey
from models.rules.intents import REFUSED_IN_DRAIN, ActOnProposal
from models.rules.proposals import FRESH
from web.operations import Auth, Operation, codes_of, is_exchange
from web.transport import IDEMPOTENCY_KEY_CHARACTERS

Operations = Mapping[tuple[str, str], Operation | None]

_REF: Final = "#/components/schemas/{name}"
_PROBLEM_JSON: Final = "application/problem+json"
_SOURCES: Final = re.compile(r"\s*\((?:Seed|Contract)[^)]*\)|\s*(?:Seed|Contract) \d.*")
_METHODS: Final = ("GET", "PUT", "POST", "DELETE")
_INTEGER: Final = {"type": "integer", "minimum": 1, "maximum": 2**53 - 1}
_PATH_FIELDS: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "slug": ({"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,62}$"}, "A space's name."),
    "task_id": (_INTEGER, "A task's id within its space."),
    "note_id": (_INTEGER, "A note's id within its space."),
    "window_id": ({"type": "string", "format": "uuid"}, "A window's id, as tasks and proposals bear it."),
    "agent": ({"type": "string", "minLength": 1, "maxLength": 100}, "An agent's id, never its handle."),
    "work_id": ({"type": "string", "pattern": "^commonswork-[0-9a-f]{24}$"}, "An opportunity's id."),
    "work_proposal_id": ({"type": "string", "pattern": "^commonsproposal-[0-9a-f]{24}$"}, "A work proposal's id."),
    "proposal_id": ({"type": "string", "pattern": "^prp_[0-9a-f]{32}$"}, "A proposal's id."),
}
_HEADERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Idempotency-Key": {
        "description": "Any text of yours. Repeated with the same body it brings the first success again as it was.",
        "schema": {"type": "string", "pattern": f"^[\\x21-\\x7e]{{1,{IDEMPOTENCY_KEY_CHARACTERS}}}$"},
    },
    "Prefer": {
        "description": "respond-async: be answered 202 at once; it asks for an Idempotency-Key.",
        "schema": {"type": "string"},
    },
    "If-Match": {
        "description": "The ETag that was read: the change is made to that revision or not at all.",
        "schema": {"type": "string"},
    },
    "Last-Event-ID": {
        "description": "Number of the last event that was seen; the stream goes on behind it.",
        "schema": {"type": "string", "pattern": "^(0|[1-9][0-9]{0,15})$"},
    },
}
_WORK_KEY: Final[Mapping[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "A private text, made once for each intent and kept for ever by the service as a digest alone.",
    "schema": {"type": "string", "pattern": "^[\\x21-\\x7e]{32,200}$"},
}
_ANSWER_HEADERS: Final[Mapping[str, str]] = {
    "ETag": "The revision, as an entity tag.",
    "Location": "Where the new thing is.",
    "Dibs-Proposal": "The proposal's id: GET /v0/proposals/{proposal_id} tells what became of it.",
    "Idempotent-Replayed": "true where the answer is an earlier one that an Idempotency-Key brought again.",
    "Retry-After": "Seconds to wait, at least 1.",
    "WWW-Authenticate": "Bearer.",
}
_PROBLEM: Final[Mapping[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "description": "A refusal (RFC 9457). detail says in one sentence what to do next.",
    "required": ["type", "title", "status", "detail", "error", "code", "retryable", "write_occurred"],
    "properties": {
        "type": {"type": "string", "description": "urn:dibs:problem:<code>"},
        "title": {"type": "string"},
        "status": {"type": "integer", "description": "The HTTP status; a task's own status is task_status."},
        "detail": {"type": "string"},
        "error": {"type": "string", "enum": sorted({error_class(code) for code in Code})},
        "code": {"type": "string", "enum": sorted(Code)},
        "retryable": {"type": "boolean", "description": "The same request may be answered otherwise later."},
        "write_occurred": {"type": ["boolean", "null"], "description": "false: nothing was written; null: unknown."},
        "pointer": {"type": "string", "description": "Where in the body the fault is (RFC 6901)."},
        "proposal_id": {"type": "string"},
        "error_id": {"type": "string", "description": "Names a failure in the server's log."},
        "conflict_key": {"$ref": _REF.format(name="ConflictKey")},
        "outcome": {"type": "string", "enum": ["redirect", "idle"]},
        "winner": {
            "type": "object",
            "required": ["type", "id", "created_by"],
            "properties": {
                "type": {"type": "string", "enum": ["task", "note", "reserved_intent"]},
                "id": {"type": ["integer", "string"]},
                "status": {"type": "string"},
                "task_id": {"type": "integer"},
                "note_id": {"type": "integer"},
                "created_by": {"type": "string"},
            },
        },
        "reserved_proposal_id": {"type": "string"},
        "retry_after_ms": {"type": "integer"},
        "yours": {"type": "boolean", "description": "The winner, or the holder, is the caller."},
        "held": {"type": "boolean"},
        "holder": {"type": "string"},
        "assigned_to": {"type": "string"},
        "created_by": {"type": "string"},
        "task_status": {"type": "string"},
        "note_status": {"type": "string"},
        "revision": {"type": "integer", "description": "The revision there is now."},
        "surviving_task": {"type": "integer", "description": "The last survivor, which goes on with the work."},
        "surviving_task_status": {"type": "string"},
    },
}


_WORK_PROBLEM: Final[Mapping[str, Any]] = {
    "type": "object",
    "title": "WorkProblem",
    "description": "A refusal of the work exchange (RFC 9457). It repeats no value of the request.",
    "required": ["error", "type", "title", "status", "detail"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "valuesRedacted", "writeOccurred"],
            "properties": {
                "code": {"type": "string", "enum": sorted(Code)},
                "valuesRedacted": {"const": True},
                "writeOccurred": {"enum": [False, None], "description": "false: no effect; null: not known."},
            },
        },
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "pointer": {"type": "string"},
        "proposal_id": {"type": "string"},
        "error_id": {"type": "string"},
        "selectedProposalId": {"type": "string", "description": "The proposal that was selected instead."},
    },
}
_TWO_STATUSES: Final[Mapping[str, int]] = {"correctWork": 409}
"""Operations that answer ``work_retention_increase`` with another status than the code's own."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal that was queued and whose outcome nobody waits for; it promises nothing."""

    proposal_id: str
    state: str


def document(operations: Operations, *, version: str) -> bytes:
    """Return the description of an application's operations as JSON.

    Raises:
        ValueError: a route's method declares no operation.
    """
    silent = [f"{method} {path}" for (path, method), operation in operations.items() if operation is None]
    if silent:
        raise ValueError(f"routes without an operation: {', '.join(silent)}")
    declared = [(path, method, operation) for (path, method), operation in operations.items() if operation is not None]
    types = dict.fromkeys((ConflictKey, Accepted, *_types(operation for _, _, operation in declared)))
    schemas, components = msgspec.json.schema_components(tuple(types), ref_template=_REF)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for path, method, operation in sorted(declared, key=lambda one: (one[0], _METHODS.index(one[1]))):
        item = paths.setdefault(path, {"parameters": _path_parameters(path)} if "{" in path else {})
        item[method.lower()] = _operation(path, operation, schema_of)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "dibs",
                "version": version,
                "summary": "One winner per piece of work, for swarms of agents",
                "description": "A 409 is an answer and no failure: it names the winner and says what to do next.",
            },
            "servers": [{"url": "/"}],
            "paths": paths,
            "components": {
                "schemas": {
                    **{name: _plain(schema) for name, schema in components.items()},
                    "Problem": _PROBLEM,
                    "WorkProblem": _WORK_PROBLEM,
                },
                "securitySchemes": {
                    "key": {"type": "http", "scheme": "bearer", "bearerFormat": "dibs_<public>_<secret>"}
                },
            },
        }
    )


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose description, a docstring, names no document that its reader does not have."""
    plain = dict(schema)
    if "description" in plain:
        plain["description"] = _SOURCES.sub("", " ".join(plain["description"].split()))
    return plain


def _types(operations: Iterable[Operation]) -> Iterable[Any]:
    for operation in operations:
        for one in (*operation.answers.values(), operation.body):
            yield from _several(one)


def _several(one: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a type, a tuple of types, or None
    return one if isinstance(one, tuple) else () if one is None else (one,)


def _schema(one: Any, schema_of: Mapping[Any, Any]) -> Any:  # noqa: ANN401 - likewise
    several = [schema_of[kind] for kind in _several(one)]
    return {"anyOf": several} if len(several) > 1 else several[0]


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_FIELDS[name][1],
            "schema": _PATH_FIELDS[name][0],
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _operation(path: str, operation: Operation, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": _parameters(path, operation),
        "responses": _responses(path, operation, schema_of),
    }
    if operation.intent is not None:
        found["description"] = f"Decided in a window of its partition. While the service drains it {_drain(operation)}."
    if operation.auth is Auth.KEY:
        found["security"] = [{"key": []}]
    elif operation.auth is Auth.OPTIONAL:
        found["security"] = [{}, {"key": []}]
    if operation.body is not None:
        found["requestBody"] = {
            "required": not operation.body_optional,
            "content": {"application/json": {"schema": _schema(operation.body, schema_of)}},
        }
    return found


def _drain(operation: Operation) -> str:
    if operation.intent is ActOnProposal:
        return f"goes on, but for {', '.join(sorted(FRESH))}"
    return "is refused" if operation.intent in REFUSED_IN_DRAIN else "goes on"


def _parameters(path: str, operation: Operation) -> list[dict[str, Any]]:
    query = [
        {"name": name, "in": "query", "description": field.summary, "schema": field.schema}
        for name, field in operation.query.items()
    ]
    headers = []
    if operation.intent is not None and not is_exchange(path):
        headers += ["Idempotency-Key", "Prefer"]
    if operation.if_match:
        headers.append("If-Match")
    if operation.media_type == "text/event-stream":
        headers.append("Last-Event-ID")
    required = [dict(_WORK_KEY)] if operation.intent is not None and is_exchange(path) else []
    return query + required + [{"name": name, "in": "header", **_HEADERS[name]} for name in headers]


def _responses(path: str, operation: Operation, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    by_status: dict[int, list[Code]] = {}
    for code in sorted(codes_of(path, operation)):
        retention = code is Code.WORK_RETENTION_INCREASE
        status = _TWO_STATUSES.get(operation.id, STATUS[code]) if retention else STATUS[code]
        by_status.setdefault(status, []).append(code)
    refused = _work_refused if is_exchange(path) else _refused
    responses: dict[int, Any] = {status: refused(codes) for status, codes in by_status.items()}
    for status, answer in operation.answers.items():
        content = {operation.media_type: {"schema": _schema(answer, schema_of)}}
        if status in responses:
            # An answer of its own beside the refusals of that status, as a service's that is not ready.
            responses[status]["content"] |= content
        else:
            responses[status] = {"description": operation.summary, "content": content}
        names = [
            *(["ETag"] if operation.etag else []),
            *(["Location"] if status == 201 else []),  # noqa: PLR2004 - HTTP Created
            *(["Dibs-Proposal", "Idempotent-Replayed"] if operation.intent is not None else []),
        ]
        responses[status].setdefault("headers", {}).update(_headers(names))
    if operation.intent is not None and not is_exchange(path):
        responses[202] = {
            "description": "Queued, for Prefer: respond-async; read the proposal at Location.",
            "content": {"application/json": {"schema": schema_of[Accepted]}},
            "headers": _headers(["Location", "Dibs-Proposal"]),
        }
    return {str(status): responses[status] for status in sorted(responses)}


def _work_refused(codes: list[Code]) -> dict[str, Any]:
    found = _refused(codes)
    code = {"type": "object", "properties": {"code": {"enum": codes}}}
    found["content"][_PROBLEM_JSON]["schema"] = {
        "allOf": [
            {"$ref": _REF.format(name="WorkProblem")},
            {"type": "object", "properties": {"error": code}},
        ]
    }
    return found


def _refused(codes: list[Code]) -> dict[str, Any]:
    names = [
        *(["Retry-After"] if any(code in RETRY_AFTER_S for code in codes) else []),
        *(["WWW-Authenticate"] if any(STATUS[code] == 401 for code in codes) else []),  # noqa: PLR2004
    ]
    open_ = [code for code in codes if code in OUTCOME_UNKNOWN]
    told = f"; whether something was written is open after {', '.join(open_)}" if open_ else ""
    return {
        "description": ", ".join(codes) + told,
        "content": {
            _PROBLEM_JSON: {
                "schema": {
                    "allOf": [
                        {"$ref": _REF.format(name="Problem")},
                        {"type": "object", "properties": {"code": {"enum": codes}}},
                    ]
                }
            }
        },
        **({"headers": _headers(names)} if names else {}),
    }


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"description": _ANSWER_HEADERS[name], "schema": {"type": "string"}} for name in names}
