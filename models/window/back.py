"""The worker's side of a window: lease, close, reserve, finish, and the sweep. Blocking; one client a process."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from models.rules.conflict import ConflictKey
from models.rules.intents import Sequenced
from models.window import scripts
from models.window.codec import CorruptEntryError, Reply, decode_entry, encode_replies, text_of

RESERVE_SECONDS: Final = 0.1
"""Longest wait for reservations: they are a courtesy, and a window does not wait for courtesy."""

SWEEP_LIMIT: Final = 1000


class LeaseLostError(Exception):
    """The partition's lease ran out or is another's: drop the partition, write nothing."""


class Taken(msgspec.Struct, frozen=True):
    """A lease in hand: what Redis believed of the partition when it was taken."""

    epoch: int
    seq: int


class Closed(msgspec.Struct, frozen=True):
    """A closed window: its entries in sequence, and how many were damaged beyond reading."""

    id: UUID
    entries: tuple[Sequenced, ...]
    corrupt: int


class Reservation(msgspec.Struct, frozen=True):
    """A ConflictKey's reservation: digest of space and key, and the owner's token (window id, proposal id)."""

    digest: str
    token: str

    @classmethod
    def of(cls, space: str, key: ConflictKey, window_id: UUID, proposal_id: UUID) -> Reservation:
        """Return the reservation of a proposal; a rerun of the window makes the same token and so owns it."""
        name = f"{space}\0{key.kind}\0{key.target}\0{key.delivery_mode}".encode()
        return cls(hashlib.sha256(name).hexdigest(), f"{window_id.hex}:{proposal_id.hex}")


def connect(url: str, *, timeout_ms: int) -> Redis:
    """Return a client that never repeats a call by itself: a script that was sent may have run."""
    return Redis.from_url(
        url,
        socket_timeout=timeout_ms / 1000,
        socket_connect_timeout=timeout_ms / 1000,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )


class Back:
    """The worker's scripts, over one client. Every method raises RedisError when Redis is out of reach."""

    def __init__(self, client: Redis, *, lease_ms: int, window_ttl_ms: int, window_max: int) -> None:
        self._client = client
        self._lease_ms = lease_ms
        self._window_ttl_ms = window_ttl_ms
        self._window_max = window_max
        self._take = client.register_script(scripts.TAKE)
        self._renew = client.register_script(scripts.RENEW)
        self._renumber = client.register_script(scripts.RENUMBER)
        self._close = client.register_script(scripts.CLOSE)
        self._finish = client.register_script(scripts.FINISH)
        self._release = client.register_script(scripts.RELEASE)
        self._reserve = client.register_script(scripts.RESERVE)
        self._sweep = client.register_script(scripts.SWEEP)
        self._nudge = client.register_script(scripts.NUDGE)

    def take(self, partition: str, token: str) -> Taken | None:
        """Take the partition's lease; None while another holds it."""
        taken, epoch, seq = self._call(self._take, partition, token, self._lease_ms)
        return Taken(int(epoch), int(seq)) if taken else None

    def renew(self, partition: str, token: str) -> bool:
        """Extend the lease; False when it is lost."""
        return bool(self._call(self._renew, partition, token, self._lease_ms))

    def renumber(self, partition: str, epoch: int, floor: int) -> None:
        """Give all that waits numbers above ``floor``, in an epoch that SQL already knows."""
        self._call(self._renumber, partition, epoch, floor)

    def close(self, partition: str, token: str, fresh: UUID) -> Closed | None:
        """Close the open window, or return the one a dead worker left; None when nothing waits.

        Raises:
            LeaseLostError: the lease is not this token's.
            UnknownFormatError: an entry was written by a version this process does not know.
        """
        found, raw = self._call(self._close, partition, token, str(fresh), self._window_max, scripts.WINDOW_BYTES)
        window_id = text_of(found)
        if window_id == "lost":
            raise LeaseLostError(partition)
        if not window_id:
            return None
        entries: list[Sequenced] = []
        corrupt = 0
        for entry in raw:
            try:
                entries.append(decode_entry(entry))
            except CorruptEntryError:
                corrupt += 1
        return Closed(UUID(window_id), tuple(entries), corrupt)

    def reserve(self, wanted: Sequence[Reservation]) -> frozenset[Reservation]:
        """Reserve what is free or already ours; whatever goes wrong means that nothing was reserved.

        A reservation that came later than its own TTL may be gone already and counts as not held.
        """
        if not wanted:
            return frozenset()
        started = time.monotonic()
        try:
            held = self._call(
                self._reserve,
                self._window_ttl_ms,
                *(part for one in wanted for part in (one.digest, one.token)),
            )
        except RedisError:
            return frozenset()
        if (time.monotonic() - started) * 1000 >= self._window_ttl_ms:
            return frozenset()
        return frozenset(one for one, is_held in zip(wanted, held, strict=True) if is_held)

    def finish(
        self,
        partition: str,
        window_id: UUID,
        *,
        reservations: Iterable[Reservation],
        entries: Sequence[Sequenced],
        replies: Mapping[str, list[Reply]],
    ) -> None:
        """Answer the waiting web processes and remove the window with all that belonged to it, in one step."""
        owned = list(reservations)
        arguments: list[Any] = [
            partition,
            str(window_id),
            len(owned),
            len(entries),
            len(replies),
            scripts.REPLY_SECONDS,
        ]
        for one in owned:
            arguments += (one.digest, one.token)
        for entry in entries:
            submission = entry.submission
            arguments += (submission.id.hex, submission.actor, len(submission.proposals))
        for web, several in replies.items():
            arguments += (web, encode_replies(several))
        self._call(self._finish, *arguments)

    def release(self, partition: str, token: str, *, wake: bool, instance: str) -> None:
        """End the lease and, with ``wake``, queue a job when work is left; else the sweeper will."""
        self._call(self._release, partition, token, int(wake), instance)

    def sweep(self, instance: str) -> int:
        """Queue jobs for partitions that were forgotten; returns how many."""
        return int(self._call(self._sweep, SWEEP_LIMIT, instance))

    def nudge(self, partitions: Sequence[str], instance: str) -> int:
        """Queue jobs for partitions in which something is due by itself; returns how many."""
        return int(self._call(self._nudge, instance, *partitions))

    @staticmethod
    def _call(script: Any, *arguments: object) -> Any:  # noqa: ANN401 - redis-py types neither scripts nor answers
        return script(keys=(), args=arguments)
