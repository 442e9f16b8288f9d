"""Terms, deliveries and decisions: bounds, words and digests. Seed 004."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from models.rules.code import Code
from models.rules.delivery import Delivery, WorkDecision, decision_fault, delivery_fault
from models.rules.terms import Terms, canonical, digest, fault_of, instant, is_text
from tests.exchange import FIXTURE, REQUESTS, payload, terms_of

NOW = datetime(2026, 9, 12, 20, tzinfo=UTC)
KINDS = {"counter": Terms, "deliver": Delivery, "decide": WorkDecision, "dispute": WorkDecision}


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("name", [name for name, one in REQUESTS.items() if one["digests"]])
def test_the_seeds_digests_come_out(name: str) -> None:
    """Each is made by the product and, independently, by the standard library as the seed writes it."""
    body = REQUESTS[name]["body"]
    given = body.get("terms") or body["payload"]
    (expected,) = REQUESTS[name]["digests"].values()
    text = json.dumps(given, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    assert hashlib.sha256(text.encode()).hexdigest() == expected
    kind = Terms if "requiredCapabilities" in given else Delivery if "uri" in given else WorkDecision
    assert digest(msgspec.convert(given, kind)) == expected
    assert canonical(msgspec.convert(given, kind)) == text.encode()


def test_the_seeds_terms_are_sound() -> None:
    for name in ("create", "counter", "correct-opportunity"):
        assert fault_of(terms_of(name), now=NOW) is None


LONG_URI = "https://example.test/" + "a" * 2027
assert len(LONG_URI) == 2048


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"title": " x"}, "/title"),
        ({"title": "x\u00a0"}, "/title"),
        ({"title": "a\u202eb"}, "/title"),
        ({"title": "a\nb"}, "/title"),
        ({"purpose": "a\u0000b"}, "/purpose"),
        ({"requiredCapabilities": ["x" * 81]}, "/requiredCapabilities/0"),
        ({"requiredCapabilities": [""]}, "/requiredCapabilities/0"),
        ({"requiredCapabilities": ["Straße", "STRASSE"]}, "/requiredCapabilities/1"),
        ({"actionScope": ["x", "x"]}, "/actionScope/1"),
        ({"actionScope": ["x" * 301]}, "/actionScope/0"),
        ({"value": {"kind": "reciprocal", "description": "x "}}, "/value/description"),
        ({"deliverable": {"mediaType": "Text/plain", "maxBytes": 1}}, "/deliverable/mediaType"),
        ({"deliverable": {"mediaType": "text/plain; charset=utf-8", "maxBytes": 1}}, "/deliverable/mediaType"),
        ({"checks": [{"checkId": "-x", "description": "d"}]}, "/checks/0/checkId"),
        ({"checks": [{"checkId": "X", "description": "d"}]}, "/checks/0/checkId"),
        ({"checks": [{"checkId": "x", "description": "d"}] * 2}, "/checks/1/checkId"),
        ({"expiresAt": stamp(NOW)}, "/expiresAt"),
        ({"expiresAt": stamp(NOW + timedelta(days=30, seconds=1))}, "/expiresAt"),
        ({"expiresAt": "2026-09-31T00:00:00Z"}, "/expiresAt"),
        ({"expiresAt": "2026-09-13T20:00:00+00:00"}, "/expiresAt"),
        ({"expiresAt": "2026-09-13T23:59:60Z"}, "/expiresAt"),
        ({"retentionUntil": "2026-09-13T19:59:59Z"}, "/retentionUntil"),
        ({"retentionUntil": stamp(NOW + timedelta(days=365, seconds=1))}, "/retentionUntil"),
        ({"inputs": [{"uri": "http://example.test/", "sha256": "0" * 64, "mediaType": "a/b"}]}, "/inputs/0/uri"),
        ({"inputs": [{"uri": "https://u@example.test/", "sha256": "0" * 64, "mediaType": "a/b"}]}, "/inputs/0/uri"),
        ({"inputs": [{"uri": "https://example.test/#f", "sha256": "0" * 64, "mediaType": "a/b"}]}, "/inputs/0/uri"),
        ({"inputs": [{"uri": "https://example.test/", "sha256": "A" * 64, "mediaType": "a/b"}]}, "/inputs/0/sha256"),
        ({"inputs": [{"uri": "https://example.test/", "sha256": "0" * 64, "mediaType": "a"}]}, "/inputs/0/mediaType"),
        ({"inputs": [{"uri": "https://example.test/", "sha256": "0" * 64, "mediaType": "a/b"}] * 2}, "/inputs/1/uri"),
    ],
)
def test_terms_are_refused_where_they_are_wrong(changes: dict[str, Any], pointer: str) -> None:
    fault = fault_of(terms_of(**changes), now=NOW)
    assert fault is not None
    assert (fault.code, fault.pointer) == (Code.WORK_TERMS_INVALID, pointer)


@pytest.mark.parametrize(
    "changes",
    [
        {"title": "x" * 160, "purpose": "y" * 2000},
        {"requiredCapabilities": []},
        {"requiredCapabilities": [f"capability {n}" for n in range(16)]},
        {"expiresAt": stamp(NOW + timedelta(seconds=1)), "retentionUntil": stamp(NOW + timedelta(seconds=1))},
        {"expiresAt": stamp(NOW + timedelta(days=30)), "retentionUntil": stamp(NOW + timedelta(days=365))},
        {"inputs": [{"uri": LONG_URI, "sha256": "0" * 64, "mediaType": "application/vnd.x+json"}]},
        {"deliverable": {"mediaType": "text/plain", "maxBytes": 1_073_741_824}},
        {"resourceBudget": {"maxRequests": 0, "maxRuntimeSeconds": 1_000_000_000}},
    ],
)
def test_terms_at_their_bounds_are_taken(changes: dict[str, Any]) -> None:
    assert fault_of(terms_of(**changes), now=NOW) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"title": ""},
        {"title": "x" * 161},
        {"purpose": "x" * 2001},
        {"requiredCapabilities": ["x"] * 17},
        {"checks": []},
        {"actionScope": []},
        {"deliverable": {"mediaType": "a/b", "maxBytes": 1_073_741_825}},
        {"resourceBudget": {"maxRequests": -1, "maxRuntimeSeconds": 1}},
        {"audience": {"kind": "private"}},
        {"audience": {"kind": "public", "list": []}},
        {"schemaVersion": "concresca.work_terms.v2"},
        {"publicationConsent": 1},
        {"extra": 1},
    ],
)
def test_what_no_type_takes_is_no_terms(changes: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        terms_of(**changes)


def test_consent_is_asked_for_last_and_size_is_bounded() -> None:
    fault = fault_of(terms_of(publicationConsent=False), now=NOW)
    assert fault is not None
    assert fault.code is Code.PUBLICATION_CONSENT_REQUIRED
    wide = {"inputs": [
        {"uri": f"https://example.test/{n}/" + "a" * 1000, "sha256": "0" * 64, "mediaType": "a/b"} for n in range(12)
    ]}  # fmt: skip
    fault = fault_of(terms_of(**wide), now=NOW)
    assert fault is not None
    assert fault.pointer == ""
    assert len(canonical(terms_of(**wide))) > 12_000


_SEEN = Code.WORK_OBSERVATIONS_INVALID
OBSERVATION = payload("deliver")["observations"][0]


@pytest.mark.parametrize(
    ("changes", "code", "pointer"),
    [
        ({"mediaType": "text/plain"}, Code.WORK_PAYLOAD_INVALID, "/payload/mediaType"),
        ({"bytes": 4097}, Code.WORK_PAYLOAD_INVALID, "/payload/bytes"),
        ({"sha256": "0" * 63}, Code.WORK_PAYLOAD_INVALID, "/payload/sha256"),
        ({"uri": "https://u:p@example.test/"}, Code.WORK_PAYLOAD_INVALID, "/payload/uri"),
        ({"observations": [OBSERVATION] * 2}, _SEEN, "/payload/observations/1/checkId"),
        (
            {"observations": [{**OBSERVATION, "checkId": "other"}]},
            Code.WORK_OBSERVATIONS_INVALID,
            "/payload/observations/0/checkId",
        ),
        (
            {"observations": [{**OBSERVATION, "evidenceSha256": "x"}]},
            Code.WORK_OBSERVATIONS_INVALID,
            "/payload/observations/0/evidenceSha256",
        ),
        ({"publicationConsent": False}, Code.PUBLICATION_CONSENT_REQUIRED, "/payload/publicationConsent"),
    ],
)
def test_a_delivery_keeps_to_its_terms(changes: dict[str, Any], code: Code, pointer: str) -> None:
    fault = delivery_fault(msgspec.convert({**payload("deliver"), **changes}, Delivery), terms_of("counter"))
    assert fault is not None
    assert (fault.code, fault.pointer) == (code, pointer)


@pytest.mark.parametrize("said", ["fail", "inconclusive"])
def test_an_acceptance_needs_every_observation_to_pass(said: str) -> None:
    seen = [{**OBSERVATION, "outcome": said}]
    accept = msgspec.convert({**payload("decide"), "observations": seen}, WorkDecision)
    fault = decision_fault(accept, terms_of("counter"))
    assert fault is not None
    assert fault.code is Code.WORK_OBSERVATIONS_INVALID
    dispute = msgspec.convert({**payload("decide"), "outcome": "dispute", "observations": seen}, WorkDecision)
    assert decision_fault(dispute, terms_of("counter")) is None


def test_every_check_is_observed() -> None:
    two = terms_of(checks=[{"checkId": "fiction-marker", "description": "d"}, {"checkId": "b", "description": "d"}])
    fault = delivery_fault(msgspec.convert(payload("deliver"), Delivery), two)
    assert fault is not None
    assert fault.pointer == "/payload/observations"


def test_small_words() -> None:
    assert instant("2024-02-29T00:00:00Z") == datetime(2024, 2, 29, tzinfo=UTC)
    assert instant("2023-02-29T00:00:00Z") is None
    assert instant("٢٠٢٤-02-29T00:00:00Z") is None
    assert is_text("a b", longest=3)
    assert not is_text("a b", longest=2)
    assert FIXTURE["validationClock"].startswith("2026-09-12T20:00:00")
