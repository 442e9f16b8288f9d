import contextlib
import json
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.rules.codes import Code
from web.strict_json import MAX_DEPTH, JsonRefused, parse

CANARY = "canary-9f1c"


class Mode(StrEnum):
    FAST = "fast"


class Item(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    count: Annotated[int, msgspec.Meta(ge=0, le=999)] = 0
    name: Annotated[str, msgspec.Meta(max_length=5)] = ""
    child: "Item | None" = None


class Doc(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    title: Annotated[str, msgspec.Meta(max_length=10)]
    mode: Mode = Mode.FAST
    kind: Literal["x", "y"] = "x"
    flag: bool = False
    big: int = 0
    items: Annotated[list[Item], msgspec.Meta(max_length=3)] = []
    marks: dict[str, int] = {}
    places: dict[int, int] = {}


DOC = msgspec.json.Decoder(Doc)
ANY = msgspec.json.Decoder(Any)


def refusal(body: bytes, decoder: msgspec.json.Decoder[Any] = DOC) -> JsonRefused:
    with pytest.raises(JsonRefused) as caught:
        parse(body, decoder)
    return caught.value


def doc(rest: str) -> bytes:
    return b'{"title":"t",' + rest.encode() + b"}"


def test_a_good_body_becomes_its_type() -> None:
    found = parse(doc('"items":[{"count":7,"child":{"name":"é"}}],"flag":true,"marks":{"a":1}'), DOC)
    assert found == Doc(title="t", items=[Item(count=7, child=Item(name="é"))], flag=True, marks={"a": 1})


def test_legal_oddities_pass() -> None:
    assert parse(b' \r\n\t{ "title" : "\\u0000\\ud83d\\ude00\\u20ac" } ', DOC).title == "\x00😀€"
    assert parse(doc('"big":-0'), DOC).big == 0
    assert parse(doc('"big":9007199254740993'), DOC).big == 2**53 + 1
    assert parse(doc(f'"big":{-(2**63)}'), DOC).big == -(2**63)


MALFORMED = {
    "empty": b"",
    "white space": b"  \n",
    "byte order mark": b'\xef\xbb\xbf{"title":"t"}',
    "utf-16": '{"title":"t"}'.encode("utf-16"),
    "latin-1": b'{"title":"\xe9"}',
    "overlong utf-8": b'{"title":"\xc0\xaf"}',
    "surrogate in utf-8": b'{"title":"\xed\xa0\x80"}',
    "beyond unicode": b'{"title":"\xf4\x90\x80\x80"}',
    "bad utf-8 in a field nobody knows": b'{"title":"t","zz":"\xff"}',
    "high surrogate": b'{"title":"\\ud800"}',
    "low surrogate": b'{"title":"\\udc00 and text after"}',
    "surrogates the wrong way round": b'{"title":"\\ude00\\ud83d"}',
    "high surrogate before a letter": b'{"title":"\\ud83d\\u0041 text"}',
    "surrogate in a key": b'{"\\ud800":1,"title":"t"}',
    "surrogate in a field nobody knows": b'{"title":"t","zz":["\\udfff"]}',
    "NaN": doc('"big":NaN'),
    "Infinity": doc('"big":Infinity'),
    "-Infinity": doc('"big":-Infinity'),
    "1e999": doc('"big":1e999'),
    "1e400 in a field nobody knows": doc('"zz":[1e400]'),
    "-1e400": doc('"big":-1e400'),
    "400 digits": doc('"big":' + "9" * 400),
    "400 digits in a field nobody knows": doc('"zz":{"q":' + "9" * 400 + "}"),
    "5000 digits": doc('"big":-' + "9" * 5000),
    "60000 digits and a fraction": doc('"big":' + "9" * 60_000 + ".5"),
    "leading zero": doc('"big":01'),
    "plus": doc('"big":+1'),
    "hexadecimal": doc('"big":0x10'),
    "bare point": doc('"big":1.'),
    "trailing comma": b'{"title":"t",}',
    "trailing comma in an array": doc('"items":[{},]'),
    "text after": b'{"title":"t"} x',
    "second document": b'{"title":"t"}{"title":"t"}',
    "NUL after": b'{"title":"t"}\x00',
    "control character in a string": b'{"title":"a\x01"}',
    "tab in a string": b'{"title":"a\tb"}',
    "newline in a string": b'{"title":"a\nb"}',
    "unknown escape": b'{"title":"\\x41"}',
    "short escape": b'{"title":"\\u00"}',
    "single quotes": b"{'title':'t'}",
    "bare key": b'{title:"t"}',
    "comment": b'{"title":"t"/* */}',
    "missing colon": b'{"title" "t"}',
    "cut": b'{"title":"t"',
    "cut in a string": b'{"title":"t',
    "vertical tab as white space": b'\x0b{"title":"t"}',
    "no-break space as white space": '\u00a0{"title":"t"}'.encode(),
    "deep but unclosed": b"[" * MAX_DEPTH,
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_not_json_is_malformed(body: bytes) -> None:
    found = refusal(body)
    assert (found.code, found.pointer) == (Code.MALFORMED_JSON, None)
    assert refusal(body, ANY).code == Code.MALFORMED_JSON


def test_a_byte_order_mark_and_another_encoding_are_called_by_their_names() -> None:
    assert refusal(b'\xef\xbb\xbf{"title":"t"}').detail == "Send the body without a byte order mark."
    assert refusal(b'{"title":"\xe9"}').detail == "Send the body in UTF-8."


DUPLICATES = {
    "outermost": b'{"title":"a","title":"b"}',
    "same value": b'{"title":"a","title":"a"}',
    "through an escape": b'{"title":"a","t\\u0069tle":"b"}',
    "through a surrogate pair": '{"title":"t","😀":1,"\\ud83d\\ude00":2}'.encode(),
    "nested": doc('"items":[{"count":1,"count":2}]'),
    "in a field nobody knows": doc('"zz":[[{"q":{"a":1,"a":1}}]]'),
    "empty key": doc('"":1,"":2'),
    "unknown field twice": doc('"zz":1,"zz":2'),
    "far apart": doc(",".join(f'"k{n}":0' for n in range(500)) + ',"k0":1'),
    "and wrongly typed": b'{"title":1,"title":2}',
}


@pytest.mark.parametrize("body", DUPLICATES.values(), ids=DUPLICATES.keys())
def test_repeated_keys_are_refused_at_any_depth(body: bytes) -> None:
    found = refusal(body)
    assert (found.code, found.pointer) == (Code.DUPLICATE_JSON_KEY, None)


def test_equal_keys_of_different_objects_are_no_repetition() -> None:
    assert len(parse(doc('"items":[{"count":1},{"count":1,"child":{"count":1}}]'), DOC).items) == 2


SCHEMA = {
    "missing": (b"{}", Code.FIELD_MISSING, "/title"),
    "unknown": (doc('"zz":1'), Code.FIELD_UNKNOWN, ""),
    "unknown inside": (doc('"items":[{},{"zz":1}]'), Code.FIELD_UNKNOWN, "/items/1"),
    "unknown deeper": (doc('"items":[{"child":{"child":{"zz":1}}}]'), Code.FIELD_UNKNOWN, "/items/0/child/child"),
    "number for text": (b'{"title":1}', Code.FIELD_INVALID, "/title"),
    "null for text": (b'{"title":null}', Code.FIELD_INVALID, "/title"),
    "too long": (b'{"title":"12345678901"}', Code.FIELD_INVALID, "/title"),
    "float for an integer": (doc('"big":1.0'), Code.FIELD_INVALID, "/big"),
    "exponent for an integer": (doc('"big":1e2'), Code.FIELD_INVALID, "/big"),
    "negative zero float": (doc('"big":-0.0'), Code.FIELD_INVALID, "/big"),
    "boolean for an integer": (doc('"big":true'), Code.FIELD_INVALID, "/big"),
    "text for an integer": (doc('"big":"1"'), Code.FIELD_INVALID, "/big"),
    "null for an integer": (doc('"big":null'), Code.FIELD_INVALID, "/big"),
    "beyond the bound": (doc('"items":[{"count":1000}]'), Code.FIELD_INVALID, "/items/0/count"),
    "negative": (doc('"items":[{"count":-1}]'), Code.FIELD_INVALID, "/items/0/count"),
    "64-bit integer beyond the bound": (
        doc('"items":[{"count":18446744073709551615}]'),
        Code.FIELD_INVALID,
        "/items/0/count",
    ),
    "long fraction": (doc('"big":0.' + "1" * 60_000), Code.FIELD_INVALID, "/big"),
    "integer for a boolean": (doc('"flag":1'), Code.FIELD_INVALID, "/flag"),
    "unknown member of an enum": (doc('"mode":"slow"'), Code.FIELD_INVALID, "/mode"),
    "unknown literal": (doc('"kind":"z"'), Code.FIELD_INVALID, "/kind"),
    "too many": (doc('"items":[{},{},{},{}]'), Code.FIELD_INVALID, "/items"),
    "object for an array": (doc('"items":{}'), Code.FIELD_INVALID, "/items"),
    "value in a map": (doc('"marks":{"some key":"x"}'), Code.FIELD_INVALID, "/marks"),
    "key of a map": (doc('"places":{"some key":1}'), Code.FIELD_INVALID, None),
    "array": (b"[]", Code.FIELD_INVALID, ""),
    "text": (b'"x"', Code.FIELD_INVALID, ""),
    "null": (b"null", Code.FIELD_INVALID, ""),
    "number": (b"1", Code.FIELD_INVALID, ""),
}


@pytest.mark.parametrize(("body", "code", "pointer"), SCHEMA.values(), ids=SCHEMA.keys())
def test_the_schema_is_enforced_and_the_place_named(body: bytes, code: Code, pointer: str | None) -> None:
    found = refusal(body)
    assert (found.code, found.pointer) == (code, pointer)


ORDER = {
    "depth before syntax": (b"[" * 2000, Code.NESTING_TOO_DEEP),
    "depth before repeated keys": (b'{"a":1,"a":' + b"[" * 40 + b"]" * 40 + b"}", Code.NESTING_TOO_DEEP),
    "encoding before depth": (b"\xff" + b"[" * 2000, Code.MALFORMED_JSON),
    "syntax before repeated keys": (b'{"a":1,"a":2} x', Code.MALFORMED_JSON),
    "syntax before the schema": (b'{"zz":NaN}', Code.MALFORMED_JSON),
    "repeated keys before the schema": (b'{"zz":1,"zz":1}', Code.DUPLICATE_JSON_KEY),
}


@pytest.mark.parametrize(("body", "code"), ORDER.values(), ids=ORDER.keys())
def test_of_two_faults_the_same_one_is_always_named(body: bytes, code: Code) -> None:
    assert refusal(body).code == code


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_ends_at_the_limit(opening: str, closing: str) -> None:
    allowed = (opening * MAX_DEPTH + closing * MAX_DEPTH).replace(":}", ":1}")
    assert parse(allowed.encode(), ANY) == json.loads(allowed)
    found = refusal(f"[{allowed}]".encode(), ANY)
    assert (found.code, found.pointer) == (Code.NESTING_TOO_DEEP, None)


@pytest.mark.parametrize("levels", [33, 1100, 2000, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":', '["\\"",'])
def test_no_depth_reaches_the_recursion_limit(levels: int, opening: str) -> None:
    assert refusal((opening * levels).encode()).code == Code.NESTING_TOO_DEEP


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, "{[" * 2000, '\\"' + "[" * 100, '\\\\\\"' + "{" * 100, "]" * 50 + "[" * 100, "\\u005b" * 50],
)
def test_brackets_in_strings_do_not_nest(text: str) -> None:
    assert parse(f'["{text}", "\\\\", [1], "{text}"]'.encode(), ANY)[2] == [1]


def test_brackets_between_strings_nest_whatever_the_strings_hold() -> None:
    body = b'["\\\\",' * 40 + b'"]]]]]"' + b"]" * 40
    assert refusal(body, ANY).code == Code.NESTING_TOO_DEEP


def test_many_shallow_brackets_are_no_depth() -> None:
    assert len(parse(b"[" + b"[],{}," * 5000 + b"[]]", ANY)) == 10_001


@pytest.mark.parametrize(
    ("rest", "pointer"),
    [
        (f'"{CANARY}":1', ""),
        (f'"x` - at `$.{CANARY}":1', ""),
        (f'"x` - at `$.items[0].{CANARY}":1,"items":[]', ""),
        (f'"items":[{{"x` - at `$.{CANARY}":1}}]', "/items/0"),
        (f'"{CANARY}\\n\\u0000`":1', ""),
        (f'"{CANARY * 5000}":1', ""),
        (f'"mode":"{CANARY} - at `$.{CANARY}`"', "/mode"),
        (f'"marks":{{"{CANARY}":"{CANARY}"}}', "/marks"),
        (f'"places":{{"{CANARY}":1}}', None),
        (f'"items":[{{"name":"{CANARY}"}}]', "/items/0/name"),
    ],
)
def test_nothing_of_the_request_is_quoted(rest: str, pointer: str | None) -> None:
    found = refusal(doc(rest))
    assert found.pointer == pointer
    assert CANARY not in f"{found} {found!r} {found.detail} {found.args}"
    assert found.__cause__ is None
    assert found.__suppress_context__


def test_every_refusal_says_what_to_do() -> None:
    for body in [*MALFORMED.values(), *DUPLICATES.values(), *(case[0] for case in SCHEMA.values()), b"[" * 40]:
        found = refusal(body)
        assert found.detail.endswith(".")
        assert 10 < len(found.detail) < 150


JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text('[]{}"\\:,`$.', max_size=8)
JSON_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | JSON_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(JSON_TEXT, inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(JSON_VALUE, st.integers(0, MAX_DEPTH + 3), st.booleans(), st.sampled_from([None, 1]))
def test_any_document_within_the_depth_is_read_as_written(
    value: Any, wraps: int, ascii_only: bool, indent: int | None
) -> None:
    for _ in range(wraps):
        value = {'a"[\\': value, "\\": "[[["}
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    if depth_of(value) > MAX_DEPTH:
        assert refusal(body, ANY).code == Code.NESTING_TOO_DEEP
    else:
        assert parse(body, ANY) == value


def reference(body: bytes) -> Any:
    """Read strict JSON with the standard library alone, slowly."""

    def constant(_: str) -> None:
        raise ValueError

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError
        return dict(pairs)

    value = json.loads(body.decode(), parse_constant=constant, object_pairs_hook=members)
    written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    written.encode()
    return value


@given(
    JSON_VALUE,
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from('{}[]",:019.eE+-\\utfn \t\n\x00\ud800')),
        max_size=3,
    ),
)
@example({"a": 1, "b": 2}, [(0.55, 0, "a")])
def test_mutated_documents_are_read_as_the_reference_reads_them_or_refused(
    value: Any, edits: list[tuple[float, int, str]]
) -> None:
    body = json.dumps(value).encode()
    for place, width, character in edits:
        at = int(place * len(body))
        body = body[:at] + character.encode("utf-8", "surrogatepass") + body[at + width :]
    try:
        expected = reference(body)
    except ValueError:
        assert refusal(body, ANY).code in {Code.MALFORMED_JSON, Code.DUPLICATE_JSON_KEY}
        return
    numbers_in_range = -(10**19) < _largest(expected) < 10**19
    if numbers_in_range:
        assert parse(body, ANY) == expected


def _largest(value: Any) -> int:
    if isinstance(value, dict):
        return max(map(_largest, value.values()), default=0)
    if isinstance(value, list):
        return max(map(_largest, value), default=0)
    return abs(value) if type(value) is int else 0


NASTY = {
    "openers": lambda n: b"[" * n,
    "pairs": lambda n: b"[" + b"[]," * (n // 3) + b"[]]",
    "unbalanced": lambda n: b"][" * (n // 2),
    "quotes after brackets": lambda n: b"[" * 40 + b'"' * n,
    "escaped quotes": lambda n: b"[" * 40 + b'"' + b'\\"' * (n // 2),
    "backslashes": lambda n: b"[" * 40 + b"\\" * n,
    "escapes": lambda n: b'{"title":"' + b"\\n" * (n // 2) + b'"}',
    "surrogate pairs": lambda n: b'{"title":"' + b"\\ud83d\\ude00" * (n // 12) + b'"}',
    "digits": lambda n: b'{"title":' + b"9" * n + b"}",
    "fraction": lambda n: b'{"title":0.' + b"9" * n + b"}",
    "long integers": lambda n: b"[" + b",".join([b"9" * 4000] * (n // 4000)) + b"]",
    "many keys": lambda n: b"{" + b",".join(b'"%d":1' % key for key in range(n // 10)) + b"}",
    "one key often": lambda n: b"{" + b",".join([b'"a":1'] * (n // 6)) + b"}",
    "a key like a path": lambda n: b'{"' + b"` - at `$.a" * (n // 11) + b'":1}',
    "strings with brackets": lambda n: b"[" * 33 + b",".join([b'"[{"'] * (n // 5)),
    "white space": lambda n: b" " * n,
    "minus signs": lambda n: b"-" * n,
    "colons": lambda n: b'{"a"' + b":" * n,
}


@pytest.mark.parametrize("nasty", NASTY.values(), ids=NASTY.keys())
def test_a_mebibyte_of_anything_is_parsed_or_refused(nasty: Any) -> None:
    """No input ends in a RecursionError or any other error of a parser; none takes the test's time limit."""
    with contextlib.suppress(JsonRefused):
        parse(nasty(1024 * 1024), DOC)
