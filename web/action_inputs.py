"""From the bodies of actions and notes to validated intents. Contract 2.2, 2.3 and 2.5."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from models.rules import evidence
from models.rules.codes import Code
from models.rules.conflict import Kind
from models.rules.intents import (
    AssignTask,
    Decision,
    HoldTask,
    PostNote,
    ReviewTask,
    SubmitTask,
    SupersedeTask,
    UnholdTask,
    WithdrawTask,
)
from models.rules.notes import CRITERION_MAX, NOTE_CHARACTERS_MAX, is_note_body
from models.rules.tasks import BODY_CHARACTERS_MAX, is_body
from models.rules.text import collapse
from web.problems import Refusal

REASON_CHARACTERS_MAX: Final = 1000
CLOSE_REASON_CHARACTERS_MAX: Final = 200
AGENT_CHARACTERS_MAX: Final = 100
TASK_ID_MAX: Final = 2**53 - 1


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an action that needs no more than its path; it may be left out."""


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom to assign a task to, by agent id."""

    assignee: Annotated[str, Meta(min_length=1, max_length=AGENT_CHARACTERS_MAX)]


class Submitted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work that is handed in: https references and a note."""

    evidence: tuple[str, ...] = ()
    note: str = ""


class Review(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A judgement: accept, changes_requested or reject."""

    decision: str
    note: str = ""


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why something is done, in 1 to 1000 characters."""

    reason: str


class Closing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What survives a leftover, and why it is closed. Seed 003."""

    surviving_task: Annotated[int, Meta(ge=1, le=TASK_ID_MAX)]
    reason: str


class NoteInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A note to post; without ``criterion_index`` it is on the whole."""

    kind: str
    body: str
    criterion_index: Annotated[int, Meta(ge=0, le=CRITERION_MAX)] | msgspec.UnsetType = msgspec.UNSET


def assign(task_id: int, given: Assignment) -> AssignTask:
    """Return the intent of an assignment.

    Raises:
        Refusal: ``field_invalid``.
    """
    if "\0" in given.assignee:
        raise Refusal(Code.FIELD_INVALID, pointer="/assignee")
    return AssignTask(task_id=task_id, assignee=given.assignee)


def submit(task_id: int, given: Submitted) -> SubmitTask:
    """Return the intent of handing in.

    Raises:
        Refusal: ``evidence_invalid``, ``body_invalid``.
    """
    fault = evidence.fault_of(given.evidence)
    if fault is not None:
        raise Refusal(Code.EVIDENCE_INVALID, pointer=f"/evidence{fault}")
    return SubmitTask(task_id=task_id, evidence=given.evidence, note=_note(given.note))


def review(task_id: int, given: Review) -> ReviewTask:
    """Return the intent of a review.

    Raises:
        Refusal: ``decision_unknown``, ``body_invalid``.
    """
    try:
        decision = Decision(given.decision)
    except ValueError:
        raise Refusal(Code.DECISION_UNKNOWN, pointer="/decision") from None
    return ReviewTask(task_id=task_id, decision=decision, note=_note(given.note))


def withdraw(task_id: int, given: Reason) -> WithdrawTask:
    """Return the intent of a withdrawal.

    Raises:
        Refusal: ``reason_empty``, ``field_invalid``.
    """
    return WithdrawTask(task_id=task_id, reason=_reason(given.reason))


def hold(task_id: int, given: Reason) -> HoldTask:
    """Return the intent of a hold.

    Raises:
        Refusal: ``reason_empty``, ``field_invalid``.
    """
    return HoldTask(task_id=task_id, reason=_reason(given.reason))


def unhold(task_id: int, given: Reason) -> UnholdTask:
    """Return the intent of ending a hold.

    Raises:
        Refusal: ``reason_empty``, ``field_invalid``.
    """
    return UnholdTask(task_id=task_id, reason=_reason(given.reason))


def supersede(task_id: int, given: Closing) -> SupersedeTask:
    """Return the intent of closing a leftover. A reason that means nothing is denied, and recorded, in the window.

    Raises:
        Refusal: ``field_invalid`` for a reason that cannot be kept.
    """
    if len(given.reason) > CLOSE_REASON_CHARACTERS_MAX or "\0" in given.reason:
        raise Refusal(Code.FIELD_INVALID, pointer="/reason")
    return SupersedeTask(task_id=task_id, surviving_task=given.surviving_task, reason=given.reason)


def post_note(task_id: int, given: NoteInput) -> PostNote:
    """Return the intent of a note.

    Raises:
        Refusal: ``note_kind_unknown``, ``body_invalid``.
    """
    if given.kind != Kind.POST_REVIEW_NOTE:
        raise Refusal(Code.NOTE_KIND_UNKNOWN, pointer="/kind")
    if not is_note_body(given.body):
        raise Refusal(
            Code.BODY_INVALID,
            f"Send a note of 1 to {NOTE_CHARACTERS_MAX} characters, not only white space, without NUL.",
            pointer="/body",
        )
    criterion = None if given.criterion_index is msgspec.UNSET else given.criterion_index
    return PostNote(task_id=task_id, body=given.body, criterion_index=criterion)


def _note(text: str) -> str:
    if not is_body(text):
        raise Refusal(
            Code.BODY_INVALID, f"Send a note of at most {BODY_CHARACTERS_MAX} characters without NUL.", pointer="/note"
        )
    return text


def _reason(text: str) -> str:
    cleaned = collapse(text)
    if not cleaned:
        raise Refusal(Code.REASON_EMPTY, pointer="/reason")
    if len(cleaned) > REASON_CHARACTERS_MAX or "\0" in cleaned:
        raise Refusal(
            Code.FIELD_INVALID,
            f"Send a reason of at most {REASON_CHARACTERS_MAX} characters without NUL.",
            pointer="/reason",
        )
    return cleaned
