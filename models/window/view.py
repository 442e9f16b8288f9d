"""What waits in Redis, for people: partitions with work, how much, since when, and who has them. Read only."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from redis import Redis

from models.window.codec import text_of
from models.window.scripts import QUEUE

LIMIT: Final = 1000


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A partition with work. ``window`` is the closed one's id, ``taken`` says that a worker holds the partition."""

    partition: str
    open: int
    window: str | None
    taken: bool
    oldest_age_ms: int


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """All that waits: intents not answered yet, jobs not taken yet, partitions with the oldest first."""

    intents: int
    jobs: int
    partitions: tuple[Waiting, ...]


class RedisView(msgspec.Struct, frozen=True, kw_only=True):
    """What kind of Redis it is. ``time_ms`` is its clock."""

    server: str
    version: str
    policy: str
    persistent: bool
    time_ms: int


def queue(client: Redis) -> QueueView:
    """Return what waits now; pieces may be a moment apart, since nothing is stopped to look.

    Raises:
        RedisError: Redis is out of reach.
    """
    now = _time_ms(client)
    dirty: Any = client.zrange("dibs:dirty", 0, LIMIT - 1, withscores=True)
    found = []
    for name, since in dirty:
        partition = text_of(name)
        open_, window = client.hmget(f"dibs:p:{partition}", "open", "window")
        found.append(
            Waiting(
                partition=partition,
                open=int(open_ or 0),
                window=text_of(window) if window else None,
                taken=bool(client.exists(f"dibs:lease:{partition}")),
                oldest_age_ms=max(0, now - int(since)),
            )
        )
    jobs: Any = client.llen(f"rq:queue:{QUEUE}")
    return QueueView(intents=sum(one.open for one in found), jobs=int(jobs), partitions=tuple(found))


def describe(client: Redis) -> RedisView:
    """Return what Redis says of itself.

    Raises:
        RedisError: Redis is out of reach.
    """
    info: Any = client.info()
    return RedisView(
        server="valkey" if "valkey_version" in info else "redis",
        version=str(info.get("valkey_version") or info["redis_version"]),
        policy=str(info.get("maxmemory_policy")),
        persistent=bool(info.get("aof_enabled")) or bool(info.get("rdb_last_save_time")),
        time_ms=_time_ms(client),
    )


def _time_ms(client: Redis) -> int:
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000
