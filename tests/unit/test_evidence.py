"""Which addresses are evidence: those that anyone can follow, spelled in the one way there is. Contract 2.2 and 3."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.rules.evidence import REFERENCE_CHARACTERS_MAX, REFERENCES_MAX, fault_of, is_reference

PROOF = "https://example.test/proof"


@pytest.mark.parametrize(
    "text",
    [
        PROOF,
        "https://example.test",
        "https://example.test/",
        "https://example.test:8443/a/b?c=d&e=%20#".rstrip("#"),
        "https://xn--bcher-kva.example/%C3%A9",
        "https://192.0.2.1/",
        "https://[2001:db8::1]/a",
        "https://[2001:db8::1]:443/a",
        "https://example.test/(a)!$&'*+,;=:@~_-.",
        "https://example.test/" + "a" * (REFERENCE_CHARACTERS_MAX - 21),
    ],
)
def test_an_absolute_https_address_is_evidence(text: str) -> None:
    assert is_reference(text)
    assert fault_of((text,)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://",
        "https:///path",
        "https:example.test",
        "https:/example.test",
        "//example.test/a",
        "/a",
        "example.test/a",
        "http://example.test/a",
        "ftp://example.test/a",
        "javascript:alert(1)",
        "data:text/plain,x",
        "https://user@example.test/a",
        "https://user:secret@example.test/a",
        "https://@example.test/a",
        "https://:@example.test/a",
        "https://example.test/a#b",
        "https://example.test/a#",
        "https://example.test/a b",
        " https://example.test/a",
        "https://example.test/a ",
        "https://example.test/a\n",
        "https://example.test/\ta",
        "https://exam\nple.test/a",
        "https://example.test/\0",
        "https://example.test/\x7f",
        "https://example.test/\u00a0",
        "https://example.test/\u202e",
        "https://example.test/caf\u00e9",
        "https://b\u00fccher.example/",
        "https://example.test\\a",
        "https://example.test/%",
        "https://example.test/%2",
        "https://example.test/%zz",
        'https://example.test/"a"',
        "https://example.test/<a>",
        "https://:443/a",
        "https://?a",
        "https://example.test:/a",
        "https://example.test:port/a",
        "https://example.test:65536/a",
        "https://example.test:-1/a",
        "https://[2001:db8::1/a",
        "https://2001:db8::1/a",
        "https://[example.test]/a",
        "https://[]/a",
        "https://-/a",
        "https://.example.test/a",
        "https://%65xample.test/a",
        "https://example.test/" + "a" * (REFERENCE_CHARACTERS_MAX - 20),
    ],
)
def test_nothing_else_is_evidence(text: str) -> None:
    assert not is_reference(text)
    assert fault_of((PROOF, text)) == "/1"


def test_the_first_fault_of_a_list_is_named() -> None:
    assert fault_of(()) is None
    assert fault_of((PROOF, PROOF, "no")) == "/1"
    assert fault_of(("no", PROOF, PROOF)) == "/0"
    assert fault_of(tuple(f"{PROOF}/{number}" for number in range(REFERENCES_MAX))) is None
    assert fault_of(("no",) * (REFERENCES_MAX + 1)) == ""


@given(st.text(max_size=40).map("https://example.test".__add__))
def test_no_text_makes_the_check_fail(text: str) -> None:
    if is_reference(text):
        assert text.isascii()
        assert text.isprintable()
        assert not set(" #\\") & set(text)
