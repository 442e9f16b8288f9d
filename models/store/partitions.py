"""A partition's fence and epoch: who may commit its windows, and which numbers are spent. Contract, section 1.1."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, text


class Fence(msgspec.Struct, frozen=True):
    """A fence just raised: only transactions that bear it commit from now on."""

    fence: int
    epoch: int
    last_seq: int


_RAISE = text(
    "UPDATE partitions SET fence = fence + 1, epoch = epoch + CASE WHEN :force OR epoch <> :epoch OR "
    "last_seq > :seq THEN 1 ELSE 0 END WHERE name = :partition RETURNING fence, epoch, last_seq"
)


def raise_fence(connection: Connection, partition: str, *, epoch: int, seq: int, force: bool) -> Fence | None:
    """Raise the fence and, if Redis lost numbers or ``force`` is set, begin a new epoch; None: no such partition.

    ``epoch`` and ``seq`` are what Redis believes. An epoch above Redis's means that waiting entries must be
    renumbered; SQL comes first, so a crash in between is seen and mended by the next to take the partition.
    """
    row = connection.execute(_RAISE, {"partition": partition, "epoch": epoch, "seq": seq, "force": force}).one_or_none()
    return None if row is None else Fence(row.fence, row.epoch, row.last_seq)
