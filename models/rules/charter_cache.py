"""Compiled charters that stay in memory: the latest used, as many as their size allows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from models.rules.charter import CompiledCharter

ROWS: Final = 10_000
"""Rows of all charters that are kept: a catalog of 1000 long rows, 1 MB as a request, takes some 30 MB."""

_OVERHEAD_ROWS: Final = 10

Key = TypeVar("Key", bound=Hashable)


class CharterCache(Generic[Key]):
    """Charters by key. Whoever makes many large catalogs pushes out others' charters, and no memory is lost to it."""

    def __init__(self, rows: int = ROWS) -> None:
        self._rows = rows
        self._held = 0
        self._charters: OrderedDict[Key, CompiledCharter] = OrderedDict()

    def get(self, key: Key) -> CompiledCharter | None:
        """Return a charter that is still held, and hold it for longer."""
        found = self._charters.get(key)
        if found is not None:
            self._charters.move_to_end(key)
        return found

    def put(self, key: Key, charter: CompiledCharter) -> None:
        """Hold a charter in the place of an earlier one with its key."""
        earlier = self._charters.pop(key, None)
        if earlier is not None:
            self._held -= _weight(earlier)
        self._charters[key] = charter
        self._held += _weight(charter)
        while self._held > self._rows and len(self._charters) > 1:
            self._held -= _weight(self._charters.popitem(last=False)[1])


def _weight(charter: CompiledCharter) -> int:
    return len(charter.work_item_ids) + _OVERHEAD_ROWS
