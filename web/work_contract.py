"""The exchange's machine contract: all that an agent needs to agree on work, made of what validates. Seed 004.

Schemas come from the structs, the tables of steps from the rules, the errors from the table of codes; the examples are
fictional and their digests are those of the code that hashes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec

from models.rules import evidence, work
from models.rules.codes import ADVICE, STATUS, TITLE
from models.rules.delivery import ENVELOPE_BYTES_MAX, Delivery, ObservedOutcome, Verdict, WorkDecision
from models.rules.proposals import ACTIONS, WITHOUT_PAYLOAD, Row
from models.rules.terms import EXPIRY_MAX, RETENTION_MAX, TERMS_BYTES_MAX, Terms
from models.rules.work import OpportunityState, OpportunityView, ProposalState, ProposalView, WorkAction
from models.settings import Settings
from web import work_inputs as inputs
from web.openapi import Operations
from web.operations import codes_of, is_exchange
from web.work_answers import OpportunityMutation, ProposalMutation, ResolutionMutation

_REF: Final = "#/schemas/{name}"
_CLEANUP: Final = frozenset(
    {
        WorkAction.REFUSE,
        WorkAction.CANCEL,
        WorkAction.WITHDRAW_TERMS,
        WorkAction.WITHDRAW_DELIVERY,
        WorkAction.WITHDRAW_DECISION,
    }
)
_TYPES: Final = (
    inputs.Publication,
    inputs.Correction,
    inputs.Withdrawal,
    inputs.Offer,
    inputs.BareAction,
    inputs.CounterAction,
    inputs.DeliverAction,
    inputs.DecideAction,
    inputs.ResolutionRequest,
    Terms,
    Delivery,
    WorkDecision,
    OpportunityView,
    ProposalView,
    OpportunityMutation,
    ProposalMutation,
    ResolutionMutation,
)


def document(operations: Operations, settings: Settings) -> bytes:
    """Return the contract as JSON."""
    routes = [
        (method, path, operation)
        for (path, method), operation in sorted(operations.items())
        if operation is not None and is_exchange(path)
    ]
    codes = sorted({code for _, path, operation in routes for code in codes_of(path, operation)})
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    return msgspec.json.encode(
        {
            "schemaVersion": "concresca.work_contract.v1",
            "canonicalOrigin": settings.canonical_origin,
            "workspaceId": settings.workspace_id,
            "projectId": settings.project_id,
            "routes": [
                {
                    "method": method,
                    "path": path,
                    "summary": operation.summary,
                    "status": min(operation.answers),
                    "key": operation.intent is not None,
                    "bodies": _bodies(operation.body),
                    "cleanup": operation.intent is not None and operation.id in {"withdrawWork", "resolveWork"},
                    "errors": sorted(codes_of(path, operation)),
                }
                for method, path, operation in routes
            ],
            "schemas": schemas,
            "bounds": _bounds(settings),
            "hashing": {
                "encoding": "JSON with sorted member names, compact separators, unescaped Unicode, UTF-8, no floats",
                "digest": "SHA-256, 64 lower-case hexadecimal digits",
                "termsSha256": "of the whole terms object",
                "deliverySha256": "of the whole delivery envelope",
            },
            "opportunity": {
                "ownStates": list(OpportunityState),
                "states": [*OpportunityState, "expired", "retention_expired"],
                "projection": "retention_expired, then withdrawn, then expired, then ownState",
            },
            "proposal": {
                "ownStates": list(ProposalState),
                "states": [*ProposalState, "expired", "retention_expired"],
                "terminal": sorted(work.TERMINAL),
                "actions": {action: _action(action, rows) for action, rows in ACTIONS.items()},
            },
            "outcomes": {"observation": list(ObservedOutcome), "decision": list(Verdict)},
            "errors": {code: {"status": STATUS[code], "title": TITLE[code], "advice": ADVICE[code]} for code in codes},
            "correctionStatusOfRetentionIncrease": 409,
            "examples": msgspec.Raw(examples()),
        }
    )


def examples() -> bytes:
    """Return the fictional requests of the main flow and its branches, as JSON."""
    return (files("web") / "examples" / "work_exchange_v1.json").read_bytes()


def _bodies(body: Any) -> list[str]:  # noqa: ANN401 - a type, a tuple of types, or None
    several = body if isinstance(body, tuple) else () if body is None else (body,)
    return [_REF.format(name=kind.__name__) for kind in several]


def _action(action: WorkAction, rows: tuple[Row, ...]) -> dict[str, Any]:
    return {
        "steps": [
            {
                "from": sorted(row.sources),
                "to": row.target,
                "who": row.party,
                "beforeExpiry": row.timely,
                "takesBack": row.takes_back,
            }
            for row in rows
        ],
        "payload": None if action in WITHOUT_PAYLOAD else _REF.format(name=_PAYLOADS[action].__name__),
        "cleanup": action in _CLEANUP,
    }


_PAYLOADS: Final[Mapping[WorkAction, type[Terms | Delivery | WorkDecision]]] = {
    WorkAction.COUNTER: Terms,
    WorkAction.DELIVER: Delivery,
    WorkAction.DECIDE: WorkDecision,
}


def _bounds(settings: Settings) -> dict[str, int]:
    return {
        "requestBytes": settings.work_request_bytes,
        "termsBytes": TERMS_BYTES_MAX,
        "envelopeBytes": ENVELOPE_BYTES_MAX,
        "expirySeconds": int(EXPIRY_MAX.total_seconds()),
        "retentionSeconds": int(RETENTION_MAX.total_seconds()),
        "referenceCharacters": evidence.REFERENCE_CHARACTERS_MAX,
        "ordinaryEvents": work.EVENTS_ORDINARY,
        "events": work.EVENTS_MAX,
        "opportunitiesOfARequester": work.OPPORTUNITIES_MAX,
        "proposalsOfAProvider": work.PROPOSALS_MAX,
        "proposalsOfAnOpportunity": work.PROPOSALS_PER_OPPORTUNITY_MAX,
        "fencesOfAnActor": work.FENCES_MAX,
        "resolutionsOfAnActor": work.RESOLUTIONS_MAX,
        "keyCharactersMin": 32,
        "keyCharactersMax": 200,
    }


def routes_of(operations: Operations) -> list[str]:
    """Return the exchange's routes as ``METHOD path``."""
    return [f"{method} {path}" for path, method in sorted(operations) if is_exchange(path)]
