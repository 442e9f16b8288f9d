"""The web process's side of a window: append, await the reply, see what is still open. For one event loop."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final
from uuid import UUID

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from models.rules.intents import Submission
from models.settings import Settings
from models.window import scripts
from models.window.codec import Reply, decode_replies, encode_submission, text_of

REPLY_WAIT_SECONDS: Final = 1
_REPLIES_AT_ONCE: Final = 64


class Verdict(IntEnum):
    """What became of an append."""

    APPENDED = 0
    ALREADY_OPEN = 1
    PARTITION_FULL = 2
    OVER_RATE = 3
    AGENT_FULL = 4


class Appended(msgspec.Struct, frozen=True):
    """The answer to one append: ``number`` is the received_seq, or the milliseconds to wait when over the rate."""

    verdict: Verdict
    number: int


def connect(url: str, *, timeout_ms: int, connections: int) -> Redis:
    """Return a client that waits for a free connection and never repeats a call by itself."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=timeout_ms / 1000,
        socket_timeout=timeout_ms / 1000,
        socket_connect_timeout=timeout_ms / 1000,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


class Front:
    """The web process's scripts. Every method raises RedisError when Redis is out of reach."""

    def __init__(self, client: Redis, settings: Settings, *, instance: str) -> None:
        self._client = client
        self._append = client.register_script(scripts.APPEND)
        self._limits = (
            settings.window_max_open,
            settings.agent_rate_per_second,
            settings.agent_burst,
            settings.agent_max_open,
        )
        self._fresh = instance

    async def append(self, submissions: Sequence[tuple[Submission, bool]]) -> tuple[str, list[Appended]]:
        """Append submissions, each with whether it was appended before; one round trip for all.

        Returns Redis's instance token, which changes when Redis lost its data, and a verdict for each.
        Idempotent: a submission that is open stays as it is.
        """
        arguments: list[str | int | bytes] = [self._fresh, *self._limits]
        for submission, again in submissions:
            arguments += (
                submission.partition,
                submission.id.hex,
                submission.actor,
                len(submission.proposals),
                int(again),
                encode_submission(submission),
            )
        instance, verdicts = await self._append(keys=(), args=arguments)
        return text_of(instance), [Appended(Verdict(verdict), int(number)) for verdict, number in verdicts]

    async def open_partitions(self, submissions: Sequence[UUID]) -> dict[UUID, str]:
        """Return the partition of each submission that waits in a window."""
        if not submissions:
            return {}
        found = await self._client.hmget("dibs:proposals", [one.hex for one in submissions])
        return {one: text_of(partition) for one, partition in zip(submissions, found, strict=True) if partition}

    async def replies(self, web_id: str) -> list[Reply]:
        """Wait up to a second for reply messages of this web process and return all replies in them."""
        key = f"dibs:reply:{web_id}"
        first = await self._client.blpop([key], timeout=REPLY_WAIT_SECONDS)
        if not first:
            return []
        more = await self._client.lpop(key, _REPLIES_AT_ONCE)
        messages = [first[1], *(more if isinstance(more, list) else ())]
        return [reply for message in messages for reply in decode_replies(message)]

    async def eviction_policy(self) -> str:
        """Return what Redis does when it is full; anything but ``noeviction`` would drop waiting intents."""
        return str((await self._client.info("memory")).get("maxmemory_policy"))

    async def ping(self) -> None:
        """Return if Redis answers."""
        await self._client.ping()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()
