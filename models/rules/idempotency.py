"""What an Idempotency-Key brings again. Contract 2.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, Literal
from uuid import UUID

import msgspec

from models.rules.intents import SlotDigest
from models.rules.outcomes import Answer


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """An Idempotency-Key that was used with success: the body's digest and the answers, by batch position."""

    secret_id: str
    request: bytes
    append_id: UUID
    answers: tuple[Answer, ...]


class AnotherBody(Enum):
    """The key was used for a request with another body."""

    FOUND = "another body"


ANOTHER_BODY: Final = AnotherBody.FOUND


def recall(
    slots: Iterable[SlotDigest], memory: Mapping[bytes, Remembered]
) -> tuple[Answer, ...] | Literal[AnotherBody.FOUND]:
    """Return the answers that a key brings again, none if it brings none, or that its body was another.

    ``slots`` are the key's digests under every secret: whichever secret it was kept under finds it.
    """
    for digest in slots:
        found = memory.get(digest.slot)
        if found is None or found.secret_id != digest.secret_id:
            continue
        if found.request != digest.request:
            return ANOTHER_BODY
        if found.answers:
            return tuple(msgspec.structs.replace(answer, replay_of=found.append_id) for answer in found.answers)
    return ()
