"""Fresh identifiers: UUIDv7, ordered by the millisecond they were made in."""

from __future__ import annotations

import secrets
import time
from uuid import UUID


def uuid7() -> UUID:
    """Return a version 7 UUID (RFC 9562): 48 bits of milliseconds, then 74 random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return UUID(int=(value & ~(0xF << 76) & ~(0x3 << 62)) | 0x7 << 76 | 0x2 << 62)
