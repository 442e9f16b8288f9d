"""One partition's windows: take, load, decide, apply, commit, answer.

The order of the steps is the commit protocol of Contract 1.1. What holds at every line: until COMMIT nothing has
happened, and Redis still has the window; after it the outcomes are in SQL, and whoever comes next only answers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final, assert_never
from uuid import UUID

import structlog
from redis import RedisError
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from models.ids import uuid7
from models.rules.charter import CompiledCharter
from models.rules.charter_cache import CharterCache
from models.rules.codes import Code
from models.rules.governance import NewCatalog
from models.rules.intents import Sequenced, slug_of
from models.rules.market import ExchangePart
from models.rules.needs import needs_of, work_needs_of
from models.rules.outcomes import Outcome
from models.rules.snapshot import BoardPart, Snapshot
from models.rules.spaces import Mode
from models.rules.window import decide, parts, refuse_all, takes_authority
from models.store import snapshot as store
from models.store.apply import WindowRow, apply
from models.store.board_part import live_tasks, load_part
from models.store.database import exclude_writers, share_locks
from models.store.exchange import load_exchange
from models.store.partitions import Fence, raise_fence
from models.store.snapshot import FenceLostError
from models.trace import trace_of
from models.window.back import Back, Closed, LeaseLostError
from models.window.codec import UnknownFormatError
from worker.faults import Fault, classify
from worker.leases import LeaseKeeper
from worker.work import Work, replies

TURN_SECONDS: Final = 1.0
"""How long one job stays with a partition that never runs dry, before the others have their turn."""

_ATTEMPTS: Final = 6
_PAUSE_SECONDS: Final = 0.02

log = structlog.get_logger(__name__)


class StaleSequenceError(Exception):
    """The window bears numbers that are already committed: Redis went back and must be renumbered."""


class OutageError(Exception):
    """SQL does not answer as it should; the window stays in Redis as it is."""


class _WindowFailedError(Exception):
    """The window's transaction fails for a reason in the window."""


class _CharterChangedError(Exception):
    """The space has another charter than the window was bound with."""

    def __init__(self, charter: CompiledCharter) -> None:
        super().__init__()
        self.charter = charter


class Processor:
    """Processes windows. ``probe`` is told the name of each step that is reached; tests stop or kill there."""

    def __init__(
        self,
        engine: Engine,
        back: Back,
        courtesy: Back,
        keeper: LeaseKeeper,
        *,
        name: str,
        probe: Callable[[str], None],
        floor: Mode = Mode.ACTIVE,
    ) -> None:
        self._engine = engine
        self._back = back
        self._courtesy = courtesy
        self._keeper = keeper
        self._name = name
        self._probe = probe
        self._floor = floor
        self.windows_in_flight = 0
        self._charters: CharterCache[str] = CharterCache()
        self._renumber: set[str] = set()

    def process(self, partition: str) -> int:
        """Process the partition's windows for up to a turn and return how many were committed.

        Returns 0 at once while another worker holds the lease. Outages end the turn: the sweeper finds the
        partition again within a second.
        """
        token = f"{self._name}:{uuid7().hex}"
        bound = log.bind(partition=partition)
        windows = 0
        wake = False
        try:
            taken = self._back.take(partition, token)
            if taken is None:
                return 0
            with self._keeper.holding(partition, token):
                windows = self._turn(partition, token, epoch=taken.epoch, seq=taken.seq)
            wake = True
        except (FenceLostError, LeaseLostError):
            # Someone thought us dead and went on. Nothing was written, and we leave the partition to them.
            bound.warning("lease_lost")
        except StaleSequenceError:
            self._renumber.add(partition)
            wake = True
            bound.warning("sequence_went_back")
        except UnknownFormatError as error:
            bound.error("window_of_another_version", detail=str(error))
        except (OutageError, RedisError, DBAPIError) as error:
            bound.warning("outage", kind=type(error).__name__)
        finally:
            self._release(partition, token, wake=wake)
        return windows

    def _release(self, partition: str, token: str, *, wake: bool) -> None:
        try:
            self._back.release(partition, token, wake=wake, instance=token)
        except RedisError:
            # The lease ends by itself, and the sweeper finds what is left.
            log.warning("lease_not_released", partition=partition)

    def _turn(self, partition: str, token: str, *, epoch: int, seq: int) -> int:
        with self._engine.connect() as connection, self._keeper.guarding(connection), connection.begin():
            fence = raise_fence(connection, partition, epoch=epoch, seq=seq, force=partition in self._renumber)
        self._renumber.discard(partition)
        if fence is not None and fence.epoch != epoch:
            self._back.renumber(partition, fence.epoch, fence.last_seq)
        self._probe("fenced")
        ends = time.monotonic() + TURN_SECONDS
        windows = 0
        while True:
            closed = self._back.close(partition, token, uuid7())
            if closed is None:
                if fence is not None and fence.claims_due and not windows:
                    # Any window ends what is over; without one it is a window of no intents.
                    self._commit(Work(partition, Closed(uuid7(), (), 0)), fence, (), first_place=0)
                return windows
            self.windows_in_flight = 1
            try:
                self._window(partition, closed, fence)
            finally:
                self.windows_in_flight = 0
            windows += 1
            if time.monotonic() >= ends:
                return windows

    def _window(self, partition: str, closed: Closed, fence: Fence | None) -> None:
        bound = log.bind(partition=partition, window_id=str(closed.id))
        if closed.corrupt:
            bound.error("entries_dropped", count=closed.corrupt)
        started = time.perf_counter()
        job = Work(partition, closed)
        job.bind(self._charters.get(partition))
        wanted = job.reservations()
        held = self._courtesy.reserve(list(wanted))
        job.held = frozenset(wanted[one] for one in held)
        self._probe("reserved")
        self._probe("before_transaction")
        if not closed.entries:
            decided: list[Outcome] = []
        elif fence is None:
            # Nothing is stored: nothing can ever come of an intent for a partition that SQL does not know.
            decided = refuse_all(closed.entries, Code.SPACE_NOT_FOUND)
        else:
            decided = self._decide(job, fence, closed.entries)
        self._probe("after_commit")
        self._back.finish(
            partition,
            closed.id,
            # Those of an earlier run too: it may have died between its reservations and here, and it had another
            # charter in mind or, like this process until just now, none.
            reservations=wanted.keys() | job.reservations().keys(),
            entries=closed.entries,
            replies=replies(closed.entries, decided),
        )
        self._probe("answered")
        bound.info("window", intents=len(decided), ms=round((time.perf_counter() - started) * 1000, 1))

    def _decide(self, job: Work, fence: Fence, entries: Sequence[Sequenced]) -> list[Outcome]:
        """Commit a window, part by part where its intents change the rules for those after them."""
        decided: list[Outcome] = []
        place = 0
        for part in parts(entries):
            self._foresee(job, part)
            decided += self._commit(job, fence, part, first_place=place)
            place += sum(len(entry.submission.proposals) for entry in part)
        return decided

    def _foresee(self, job: Work, part: Sequence[Sequenced]) -> None:
        """Bind a board's titles with a catalog that is to come into force, while nobody waits for a lock."""
        catalogs = [
            bound for entry in part if isinstance(bound := job.bindings.get((entry.submission.id, 0)), NewCatalog)
        ]
        slug = slug_of(job.partition)
        if not catalogs or slug is None:
            return
        with self._engine.connect() as connection, self._keeper.guarding(connection), connection.begin():
            tasks = live_tasks(connection, slug)
        for catalog in catalogs:
            catalog.rebinds(tasks, slug)

    def _commit(self, job: Work, fence: Fence, entries: Sequence[Sequenced], *, first_place: int) -> list[Outcome]:
        """Commit a window; one that fails by something in it is halved, so that only the culprit fails."""
        try:
            return self._attempt(job, fence, entries, first_place=first_place)
        except _WindowFailedError as failure:
            if not entries:
                raise OutageError from failure
            if len(entries) == 1:
                return self._commit_without(job, fence, entries, failure, first_place=first_place)
            half = len(entries) // 2
            second = first_place + sum(len(entry.submission.proposals) for entry in entries[:half])
            return [
                *self._commit(job, fence, entries[:half], first_place=first_place),
                *self._commit(job, fence, entries[half:], first_place=second),
            ]

    def _commit_without(
        self, job: Work, fence: Fence, entries: Sequence[Sequenced], failure: _WindowFailedError, *, first_place: int
    ) -> list[Outcome]:
        """Commit a submission that fails alone, without those of its proposals that fail once more by themselves."""
        (entry,) = entries
        everything = frozenset((entry.submission.id, pos) for pos in range(len(entry.submission.proposals)))
        poison = frozenset(
            one
            for one in everything
            if not self._would_commit(job, fence, entries, first_place=first_place, poison=everything - {one})
        )
        log.error(
            "intents_failed",
            partition=job.partition,
            window_id=str(job.window_id),
            proposals=sorted(f"{append.hex}/{position}" for append, position in poison),
            trace=list(trace_of(failure)),
        )
        for without in (poison, everything):
            try:
                return self._attempt(job, fence, entries, first_place=first_place, poison=without)
            except _WindowFailedError:
                continue
        # Not even the refusals can be written: then it is the database, not the intents.
        raise OutageError from failure

    def _would_commit(
        self,
        job: Work,
        fence: Fence,
        entries: Sequence[Sequenced],
        *,
        first_place: int,
        poison: frozenset[tuple[UUID, int]],
    ) -> bool:
        try:
            self._attempt(job, fence, entries, first_place=first_place, poison=poison, keep=False)
        except _WindowFailedError:
            return False
        return True

    def _attempt(
        self,
        job: Work,
        fence: Fence,
        entries: Sequence[Sequenced],
        *,
        first_place: int,
        poison: frozenset[tuple[UUID, int]] = frozenset(),
        keep: bool = True,
    ) -> list[Outcome]:
        """Run the deciding transaction, again while it meets another one.

        Raises:
            _WindowFailedError: something in the window makes it fail.
            OutageError: the database does.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._transact(job, fence, entries, first_place=first_place, poison=poison, keep=keep)
            except (FenceLostError, StaleSequenceError):
                raise
            except _CharterChangedError as changed:
                self._learn(job.partition, changed.charter)
                job.bind(changed.charter)
            except Exception as error:
                match classify(error):
                    case Fault.OUTAGE:
                        raise OutageError from error
                    case Fault.SPLIT:
                        raise _WindowFailedError from error
                    case Fault.RETRY:
                        time.sleep(random.uniform(0, _PAUSE_SECONDS * 2**attempt))  # noqa: S311 - jitter
                    case impossible:
                        assert_never(impossible)
        raise _WindowFailedError

    def _transact(
        self,
        job: Work,
        fence: Fence,
        entries: Sequence[Sequenced],
        *,
        first_place: int,
        poison: frozenset[tuple[UUID, int]],
        keep: bool,
    ) -> list[Outcome]:
        with (
            self._engine.connect() as connection,
            self._keeper.guarding(connection),
            connection.begin() as transaction,
        ):
            if takes_authority(entries):
                exclude_writers(connection)
            else:
                share_locks(connection)
            head = store.lock_partition(connection, job.partition, fence.fence)
            loaded = store.load(connection, entries, head, slug=slug_of(job.partition), known=job.charter)
            fresh = [entry for entry in entries if entry.submission.id not in loaded.decided]
            if any(entry.received_seq <= head.last_seq for entry in fresh):
                raise StaleSequenceError(job.partition)
            space = loaded.space
            if space is not None and space.charter is not job.charter:
                raise _CharterChangedError(space.charter)
            board, exchange = BoardPart(), ExchangePart()
            if space is not None:
                board = load_part(connection, space, needs_of(fresh, job.bindings), loaded.now)
            else:
                exchange = load_exchange(connection, work_needs_of(fresh))
            snapshot = Snapshot(
                space=space,
                authorities=loaded.authorities,
                decided=loaded.decided,
                remembered=loaded.remembered,
                board=board,
                exchange=exchange,
                slugs=loaded.slugs,
            )
            plan = decide(
                entries,
                job.bindings,
                snapshot,
                now=loaded.now,
                mode=Mode.DRAIN if self._floor is Mode.DRAIN else head.mode,
                window_id=job.window_id,
                first_place=first_place,
                poison=poison,
            )
            self._probe("in_transaction")
            apply(
                connection,
                plan,
                WindowRow(
                    id=job.window_id,
                    partition=job.partition,
                    fence=fence.fence,
                    epoch=head.epoch,
                    first_seq=fresh[0].received_seq if fresh else 0,
                    last_seq=fresh[-1].received_seq if fresh else 0,
                ),
                space_id=space.id if space is not None else None,
                now=loaded.now,
                reserved=job.held,
            )
            self._probe("before_commit")
            if not keep:
                transaction.rollback()
        return [*plan.fresh, *plan.known]

    def _learn(self, partition: str, charter: CompiledCharter) -> None:
        self._charters.put(partition, charter)
