"""What a note is: something a member says about a task, under a ConflictKey of its own. Seed 000, section 2.2."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from models.rules.conflict import ConflictKey, DeliveryMode, Kind
from models.rules.text import normalize_note_body

NOTE_CHARACTERS_MAX: Final = 8000
CRITERION_MAX: Final = 999


def is_note_body(text: str) -> bool:
    """Tell whether a text may be a note: up to 8000 characters, not only white space, without NUL."""
    return 0 < len(text) <= NOTE_CHARACTERS_MAX and "\0" not in text and bool(normalize_note_body(text))


class NoteStatus(StrEnum):
    """A note's state: it occupies its key while it is posted."""

    POSTED = "posted"
    WITHDRAWN = "withdrawn"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A note as it is stored and answered. ``id`` counts per space from 1; ``created_by`` is its principal."""

    id: int
    space: str
    task_id: int
    kind: Kind = Kind.POST_REVIEW_NOTE
    body: str
    criterion_index: int | None
    delivery_mode: DeliveryMode
    status: NoteStatus
    conflict_key: ConflictKey
    created_by: str
    received_seq: int | None = None
    window_id: str | None = None
    created_at: datetime
    updated_at: datetime
