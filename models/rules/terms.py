"""The terms of a piece of work: fourteen fields that two parties agree upon, word for word. Seed 004; Contract 3.

The structs are the wire's own objects: their JSON is what is hashed, so nothing is normalised, added or left out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from models.rules import evidence
from models.rules.canonical import canonical_json, sha256_hex
from models.rules.codes import Code

TERMS_BYTES_MAX: Final = 12_000
EXPIRY_MAX: Final = timedelta(days=30)
RETENTION_MAX: Final = timedelta(days=365)

_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}\Z")
_CHECK_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
_INSTANT: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\Z", re.ASCII)
_CAPABILITY_CHARACTERS: Final = 80
_SCOPE_CHARACTERS: Final = 300
_DESCRIPTION_CHARACTERS: Final = 400
_COUNT_MAX: Final = 1_000_000_000
_ARTIFACT_BYTES_MAX: Final = 1_073_741_824


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """An object of the exchange: exact members in camel case."""


class Input(Wire, frozen=True):
    """A reference that the work starts from; nobody follows it here."""

    uri: Annotated[str, Meta(max_length=evidence.REFERENCE_CHARACTERS_MAX)]
    sha256: str
    media_type: str


class Deliverable(Wire, frozen=True):
    """What is to be handed over."""

    media_type: str
    max_bytes: Annotated[int, Meta(ge=0, le=_ARTIFACT_BYTES_MAX)]


class Check(Wire, frozen=True):
    """A proposition that delivery and decision each have an observation of."""

    check_id: str
    description: Annotated[str, Meta(min_length=1, max_length=_DESCRIPTION_CHARACTERS)]


class Budget(Wire, frozen=True):
    """What the work may cost, as agreed; nothing here meters it."""

    max_requests: Annotated[int, Meta(ge=0, le=_COUNT_MAX)]
    max_runtime_seconds: Annotated[int, Meta(ge=0, le=_COUNT_MAX)]


class ValueKind(StrEnum):
    """What the work is done for."""

    UNCOMPENSATED = "uncompensated"
    RECIPROCAL = "reciprocal"


class Value(Wire, frozen=True):
    """What the work is done for, in words."""

    kind: ValueKind
    description: Annotated[str, Meta(min_length=1, max_length=_DESCRIPTION_CHARACTERS)]


class Audience(Wire, frozen=True):
    """Who may read it: everyone."""

    kind: Literal["public"]


class Terms(Wire, frozen=True):
    """Complete terms; :func:`fault_of` says what the types cannot."""

    schema_version: Literal["concresca.work_terms.v1"]
    title: Annotated[str, Meta(min_length=1, max_length=160)]
    purpose: Annotated[str, Meta(min_length=1, max_length=2000)]
    required_capabilities: Annotated[tuple[str, ...], Meta(max_length=16)]
    inputs: Annotated[tuple[Input, ...], Meta(max_length=16)]
    deliverable: Deliverable
    checks: Annotated[tuple[Check, ...], Meta(min_length=1, max_length=16)]
    action_scope: Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)]
    resource_budget: Budget
    value: Value
    audience: Audience
    expires_at: str
    retention_until: str
    publication_consent: bool


class Fault(msgspec.Struct, frozen=True):
    """Why an object cannot be taken, and where in it (RFC 6901)."""

    code: Code
    pointer: str


def digest(value: Wire) -> str:
    """Return the SHA-256 of an object's canonical JSON, 64 hexadecimal digits."""
    return sha256_hex(canonical(value))


def canonical(value: Wire) -> bytes:
    """Return an object's canonical JSON: sorted members, compact, unescaped, arrays as they are."""
    return canonical_json(msgspec.to_builtins(value))


def instant(text: str) -> datetime | None:
    """Return the moment of ``YYYY-MM-DDTHH:MM:SSZ``, None for any other text or a date that no calendar has."""
    if not _INSTANT.match(text):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def is_text(text: str, *, longest: int) -> bool:
    """Tell whether a text has 1 to ``longest`` characters, no white space around it and no code point of category C."""
    return (
        0 < len(text) <= longest
        and text == text.strip()
        and not any(unicodedata.category(character)[0] == "C" for character in text)
    )


def is_sha256(text: str) -> bool:
    """Tell whether a text is 64 lower-case hexadecimal digits."""
    return _SHA256.match(text) is not None


def is_media_type(text: str) -> bool:
    """Tell whether a text is a lower-case type and subtype without parameters."""
    return _MEDIA_TYPE.match(text) is not None


def fault_of(terms: Terms, *, now: datetime) -> Fault | None:
    """Return the first fault of terms that are new, countered or corrected at ``now``; None for sound ones."""
    pointer = next(_faults(terms, now), None)
    if pointer is not None:
        return Fault(Code.WORK_TERMS_INVALID, pointer)
    if terms.publication_consent is not True:
        return Fault(Code.PUBLICATION_CONSENT_REQUIRED, "/publicationConsent")
    return None


def _faults(terms: Terms, now: datetime) -> Iterator[str]:
    yield from _texts(terms)
    for number, one in enumerate(terms.inputs):
        if not evidence.is_reference(one.uri):
            yield f"/inputs/{number}/uri"
        if not is_sha256(one.sha256):
            yield f"/inputs/{number}/sha256"
        if not is_media_type(one.media_type):
            yield f"/inputs/{number}/mediaType"
    if not is_media_type(terms.deliverable.media_type):
        yield "/deliverable/mediaType"
    for number, check in enumerate(terms.checks):
        if not _CHECK_ID.match(check.check_id):
            yield f"/checks/{number}/checkId"
        if not is_text(check.description, longest=_DESCRIPTION_CHARACTERS):
            yield f"/checks/{number}/description"
    yield from _repeats([capability.casefold() for capability in terms.required_capabilities], "/requiredCapabilities")
    yield from _repeats([one.uri for one in terms.inputs], "/inputs", "/uri")
    yield from _repeats([check.check_id for check in terms.checks], "/checks", "/checkId")
    yield from _repeats(terms.action_scope, "/actionScope")
    expires, retained = instant(terms.expires_at), instant(terms.retention_until)
    if expires is None or not now < expires <= now + EXPIRY_MAX:
        yield "/expiresAt"
    if retained is None or expires is None or not expires <= retained <= now + RETENTION_MAX:
        yield "/retentionUntil"
    if len(canonical(terms)) > TERMS_BYTES_MAX:
        yield ""


def _texts(terms: Terms) -> Iterator[str]:
    if not is_text(terms.title, longest=160):
        yield "/title"
    if not is_text(terms.purpose, longest=2000):
        yield "/purpose"
    for number, text in enumerate(terms.required_capabilities):
        if not is_text(text, longest=_CAPABILITY_CHARACTERS):
            yield f"/requiredCapabilities/{number}"
    for number, text in enumerate(terms.action_scope):
        if not is_text(text, longest=_SCOPE_CHARACTERS):
            yield f"/actionScope/{number}"
    if not is_text(terms.value.description, longest=_DESCRIPTION_CHARACTERS):
        yield "/value/description"


def _repeats(values: Sequence[str], pointer: str, member: str = "") -> Iterator[str]:
    seen: set[str] = set()
    for number, value in enumerate(values):
        if value in seen:
            yield f"{pointer}/{number}{member}"
        seen.add(value)
