"""References to evidence: where it can be found, as an address that anyone can follow. Contract 2.2 and 3."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

REFERENCES_MAX: Final = 16
REFERENCE_CHARACTERS_MAX: Final = 2048

# What RFC 3986 allows in an address, so that nothing is left for a reader to mend.
_CHARACTERS: Final = re.compile(r"https://(?:[A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+\Z")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.\-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])\.?\Z")


def is_reference(text: str) -> bool:
    """Tell whether a text is an absolute https address of up to 2048 characters, without user and fragment."""
    if len(text) > REFERENCE_CHARACTERS_MAX or not _CHARACTERS.match(text):
        return False
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    host = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc
    return "@" not in parts.netloc and _HOST.match(host) is not None


def fault_of(references: tuple[str, ...]) -> str | None:
    """Return the JSON pointer, from the list on, of the first reference that cannot be taken; None for a good list."""
    if len(references) > REFERENCES_MAX:
        return ""
    seen: set[str] = set()
    for number, reference in enumerate(references):
        if reference in seen or not is_reference(reference):
            return f"/{number}"
        seen.add(reference)
    return None
