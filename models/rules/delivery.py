"""What a provider hands over and what a requester says of it: two envelopes of attributable claims. Seed 004.

Nothing is fetched or run: the server looks at shape, ownership, state and digests.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final, Literal

from msgspec import Meta

from models.rules import evidence
from models.rules.codes import Code
from models.rules.terms import Fault, Terms, Wire, canonical, is_media_type, is_sha256

ENVELOPE_BYTES_MAX: Final = 22_000
_OBSERVATIONS_MAX: Final = 16


class ObservedOutcome(StrEnum):
    """What an observation says of a check."""

    PASS = "pass"  # noqa: S105 - a word, no secret
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Verdict(StrEnum):
    """What a requester decides."""

    ACCEPT = "accept"
    DISPUTE = "dispute"


class Observation(Wire, frozen=True):
    """One claim about one check, and where its evidence is."""

    check_id: str
    outcome: ObservedOutcome
    evidence_uri: Annotated[str, Meta(max_length=evidence.REFERENCE_CHARACTERS_MAX)]
    evidence_sha256: str


Observations = Annotated[tuple[Observation, ...], Meta(min_length=1, max_length=_OBSERVATIONS_MAX)]


class Delivery(Wire, frozen=True):
    """A reference to what was made. ``bytes`` and ``sha256`` are declarations about the artifact."""

    schema_version: Literal["concresca.work_delivery.v1"]
    uri: Annotated[str, Meta(max_length=evidence.REFERENCE_CHARACTERS_MAX)]
    sha256: str
    media_type: str
    bytes: Annotated[int, Meta(ge=0)]
    observations: Observations
    publication_consent: bool


class WorkDecision(Wire, frozen=True):
    """A requester's own decision about one delivery envelope, by its digest."""

    schema_version: Literal["concresca.work_decision.v1"]
    delivery_sha256: str
    outcome: Verdict
    observations: Observations
    publication_consent: bool


def delivery_fault(delivery: Delivery, terms: Terms) -> Fault | None:
    """Return the first fault of a delivery under its terms; None for a sound one."""
    deliverable = terms.deliverable
    if not evidence.is_reference(delivery.uri):
        return Fault(Code.WORK_PAYLOAD_INVALID, "/payload/uri")
    if not is_sha256(delivery.sha256):
        return Fault(Code.WORK_PAYLOAD_INVALID, "/payload/sha256")
    if not is_media_type(delivery.media_type) or delivery.media_type != deliverable.media_type:
        return Fault(Code.WORK_PAYLOAD_INVALID, "/payload/mediaType")
    if delivery.bytes > deliverable.max_bytes:
        return Fault(Code.WORK_PAYLOAD_INVALID, "/payload/bytes")
    return _common_fault(delivery, terms)


def decision_fault(decision: WorkDecision, terms: Terms) -> Fault | None:
    """Return the first fault of a decision under its terms; None for a sound one."""
    if not is_sha256(decision.delivery_sha256):
        return Fault(Code.WORK_PAYLOAD_INVALID, "/payload/deliverySha256")
    fault = _common_fault(decision, terms)
    if fault is not None:
        return fault
    if decision.outcome is Verdict.ACCEPT and any(
        one.outcome is not ObservedOutcome.PASS for one in decision.observations
    ):
        return Fault(Code.WORK_OBSERVATIONS_INVALID, "/payload/observations")
    return None


def _common_fault(envelope: Delivery | WorkDecision, terms: Terms) -> Fault | None:
    pointer = next(_observation_faults(envelope.observations, terms), None)
    if pointer is not None:
        return Fault(Code.WORK_OBSERVATIONS_INVALID, f"/payload/observations{pointer}")
    if envelope.publication_consent is not True:
        return Fault(Code.PUBLICATION_CONSENT_REQUIRED, "/payload/publicationConsent")
    if len(canonical(envelope)) > ENVELOPE_BYTES_MAX:
        return Fault(Code.WORK_PAYLOAD_INVALID, "/payload")
    return None


def _observation_faults(observations: tuple[Observation, ...], terms: Terms) -> Iterator[str]:
    """Yield the faults of observations that must be exactly one for each declared check."""
    open_checks = {check.check_id for check in terms.checks}
    for number, one in enumerate(observations):
        if one.check_id not in open_checks:
            yield f"/{number}/checkId"
        open_checks.discard(one.check_id)
        if not evidence.is_reference(one.evidence_uri):
            yield f"/{number}/evidenceUri"
        if not is_sha256(one.evidence_sha256):
            yield f"/{number}/evidenceSha256"
    if open_checks:
        yield ""
