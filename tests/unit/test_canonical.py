import hashlib
import hmac
import json
from enum import StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.rules.canonical import canonical_json, keyed_digest, payload_sha256, sha256_hex

texts = st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def reverse_members(value):
    if isinstance(value, dict):
        return {name: reverse_members(value[name]) for name in reversed(value)}
    return [reverse_members(item) for item in value] if isinstance(value, list) else value


class TestCanonicalJson:
    @pytest.mark.parametrize(
        ("value", "encoded"),
        [
            ({"b": 1, "a": [True, None, "x"]}, b'{"a":[true,null,"x"],"b":1}'),
            ({"\U0001f600": 1, "\ufb33": 2}, '{"\ufb33":2,"\U0001f600":1}'.encode()),
            ({"é": "ü\u2028/<"}, '{"é":"ü\u2028/<"}'.encode()),
            ('"\\\b\f\n\r\t\x00\x1f\x7f', b'"\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001f\x7f"'),
            ((1, (2,)), b"[1,[2]]"),
            (-0, b"0"),
            (2**70, b"1180591620717411303424"),
            ({}, b"{}"),
            ("", b'""'),
        ],
    )
    def test_encodes(self, value, encoded):
        assert canonical_json(value) == encoded

    def test_an_enum_member_counts_as_its_text(self):
        class Mode(StrEnum):
            RESULT = "result"

        assert canonical_json({"mode": Mode.RESULT}) == b'{"mode":"result"}'

    @settings(deadline=None)
    @given(values)
    def test_equals_the_standard_library(self, value):
        reference = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        assert canonical_json(value) == reference.encode()

    @settings(deadline=None)
    @given(values)
    def test_never_depends_on_member_order_and_is_idempotent(self, value):
        encoded = canonical_json(value)
        assert canonical_json(reverse_members(value)) == encoded
        assert canonical_json(json.loads(encoded)) == encoded
        assert payload_sha256(reverse_members(value)) == payload_sha256(value)

    @pytest.mark.parametrize(
        "value",
        [
            *(1.0, -0.0, 1e-7, float("nan"), float("inf"), b"x", {1}, object(), 1j),
            *({1: "a"}, {None: "a"}, {True: "a"}, {"a": {2: 3}}, {"a": [1.0]}, ({"b": (b"",)},)),
        ],
    )
    def test_other_types_are_refused(self, value):
        with pytest.raises(TypeError):
            canonical_json(value)
        with pytest.raises(TypeError):
            canonical_json({"deep": [value]})

    @pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ["a\udc00secret"]])
    def test_lone_surrogates_are_refused_without_showing_the_text(self, value):
        with pytest.raises(ValueError, match="lone surrogate") as refusal:
            canonical_json(value)
        assert not isinstance(refusal.value, UnicodeError)
        assert refusal.value.__suppress_context__

    def test_a_cycle_is_refused(self):
        cycle: list[object] = []
        cycle.append(cycle)
        with pytest.raises(ValueError, match="Circular"):
            canonical_json(cycle)


class TestDigests:
    def test_sha256_of_known_texts(self):
        assert sha256_hex(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        assert payload_sha256({"b": [1], "a": "é"}) == hashlib.sha256('{"a":"é","b":[1]}'.encode()).hexdigest()

    def test_the_keyed_digest_is_an_hmac_over_lengths_and_parts(self):
        message = b"".join(len(part).to_bytes(8, "big") + part for part in (b"slot", b"agt_1", "ü".encode(), b""))
        expected = hmac.new(b"secret", message, hashlib.sha256).digest()
        assert keyed_digest(b"secret", "slot", "agt_1", "ü", b"") == expected

    def test_the_keyed_digest_stays_what_it_was(self):
        found = keyed_digest(b"k" * 32, "idempotency", "POST", b"/v0/spaces/mar/tasks").hex()
        assert found == "b9bb153f97d9379b84001555c58aa26c82a36f41b5edbd9c443c9c8c60df473f"

    def test_every_input_counts(self):
        digests = [
            keyed_digest(b"k", "p", "ab", "c"),
            keyed_digest(b"K", "p", "ab", "c"),
            keyed_digest(b"k", "q", "ab", "c"),
            keyed_digest(b"k", "p", "a", "bc"),
            keyed_digest(b"k", "p", "abc"),
            keyed_digest(b"k", "p", "c", "ab"),
            keyed_digest(b"k", "p", "ab", "c", ""),
            keyed_digest(b"k", "p", "", "ab", "c"),
            keyed_digest(b"k", "pab", "c"),
            keyed_digest(b"k", "p"),
        ]
        assert len(set(digests)) == len(digests)
        assert {len(digest) for digest in digests} == {32}

    @given(st.lists(st.binary(max_size=12), max_size=4), st.lists(st.binary(max_size=12), max_size=4))
    def test_no_two_lists_share_a_digest(self, one, two):
        assert (keyed_digest(b"k", "p", *one) == keyed_digest(b"k", "p", *two)) is (one == two)

    def test_text_counts_as_its_utf8(self):
        assert keyed_digest(b"k", "p", "ü") == keyed_digest(b"k", "p", "ü".encode())

    def test_no_digest_without_a_secret(self):
        with pytest.raises(ValueError, match="needs a secret"):
            keyed_digest(b"", "p", "x")

    def test_a_lone_surrogate_has_no_digest(self):
        with pytest.raises(ValueError, match="surrogates not allowed"):
            keyed_digest(b"k", "p", "\ud800")
