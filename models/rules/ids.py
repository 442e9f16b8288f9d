"""Identifiers as values: what a proposal id says about itself. Making fresh ones is the shell's business."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

MAX_BATCH: Final = 100
_SHAPE: Final = re.compile(r"prp_[0-9a-f]{32}\Z")
_VERSION_7: Final = 7
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, the latest that a datetime can be; a UUIDv7 counts further."""


class MalformedIdError(ValueError):
    """A string that is no proposal id."""


def append_id(fresh: UUID) -> UUID:
    """Return the id of an appended submission: a UUIDv7 whose last byte is zero.

    The last byte counts the proposals of a batch, so an item's id leads to its batch without a look-up.
    Sixty-six random bits and a millisecond remain.
    """
    return UUID(int=fresh.int & ~0xFF)


def item_id(append: UUID, position: int, *, batch: bool) -> UUID:
    """Return the id of the proposal at ``position`` (from 0) of a submission; a single one shares its id."""
    return UUID(int=append.int | (position + 1)) if batch else append


def split(proposal: UUID) -> tuple[UUID, int | None]:
    """Return the submission's id and, for a proposal within a batch, its position (from 0)."""
    last = proposal.int & 0xFF
    return append_id(proposal), last - 1 if last else None


def format_proposal(proposal: UUID) -> str:
    """Return ``prp_`` and 32 hexadecimal digits (Contract 1)."""
    return f"prp_{proposal.hex}"


def parse_proposal(text: str) -> UUID:
    """Return the UUID behind ``prp_…``.

    Raises:
        MalformedIdError: another shape, not a version 7 UUID, or a position no batch can have.
    """
    if not _SHAPE.match(text):
        raise MalformedIdError(text)
    found = UUID(hex=text[4:])
    if found.version != _VERSION_7 or (found.int & 0xFF) > MAX_BATCH:
        raise MalformedIdError(text)
    return found


def moment(fresh: UUID) -> datetime:
    """Return when a UUIDv7 was made, to the millisecond, by the clock of the process that made it."""
    return _EPOCH + timedelta(milliseconds=min(fresh.int >> 80, _LAST_MS))
