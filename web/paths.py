"""Numbers in paths: written in one way, or they name nothing."""

from __future__ import annotations

from typing import Final

from models.rules.codes import Code
from web.problems import Refusal

_LARGEST_ID: Final = 2**53 - 1


def task_id_of(text: str) -> int:
    """Return a task's id.

    Raises:
        Refusal: ``task_not_found``.
    """
    return _number(text, Code.TASK_NOT_FOUND)


def note_id_of(text: str) -> int:
    """Return a note's id.

    Raises:
        Refusal: ``note_not_found``.
    """
    return _number(text, Code.NOTE_NOT_FOUND)


def _number(text: str, code: Code) -> int:
    """Return a decimal without sign or leading zero; no id is written otherwise, or beyond what JSON keeps exactly."""
    if not (text.isascii() and text.isdigit()) or text[0] == "0" or len(text) > len(str(_LARGEST_ID)):
        raise Refusal(code)
    number = int(text)
    if number > _LARGEST_ID:
        raise Refusal(code)
    return number
