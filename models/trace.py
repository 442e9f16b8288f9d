"""An exception as it may stand in a log."""

from __future__ import annotations

import traceback
from collections.abc import Iterator


def trace_of(error: BaseException) -> Iterator[str]:
    """Yield an exception's types and places, those of its causes and of a group's members included.

    Messages are left out: a driver's message may quote a row, and with it what a client sent.
    """
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        link = rest.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield f"{type(link).__module__}.{type(link).__qualname__}"
        for frame in traceback.extract_tb(link.__traceback__):
            yield f"  {frame.filename}:{frame.lineno} in {frame.name}"
        rest.append(link.__cause__ or (None if link.__suppress_context__ else link.__context__))
        if isinstance(link, BaseExceptionGroup):
            rest.extend(link.exceptions)
