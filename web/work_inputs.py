"""From the exchange's envelopes to intents: exact fields, and the exchange's own code for each fault. Seed 004."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from models.rules.codes import Code
from models.rules.delivery import Delivery, WorkDecision
from models.rules.intents import ActOnProposal, CorrectWork, ProposeWork, PublishWork, WithdrawWork
from models.rules.terms import Terms, Wire, is_sha256
from models.rules.work import WorkAction
from web.problems import Refusal
from web.strict_json import JsonRefused, parse
from web.work_problems import PREFIX

Revision = Annotated[int, Meta(ge=1, le=2**31 - 1)]

KEY: Final = re.compile(r"[\x21-\x7e]{32,200}\Z")
"""An Idempotency-Key of the exchange."""

WORK_ID: Final = re.compile(r"commonswork-[0-9a-f]{24}\Z")
PROPOSAL_ID: Final = re.compile(r"commonsproposal-[0-9a-f]{24}\Z")

ORIGINAL: Final = re.compile(
    rf"{PREFIX}/(?:work|work/(?P<work>commonswork-[0-9a-f]{{24}})/(?:corrections|withdrawal|proposals)"
    r"|work-proposals/(?P<proposal>commonsproposal-[0-9a-f]{24})/actions)\Z"
)
"""Paths of requests that can be resolved; a resolution is none of them."""


class Publication(Wire, frozen=True):
    """A new opportunity."""

    schema_version: Literal["concresca.work_opportunity.v1"]
    terms: Terms


class Correction(Wire, frozen=True):
    """An opportunity's next terms."""

    schema_version: Literal["concresca.work_opportunity.v1"]
    terms: Terms
    expected_revision: Revision


class Withdrawal(Wire, frozen=True):
    """The end of an opportunity."""

    schema_version: Literal["concresca.work_opportunity_withdrawal.v1"]
    expected_revision: Revision


class Offer(Wire, frozen=True):
    """A proposal of complete terms."""

    schema_version: Literal["concresca.work_proposal.v1"]
    terms: Terms
    expected_opportunity_revision: Revision


class _Act(Wire, frozen=True, kw_only=True):
    schema_version: Literal["concresca.work_action.v1"]
    action: str
    expected_revision: Revision
    expected_terms_sha256: str


class BareAction(_Act, frozen=True, kw_only=True):
    """An action without payload: null, or left out."""

    payload: None = None


class CounterAction(_Act, frozen=True, kw_only=True):
    """Other terms."""

    payload: Terms


class DeliverAction(_Act, frozen=True, kw_only=True):
    """A delivery."""

    payload: Delivery


class DecideAction(_Act, frozen=True, kw_only=True):
    """A decision."""

    payload: WorkDecision


class ResolutionRequest(Wire, frozen=True):
    """A request to be resolved, exactly as it was sent."""

    schema_version: Literal["concresca.work_resolution.v1"]
    original_path: str
    original_body: dict[str, msgspec.Raw]
    original_idempotency_key: str


class _AnyAction(msgspec.Struct, frozen=True):
    action: msgspec.Raw = msgspec.Raw()


ActionBody = BareAction | CounterAction | DeliverAction | DecideAction
ACTION_BODIES: Final[Mapping[WorkAction, type[ActionBody]]] = {
    **dict.fromkeys(WorkAction, BareAction),
    WorkAction.COUNTER: CounterAction,
    WorkAction.DELIVER: DeliverAction,
    WorkAction.DECIDE: DecideAction,
}
"""The body that each action takes."""

_publication: Final = msgspec.json.Decoder(Publication)
_correction: Final = msgspec.json.Decoder(Correction)
_withdrawal: Final = msgspec.json.Decoder(Withdrawal)
_offer: Final = msgspec.json.Decoder(Offer)
_resolution: Final = msgspec.json.Decoder(ResolutionRequest)
_any_action: Final = msgspec.json.Decoder(_AnyAction)
_syntax: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_actions: Final[Mapping[WorkAction, msgspec.json.Decoder[Any]]] = {
    action: msgspec.json.Decoder(kind) for action, kind in ACTION_BODIES.items()
}
T = TypeVar("T")


def syntax(body: bytes) -> Any:  # noqa: ANN401 - any JSON object
    """Return the body as plain JSON, once it is known to be strict JSON and an object.

    Raises:
        JsonRefused: a fault of JSON, or no object (``work_payload_invalid``).
    """
    _read(body, _syntax)
    return msgspec.json.decode(body)


def publish(body: bytes) -> PublishWork:
    """Return the intent of a publication.

    Raises:
        JsonRefused: 400 or 422 with the pointer of the fault.
    """
    return PublishWork(terms=_read(body, _publication).terms)


def correct(work_id: str, body: bytes) -> CorrectWork:
    """Return the intent of a correction.

    Raises:
        JsonRefused: 400 or 422.
    """
    given = _read(body, _correction)
    return CorrectWork(work_id=work_id, terms=given.terms, expected_revision=given.expected_revision)


def withdraw(work_id: str, body: bytes) -> WithdrawWork:
    """Return the intent of an opportunity's withdrawal.

    Raises:
        JsonRefused: 400 or 422.
    """
    return WithdrawWork(work_id=work_id, expected_revision=_read(body, _withdrawal).expected_revision)


def propose(work_id: str, body: bytes) -> ProposeWork:
    """Return the intent of a proposal.

    Raises:
        JsonRefused: 400 or 422.
    """
    given = _read(body, _offer)
    return ProposeWork(
        work_id=work_id, terms=given.terms, expected_opportunity_revision=given.expected_opportunity_revision
    )


def act(proposal_id: str, work_id: str | None, body: bytes) -> ActOnProposal:
    """Return the intent of an action: its name says which payload goes with it.

    Raises:
        JsonRefused: 400 or 422.
    """
    name = _read(body, _any_action).action
    try:
        action = msgspec.json.decode(name, type=WorkAction) if bytes(name) else None
    except msgspec.ValidationError:
        raise JsonRefused(Code.WORK_PAYLOAD_INVALID, "/action", "Send one of the work contract's actions.") from None
    given = _read(body, _actions[action or WorkAction.REFUSE])
    if action is None or not is_sha256(given.expected_terms_sha256):
        raise JsonRefused(
            Code.WORK_PAYLOAD_INVALID, "/expectedTermsSha256", "Send the termsSha256 that was read, in lower case."
        )
    payload = given.payload
    return ActOnProposal(
        proposal_id=proposal_id,
        work_id=work_id,
        action=action,
        expected_revision=given.expected_revision,
        expected_terms_sha256=given.expected_terms_sha256,
        terms=payload if isinstance(payload, Terms) else None,
        delivery=payload if isinstance(payload, Delivery) else None,
        decision=payload if isinstance(payload, WorkDecision) else None,
    )


def resolution(body: bytes) -> ResolutionRequest:
    """Return a resolution's request, of an original that can be resolved.

    Raises:
        JsonRefused: 400 or 422.
        Refusal: ``work_resolution_invalid``.
    """
    given = _read(body, _resolution)
    if not ORIGINAL.match(given.original_path):
        raise Refusal(Code.WORK_RESOLUTION_INVALID, pointer="/originalPath")
    if not KEY.match(given.original_idempotency_key):
        raise Refusal(Code.WORK_RESOLUTION_INVALID, pointer="/originalIdempotencyKey")
    return given


def _read(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return parse(body, decoder)
    except JsonRefused as refused:
        raise JsonRefused(_code_of(refused, decoder), refused.pointer, refused.detail) from None


def _code_of(refused: JsonRefused, decoder: msgspec.json.Decoder[T]) -> Code:
    """Return the exchange's code for a fault of the schema."""
    if refused.code is not Code.FIELD_INVALID:
        return refused.code
    pointer = refused.pointer or ""
    by_end = {"schemaVersion": Code.SCHEMA_VERSION_UNKNOWN, "publicationConsent": Code.PUBLICATION_CONSENT_REQUIRED}
    found = by_end.get(pointer.rpartition("/")[2])
    if found is not None:
        return found
    if decoder is _resolution:
        return Code.WORK_RESOLUTION_INVALID
    if pointer.startswith("/terms") or (decoder is _actions[WorkAction.COUNTER] and pointer.startswith("/payload")):
        return Code.WORK_TERMS_INVALID
    return Code.WORK_OBSERVATIONS_INVALID if "/observations" in pointer else Code.WORK_PAYLOAD_INVALID
