"""The board file: a space with its catalog, members, tasks and notes as one JSON document. Contract 8 and 2.2.

Agents stand in it by handle. Reading is strict and complete: a file is either taken whole or refused with a pointer
to its first fault. Several live tasks on one ConflictKey are no fault; the oldest of them holds it (Contract 2.2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from models.rules.charter import (
    CatalogRow,
    CharterFaultCode,
    Provenance,
    validate_catalog,
)
from models.rules.conflict import DeliveryMode, Kind
from models.rules.intents import ValidationPolicy
from models.rules.notes import CRITERION_MAX, NoteStatus
from models.rules.spaces import CLAIM_TTL_SECONDS_MAX, Role, Visibility
from models.rules.tasks import Status
from models.rules.text import TitleFault

IMPORTER: Final = "import"
"""Handle of the agent that counts as the creator of tasks whose file names none."""

HANDLE_RULE: Final = "1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or a digit"
SLUG_RULE: Final = "1 to 63 of a-z, 0-9 and '-', the first a letter or a digit"

# Numbers that every JSON reader keeps exactly.
_NUMBER_MAX: Final = 2**53 - 1
_HANDLE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
_PATH: Final = re.compile(r"(.*) - at `\$((?:\.\w+|\[\d+\])*)`\Z", re.ASCII | re.DOTALL)
_STEP: Final = re.compile(r"\w+", re.ASCII)

TITLE_REASONS: Final[Mapping[TitleFault, str]] = {
    TitleFault.EMPTY: "holds no visible character",
    TitleFault.INVALID: "is longer than 300 characters, or holds control, invisible or unassigned ones",
}
CATALOG_REASONS: Final[Mapping[CharterFaultCode, str]] = {
    CharterFaultCode.ROWS_TOO_MANY: "a catalog has at most 1000 rows",
    CharterFaultCode.ALIASES_TOO_MANY: "a row has at most 64 aliases",
    CharterFaultCode.WORK_ITEM_ID_INVALID: "is not T and decimal digits",
    CharterFaultCode.WORK_ITEM_ID_REPEATED: "stands in an earlier row as well",
    CharterFaultCode.TITLE_EMPTY: TITLE_REASONS[TitleFault.EMPTY],
    CharterFaultCode.TITLE_INVALID: TITLE_REASONS[TitleFault.INVALID],
}

Id = Annotated[int, Meta(ge=1, le=_NUMBER_MAX)]
Moment = Annotated[datetime, Meta(tz=True)]
Share = Annotated[float, Meta(ge=0, le=1)]
T = TypeVar("T")


class BoardError(ValueError):
    """A document that cannot be taken; ``pointer`` (RFC 6901) leads to the fault, empty where it is the whole."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"{pointer}: {reason}" if pointer else reason)
        self.pointer = pointer


class BoardMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member by handle."""

    handle: str
    role: Role


class BoardBind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a task was bound, as it was answered."""

    provenance: Provenance
    slot: str | None = None
    score: Share | None = None
    runner_up: Share | None = None
    charter_revision: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class BoardKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ConflictKey. Space, title, slot and mode make it, so a file can only repeat it."""

    kind: Kind
    target: str
    delivery_mode: DeliveryMode


class BoardTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task; agents by handle, None and absence are the same. The order is that of an exported file."""

    id: Id
    space: str | None = None
    title: str
    body: str = ""
    work_item_id: str | None = None
    bind: BoardBind | None = None
    delivery_mode: DeliveryMode = DeliveryMode.RESULT
    validation_policy: ValidationPolicy = ValidationPolicy.EVIDENCE
    status: Status
    conflict_key: BoardKey | None = None
    created_by: str | None = None
    holder: str | None = None
    assigned_to: str | None = None
    claimed_at: Moment | None = None
    superseded_by: Id | None = None
    held: bool = False
    revision: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1
    received_seq: Annotated[int, Meta(ge=0, le=_NUMBER_MAX)] | None = None
    window_id: UUID | None = None
    created_at: Moment | None = None
    updated_at: Moment | None = None


class BoardNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A note; its author by handle. Its ConflictKey is not here: that names the author by an id of the database."""

    id: Id
    task_id: Id
    kind: Kind = Kind.POST_REVIEW_NOTE
    body: str
    criterion_index: Annotated[int, Meta(ge=0, le=CRITERION_MAX)] | None = None
    status: NoteStatus = NoteStatus.POSTED
    created_by: str | None = None
    received_seq: Annotated[int, Meta(ge=0, le=_NUMBER_MAX)] | None = None
    window_id: UUID | None = None
    created_at: Moment | None = None
    updated_at: Moment | None = None


class Board(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A board file. ``claim_ttl_seconds`` stands in it only where claims end by themselves."""

    space: str
    visibility: Visibility = Visibility.PUBLIC
    claim_ttl_seconds: Annotated[int, Meta(ge=1, le=CLAIM_TTL_SECONDS_MAX)] | msgspec.UnsetType = msgspec.UNSET
    catalog: tuple[CatalogRow, ...] = ()
    members: tuple[BoardMember, ...] = ()
    tasks: tuple[BoardTask, ...] = ()
    notes: tuple[BoardNote, ...] = ()


def is_handle(text: str) -> bool:
    """Tell whether a new agent may be called that (``HANDLE_RULE``)."""
    return _HANDLE.match(text) is not None


def is_slug(text: str) -> bool:
    """Tell whether a new space may be called that (Contract 2.2)."""
    return _SLUG.match(text) is not None


def decode_board(document: bytes) -> Board:
    """Return the board of a file's bytes; what its fields say is looked at by :func:`tasks_of`.

    Raises:
        BoardError: no strict JSON, or another shape.
    """
    board = _decode(document, Board)
    _refuse_repeats(document)
    return board


def encode_board(board: Board) -> bytes:
    """Return a board as its file: equal boards make equal bytes."""
    return msgspec.json.format(msgspec.json.encode(board), indent=2) + b"\n"


def decode_catalog(document: bytes) -> tuple[CatalogRow, ...]:
    """Return the rows of a catalog's file, a JSON list.

    Raises:
        BoardError: no strict JSON, another shape, or a row that a charter may not have.
    """
    rows = _decode(document, tuple[CatalogRow, ...])
    _refuse_repeats(document)
    check_catalog(rows, at="")
    return rows


def check_catalog(rows: Sequence[CatalogRow], *, at: str) -> None:
    """Return if a charter may have these rows; ``at`` is the pointer of their list.

    Raises:
        BoardError: the first fault.
    """
    fault = validate_catalog(rows)
    if fault is not None:
        raise BoardError(at + fault.pointer, CATALOG_REASONS[fault.code])


def _decode(document: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.ValidationError as error:
        found = _PATH.match(str(error))
        if found is None:
            raise BoardError("", str(error)) from None
        raise BoardError("".join(f"/{step}" for step in _STEP.findall(found[2])), found[1]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BoardError("", f"this is no JSON in UTF-8 ({error})") from None
    except RecursionError:
        raise BoardError("", "arrays and objects are nested too deeply") from None


def _refuse_repeats(document: bytes) -> None:
    """Refuse a member that stands twice in one object: msgspec would keep the last and say nothing.

    For documents that were decoded, so their depth and their numbers are known to be harmless here.
    """
    _REPEATS.decode(document.decode())


def _without_repeats(members: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in members:
        if name in names:
            raise BoardError("", f"the member {name!r} stands twice in one object")
        names.add(name)


_REPEATS: Final = json.JSONDecoder(object_pairs_hook=_without_repeats)
