"""Appends submissions to their windows and waits for what becomes of them.

Three ways lead to an answer, each enough by itself: the worker's reply message, the outcome row in SQL, and, when
Redis lost the submission, appending it again under the same id. None of them can execute it twice: its outcome row
is unique, so a late or repeated one only answers. Contract 1.1 and 1.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, assert_never
from uuid import UUID

import msgspec
import structlog
from psycopg import Error
from psycopg_pool import PoolTimeout
from redis import OutOfMemoryError, RedisError

from models.rules import ids
from models.rules.codes import Code
from models.rules.intents import Submission
from models.rules.outcomes import Answer
from models.store import reads
from models.window.front import Appended, Front, Verdict
from web.coalesce import Coalescer
from web.problems import Refusal
from web.sql import Sql

LOOK_SECONDS: Final = 1.0
"""How often the process looks up what its waiting submissions have become."""

DOWN_SECONDS: Final = 0.25
log = structlog.get_logger(__name__)


class _Waiter:
    """A submission whose answer someone awaits."""

    __slots__ = ("appended", "future", "lost", "since", "submission")

    def __init__(self, submission: Submission, future: asyncio.Future[tuple[Answer, ...]], since: float) -> None:
        self.submission = submission
        self.future = future
        self.since = since
        self.appended = False
        self.lost = False


class Intake:
    """One per web process; ``run_replies`` and ``run_look`` go on as long as the process serves."""

    def __init__(self, front: Front, sql: Sql, *, web_id: str, wait_ms: int) -> None:
        self.web_id = web_id
        self._front = front
        self._sql = sql
        self._wait_s = wait_ms / 1000
        self._waiting: dict[UUID, _Waiter] = {}
        self._append = Coalescer(self._append_all)
        self._instance: str | None = None
        self._redis_down = False
        self._look_now = asyncio.Event()

    async def submit(self, submission: Submission) -> tuple[Answer, ...]:
        """Append a submission and return the answers to its proposals, once SQL has them committed.

        Raises:
            Refusal: nothing was appended (``window_full``, ``rate_limited``, ``commons_runtime_unavailable``), or the
                outcome is not known in time (``allocation_pending``, which names the proposal).
        """
        self._refuse_when_down()
        loop = asyncio.get_running_loop()
        waiter = _Waiter(submission, loop.create_future(), loop.time())
        self._waiting[submission.id] = waiter
        try:
            async with asyncio.timeout(self._wait_s):
                await self._append_first(waiter)
                return await waiter.future
        except TimeoutError:
            raise pending(submission) from None
        finally:
            del self._waiting[submission.id]

    async def append_only(self, submission: Submission) -> None:
        """Append a submission for whose outcome no one waits here.

        Raises:
            Refusal: it was not appended, or it is not known whether it was.
        """
        self._refuse_when_down()
        try:
            appended = await self._append((submission, False))
        except OutOfMemoryError:
            raise Refusal(Code.COMMONS_RUNTIME_UNAVAILABLE, write_occurred=False) from None
        except RedisError:
            self._lost()
            raise pending(submission) from None
        _refuse_verdict(appended)

    def _refuse_when_down(self) -> None:
        if self._redis_down:
            raise Refusal(Code.COMMONS_RUNTIME_UNAVAILABLE, write_occurred=False)

    async def _append_first(self, waiter: _Waiter) -> None:
        try:
            appended = await self._append((waiter.submission, False))
        except OutOfMemoryError:
            raise Refusal(Code.COMMONS_RUNTIME_UNAVAILABLE, write_occurred=False) from None
        except RedisError:
            # The script may have run before the connection broke. The look appends it again, under its own id, as
            # soon as Redis answers; until then the outcome is open.
            waiter.lost = True
            self._lost()
            return
        _refuse_verdict(appended)
        waiter.appended = True

    async def _append_all(self, items: list[tuple[Submission, bool]]) -> Sequence[Appended]:
        instance, appended = await self._front.append(items)
        if instance != self._instance:
            if self._instance is not None:
                # Redis lost its data, and with it whatever waited there.
                log.warning("redis_instance_changed")
                self._look_now.set()
            self._instance = instance
        return appended

    def _lost(self) -> None:
        self._redis_down = True
        self._look_now.set()

    def _resolve(self, append_id: UUID, answers: tuple[Answer, ...]) -> None:
        waiter = self._waiting.get(append_id)
        if waiter is not None and not waiter.future.done():
            waiter.future.set_result(answers)

    async def run_replies(self) -> None:
        """Hand out reply messages until cancelled."""
        while True:
            try:
                replies = await self._front.replies(self.web_id)
            except RedisError:
                self._lost()
                await asyncio.sleep(DOWN_SECONDS)
                continue
            except msgspec.MsgspecError as error:
                # A message of another version: the look finds the same outcomes in SQL.
                log.warning("reply_unreadable", detail=str(error))
                continue
            for reply in replies:
                self._resolve(reply.append_id, reply.answers)

    async def run_look(self) -> None:
        """Look up, each second and whenever Redis seems to have lost something, what the waiting have become."""
        while True:
            try:
                async with asyncio.timeout(DOWN_SECONDS if self._redis_down else LOOK_SECONDS):
                    await self._look_now.wait()
            except TimeoutError:
                pass
            else:
                # Failures come in crowds: one look a quarter of a second answers them all.
                await asyncio.sleep(DOWN_SECONDS)
                self._look_now.clear()
            await self._look()
            if self._redis_down:
                await self._ping()

    async def _ping(self) -> None:
        try:
            await self._front.ping()
        except RedisError:
            return
        log.info("redis_reachable_again")
        self._redis_down = False
        self._look_now.set()

    async def _look(self) -> None:
        old = asyncio.get_running_loop().time() - LOOK_SECONDS / 2
        # One whose first append is still under way is not among them: it may yet be refused.
        waiters = [
            waiter for waiter in self._waiting.values() if waiter.lost or (waiter.appended and waiter.since < old)
        ]
        if not waiters:
            return
        try:
            async with self._sql.connection() as connection:
                found = await reads.outcomes(connection, [waiter.submission.id for waiter in waiters])
            for append_id, outcomes in found.items():
                self._resolve(append_id, tuple(outcome.answer for outcome in outcomes))
            if self._redis_down:
                return
            undecided = [waiter for waiter in waiters if waiter.submission.id not in found]
            known = await self._front.open_partitions([waiter.submission.id for waiter in undecided])
            missing = [waiter for waiter in undecided if waiter.submission.id not in known]
            # One may have been decided and cleaned up between the two reads: its outcome then answers the repeat.
            await asyncio.gather(*(self._again(waiter) for waiter in missing))
        except RedisError:
            self._lost()
        except (Error, PoolTimeout) as error:
            log.warning("look_failed", kind=type(error).__name__)

    async def _again(self, waiter: _Waiter) -> None:
        if self._waiting.get(waiter.submission.id) is waiter:
            await self._append((waiter.submission, True))
            waiter.appended = True


def pending(submission: Submission) -> Refusal:
    """Return the answer of a submission whose outcome is not known yet."""
    return Refusal(Code.ALLOCATION_PENDING, members={"proposal_id": ids.format_proposal(submission.id)})


def _refuse_verdict(appended: Appended) -> None:
    match appended.verdict:
        case Verdict.APPENDED | Verdict.ALREADY_OPEN:
            return
        case Verdict.PARTITION_FULL:
            raise Refusal(Code.WINDOW_FULL)
        case Verdict.OVER_RATE:
            raise Refusal(Code.RATE_LIMITED, retry_after_s=-(-appended.number // 1000))
        case Verdict.AGENT_FULL:
            raise Refusal(Code.RATE_LIMITED, "Too many of your requests are waiting: let some be answered first.")
        case _ as impossible:
            assert_never(impossible)
