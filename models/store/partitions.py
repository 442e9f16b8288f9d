"""A partition's fence and epoch: who may commit its windows, and which numbers are spent. Contract, section 1.1."""

from __future__ import annotations

from typing import Final

import msgspec
from sqlalchemy import Connection, text

from models.rules.intents import partition_of, slug_of


class Fence(msgspec.Struct, frozen=True):
    """A fence just raised: only transactions that bear it commit from now on.

    ``claims_due`` says that claims of its space are over, which a window of its own ends if no other comes.
    """

    fence: int
    epoch: int
    last_seq: int
    claims_due: bool


# Drain ends no claims: what it keeps an agent from finishing does not run out.
_DUE: Final = (
    "EXISTS (SELECT FROM tasks t, work_mode m WHERE t.space_id = s.id AND t.status = 'claimed' AND m.mode = 'active' "
    "AND t.claimed_at <= dibs_now() - make_interval(secs => s.claim_ttl_seconds))"
)
_RAISE = text(f"""
UPDATE partitions SET fence = fence + 1,
  epoch = epoch + CASE WHEN :force OR epoch <> :epoch OR last_seq > :seq THEN 1 ELSE 0 END
WHERE name = :partition RETURNING fence, epoch, last_seq,
  (SELECT {_DUE} FROM spaces s WHERE s.slug = :slug AND s.claim_ttl_seconds IS NOT NULL) AS claims_due
""")  # noqa: S608 - the only interpolation is a constant
_WITH_CLAIMS_DUE = text(
    f"SELECT s.slug FROM spaces s WHERE s.claim_ttl_seconds IS NOT NULL AND {_DUE} ORDER BY s.id LIMIT 1000"  # noqa: S608 - a constant
)


def raise_fence(connection: Connection, partition: str, *, epoch: int, seq: int, force: bool) -> Fence | None:
    """Raise the fence and, if Redis lost numbers or ``force`` is set, begin a new epoch; None: no such partition.

    ``epoch`` and ``seq`` are what Redis believes. An epoch above Redis's means that waiting entries must be
    renumbered; SQL comes first, so a crash in between is seen and mended by the next to take the partition.
    """
    row = connection.execute(
        _RAISE, {"partition": partition, "slug": slug_of(partition), "epoch": epoch, "seq": seq, "force": force}
    ).one_or_none()
    return None if row is None else Fence(row.fence, row.epoch, row.last_seq, bool(row.claims_due))


def with_claims_due(connection: Connection) -> list[str]:
    """Return partitions whose spaces have claims that are over."""
    return [partition_of(slug) for slug in connection.execute(_WITH_CLAIMS_DUE).scalars()]
