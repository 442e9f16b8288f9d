"""Refusals of the work exchange in its own shape: a code, whether something was written, and no value of the request.

Contract 3; RFC 9457.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from models.rules.codes import ADVICE, OUTCOME_UNKNOWN, STATUS, TITLE, Code
from models.rules.outcomes import PROBLEM_TYPE, encode
from web.problems import Problem

PREFIX: Final = "/api/matm/commons"

_OWN_NAMES: Final[Mapping[Code, Code]] = {Code.ROUTE_UNKNOWN: Code.WORK_ROUTE_UNKNOWN}
"""What another part of the service says, in the exchange's words."""


def work_document(found: Problem) -> bytes:
    """Return the error document of the exchange."""
    code = _OWN_NAMES.get(found.code, found.code)
    unset = found.write_occurred is msgspec.UNSET
    written = (None if code in OUTCOME_UNKNOWN else False) if unset else found.write_occurred
    error: dict[str, Any] = {"code": code.value, "valuesRedacted": True, "writeOccurred": written}
    document: dict[str, Any] = {
        "error": error,
        "type": PROBLEM_TYPE + code.value,
        "title": TITLE[code],
        "status": found.members.get("status", STATUS[code]),
        "detail": ADVICE[code] if found.detail is None else found.detail,
    }
    if found.pointer is not None:
        document["pointer"] = found.pointer
    document |= {name: value for name, value in found.members.items() if name != "status"}
    return encode(document).encode()
