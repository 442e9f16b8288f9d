"""JSON as the contract wants it: what two parsers could read in two ways is refused before anyone reads it.

Neither parser of the house is strict enough alone. msgspec keeps the last of two equal keys and runs into the
recursion limit on deep nesting; the standard library takes NaN and lone surrogates. So a body passes a depth
count, then msgspec for the syntax (it builds nothing), then the standard library for repeated keys and for
numbers out of range, then msgspec again for the schema: 400 before 422, whatever else is wrong with it. Every
step is linear in the body's length.
Contract 6.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from math import isinf
from typing import Any, Final, TypeVar

import msgspec

from models.rules.codes import ADVICE, Code

MAX_DEPTH: Final = 32
"""Levels of arrays and objects a body may have."""

_BOM: Final = b"\xef\xbb\xbf"
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_DEPTH_STEP: Final = bytes.maketrans(b"[{]}", b"\x02\x02\x00\x00")
_INTEGER_CHARACTERS: Final = len(str(-(2**63)))

_PATH: Final = re.compile(r"\$((?:\.\w+|\[\d+\])*)(?:\[\.\.\.\])?.*\Z", re.ASCII | re.DOTALL)
_STEP: Final = re.compile(r"\w+", re.ASCII)
_AT: Final = " - at `"
_UNKNOWN: Final = "Object contains unknown field `"
_MISSING: Final = "Object missing required field `"

T = TypeVar("T")


class JsonRefused(Exception):  # noqa: N818 - the client is refused; nothing erred here
    """A body that is no strict JSON, or not of the schema.

    ``pointer`` is a JSON pointer (RFC 6901) made of the schema's names and of array positions only; for an
    unknown field it leads to the object that holds it. None where no place can be named. ``detail`` holds
    nothing of what the client sent.
    """

    def __init__(self, code: Code, pointer: str | None, detail: str) -> None:
        super().__init__(code, pointer, detail)
        self.code = code
        self.pointer = pointer
        self.detail = detail


def parse(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the body as the decoder's type.

    The decoder's structs must forbid unknown fields and bound their strings, integers and arrays: only what
    no type can describe is looked after here. NUL is legal in JSON strings and passes.

    Raises:
        JsonRefused: ``nesting_too_deep``, ``malformed_json`` (also: not UTF-8, a byte order mark, NaN,
            Infinity, numbers beyond 64-bit integers and doubles, lone surrogates), ``duplicate_json_key``,
            ``field_unknown``, ``field_missing`` or ``field_invalid``. A fault of JSON goes before one of the
            schema, and excess nesting before both.
    """
    text = _text(body)
    if _too_deep(body):
        raise _refused(Code.NESTING_TOO_DEEP)
    try:
        _SYNTAX.decode(body)
    except msgspec.DecodeError:
        raise _refused(Code.MALFORMED_JSON) from None
    _refuse_repeats_and_ranges(text)
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise _schema_refusal(str(error), body) from None


def _refused(code: Code, *, pointer: str | None = None, detail: str | None = None) -> JsonRefused:
    return JsonRefused(code, pointer, ADVICE[code] if detail is None else detail)


def _text(body: bytes) -> str:
    if body.startswith(_BOM):
        raise _refused(Code.MALFORMED_JSON, detail="Send the body without a byte order mark.")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise _refused(Code.MALFORMED_JSON, detail="Send the body in UTF-8.") from None


def _too_deep(body: bytes) -> bool:
    """Tell whether arrays and objects nest deeper than MAX_DEPTH, brackets in strings not counted.

    The answer is exact up to the first syntax error, which is as far as any parser will get after this.
    """
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return False
    # Without escaped backslashes, then escaped quotes, every second piece between quotes is outside a string.
    outside = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    steps = outside.translate(_DEPTH_STEP, _NO_BRACKETS)
    return any(depth > MAX_DEPTH for depth in accumulate(step - 1 for step in steps))


class _RepeatedKey(Exception):  # noqa: N818 - a signal between two functions, no error
    pass


def _without_repeats(members: list[tuple[str, Any]]) -> None:
    if len(dict(members)) != len(members):
        raise _RepeatedKey


def _integer(digits: str) -> None:
    if len(digits) > _INTEGER_CHARACTERS:
        raise OverflowError


def _float(number: str) -> None:
    if isinf(float(number)):
        raise OverflowError


def _refuse_repeats_and_ranges(text: str) -> None:
    try:
        _MEMBERS.decode(text)
    except _RepeatedKey:
        raise _refused(Code.DUPLICATE_JSON_KEY) from None
    except OverflowError:
        detail = "Send numbers that a 64-bit integer or a double can hold."
        raise _refused(Code.MALFORMED_JSON, detail=detail) from None
    except json.JSONDecodeError:
        # Only if msgspec, which took it, and the standard library disagree about JSON: then nobody guesses.
        raise _refused(Code.MALFORMED_JSON) from None


def _schema_refusal(message: str, body: bytes) -> JsonRefused:
    """Return the refusal for one of msgspec's messages, which may quote what the client sent.

    The client's own text stands in the message of an unknown field, and could look like a path. When that
    field is a member of the outermost object, the message names no path at all.
    """
    if message.startswith(_UNKNOWN):
        document = msgspec.json.decode(body)
        at_root = isinstance(document, dict) and message[len(_UNKNOWN) : -1] in document
        return _refused(Code.FIELD_UNKNOWN, pointer="" if at_root else _pointer(message))
    if message.startswith(_MISSING):
        parent = _pointer(message)
        name = message[len(_MISSING) :].partition("`")[0]
        return _refused(Code.FIELD_MISSING, pointer=None if parent is None else f"{parent}/{name}")
    return _refused(Code.FIELD_INVALID, pointer=_pointer(message))


def _pointer(message: str) -> str | None:
    """Turn the path at the end of a message (``$.a[0].b``) into a pointer; a map's key is left out of it."""
    _, found, path = message.rpartition(_AT)
    if not found:
        return ""
    steps = _PATH.match(path)
    return None if steps is None else "".join(f"/{step}" for step in _STEP.findall(steps[1]))


_SYNTAX: Final = msgspec.json.Decoder(msgspec.Raw)
_MEMBERS: Final = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_int=_integer, parse_float=_float)
