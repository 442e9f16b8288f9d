"""Canonical JSON and the digests made of it (Contract 1, ``payload_sha256``).

These bytes are stored and compared for years: what they are for a given value must never change.
"""

import hashlib
import hmac
import json
from typing import Final

# The standard library's encoder sorts member names as Python sorts strings, by code point. UTF-16
# order, which RFC 8785 asks for, would put U+1F600 before U+FB33.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))

_LENGTH_BYTES: Final = 8


def canonical_json(value: object) -> bytes:
    """Encode str, int, bool, None, lists, tuples and dicts with str keys as compact UTF-8.

    Members come in code point order of their names; nothing is escaped that JSON does not force.
    Raises TypeError for any other type, floats included (they have no single spelling), ValueError for
    a lone surrogate or a cycle, RecursionError for nesting of some thousand levels.
    """
    text = _ENCODER.encode(value)
    # After the encoder, which stops at a cycle: this walk would not.
    _refuse_other_types(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        # That exception carries the whole text; logs must not.
        raise ValueError("a string holds a lone surrogate, which UTF-8 cannot encode") from None


def _refuse_other_types(value: object) -> None:
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            # The encoder would turn 1, True and None into the names "1", "true" and "null".
            if not all(isinstance(name, str) for name in node):
                raise TypeError("a member name of canonical JSON is a str")
            waiting.extend(node.values())
        elif isinstance(node, list | tuple):
            waiting.extend(node)
        elif node is not None and not isinstance(node, str | int):
            raise TypeError(f"canonical JSON holds no {type(node).__name__}")


def sha256_hex(data: bytes) -> str:
    """64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def payload_sha256(value: object) -> str:
    """Digest the canonical JSON of a value: 64 lower-case hexadecimal digits. Raises what that raises."""
    return sha256_hex(canonical_json(value))


def keyed_digest(secret: bytes, purpose: str, *parts: bytes | str) -> bytes:
    """Make a 32-byte HMAC-SHA256 over a purpose and a list of parts.

    Each element is preceded by its length (8 bytes, big-endian), so that no two lists make the same
    message, and a digest made for one purpose is worth nothing for another. A str counts as its
    UTF-8 bytes. Raises ValueError for an empty secret or a lone surrogate.
    """
    if not secret:
        raise ValueError("a keyed digest needs a secret")
    message = bytearray()
    for part in (purpose, *parts):
        data = part.encode() if isinstance(part, str) else part
        message += len(data).to_bytes(_LENGTH_BYTES, "big")
        message += data
    return hmac.digest(secret, message, "sha256")
