"""How submissions and replies travel through Redis: a format byte, then MessagePack."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from models.rules.intents import Sequenced, Submission
from models.rules.outcomes import Answer

FORMAT: Final = b"\x02"
"""First byte of an encoded submission; raised when kinds or fields change so that an older worker must not guess."""

_READ: Final = frozenset({b"\x01", FORMAT})
"""Formats that this version reads: the first had fewer kinds and fields, all of which are here unchanged."""


class UnknownFormatError(ValueError):
    """An entry of another version: its window is left for a process that knows it."""


class CorruptEntryError(ValueError):
    """Bytes that no version wrote: nothing can be made of them."""


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The answers of one submission, by batch position."""

    append_id: UUID
    answers: tuple[Answer, ...]


_submission: Final = msgspec.msgpack.Decoder(Submission)
_replies: Final = msgspec.msgpack.Decoder(tuple[Reply, ...])
_encoder: Final = msgspec.msgpack.Encoder()


def encode_submission(submission: Submission) -> bytes:
    """Return a submission as bytes."""
    return FORMAT + _encoder.encode(submission)


def decode_entry(entry: bytes) -> Sequenced:
    """Return the submission of an entry ``<received_seq> <intents> <format byte and submission>``.

    Raises:
        UnknownFormatError: the format is another version's.
        CorruptEntryError: the entry is damaged.
    """
    try:
        seq, _, payload = entry.split(b" ", 2)
        number = int(seq)
    except ValueError as error:
        raise CorruptEntryError("an entry without its number") from error
    if payload[:1] not in _READ:
        raise UnknownFormatError(f"an entry has format {payload[:1]!r}, this process knows {FORMAT!r}")
    try:
        return Sequenced(number, _submission.decode(payload[1:]))
    except msgspec.MsgspecError as error:
        raise CorruptEntryError("an entry that cannot be decoded") from error


def encode_replies(replies: list[Reply]) -> bytes:
    """Return the message of one window to one web process."""
    return _encoder.encode(replies)


def decode_replies(message: bytes) -> tuple[Reply, ...]:
    """Return the replies of a message."""
    return _replies.decode(message)


def text_of(value: bytes | str) -> str:
    """Return a Redis answer as text."""
    return value.decode() if isinstance(value, bytes) else value
