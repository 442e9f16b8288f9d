"""What a race of agents for the slots of an empty board must come to. Pure: answers and stored rows in, faults out.

Seed 000, sections 4 and 6; Contract 1.2 and 2.4.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import ceil
from typing import Final

import msgspec

from models.rules.codes import Code
from models.rules.conflict import ConflictKey
from models.rules.tasks import LIVE, Status

LOSING: Final = frozenset({Code.CONFLICT_KEY_OCCUPIED, Code.CONFLICT_KEY_RESERVED})
_CREATED: Final = 201
_CONFLICT: Final = 409
_OK: Final = 200
_SERVER_ERROR: Final = 500


class Fate(StrEnum):
    """What became of one agent's POST."""

    WON = "won"
    LOST = "lost"
    ERROR = "error"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One agent's POST and what it was told.

    ``due`` is the ConflictKey that its title has by the rules, ``key`` the one that the answer named. ``status`` is
    None when no answer came. ``what`` is the problem code of a refusal, or says in words what went wrong. ``task_id``
    is the agent's own task when it won and the winner's when it lost; ``proposal_id`` is the winner's proposal, which
    only ``conflict_key_reserved`` names.
    """

    agent: str
    due: ConflictKey
    fate: Fate
    latency_ms: float
    status: int | None = None
    what: str | None = None
    key: ConflictKey | None = None
    task_id: int | None = None
    proposal_id: str | None = None
    write_occurred: bool | None = None

    @property
    def uncertain(self) -> bool:
        """Whether a task may have been made although no 201 was read."""
        return self.fate is Fate.ERROR and (self.status is None or self.status >= _SERVER_ERROR)


class Pointed(msgspec.Struct, frozen=True, kw_only=True):
    """What a winner that losers were sent to answered; ``status`` is None when it did not."""

    status: int | None
    key: ConflictKey | None = None
    task_id: int | None = None


class StoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task as SQL has it."""

    id: int
    key: ConflictKey
    status: Status


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A space as SQL has it after its race: occupancy is (key, task id), events are numbers in ascending order."""

    tasks: tuple[StoredTask, ...]
    occupancies: tuple[tuple[ConflictKey, int], ...]
    events: tuple[int, ...]


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One race on one fresh space. ``pointed`` is by path; ``seconds`` is from the first byte to the last answer."""

    number: int
    slug: str
    seconds: float
    attempts: tuple[Attempt, ...]
    pointed: Mapping[str, Pointed]
    stored: Stored


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in milliseconds by nearest rank: each figure is a measured one."""

    p50: float
    p95: float
    p99: float
    max: float


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of answer: how often it came, and how long it took. No spread where no answer came."""

    count: int
    latency_ms: Spread | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole race came to; this is also the document that ``--json`` prints."""

    passed: bool
    verdict: str
    faults: tuple[str, ...]
    rounds: int
    requests: int
    seconds: float
    requests_per_second: float
    winners: Tally
    losers: Tally
    losers_by_code: Mapping[str, Tally]
    errors: int
    errors_by_kind: Mapping[str, int]
    latency_ms: Spread | None


class _Made(msgspec.Struct, frozen=True):
    id: int
    conflict_key: ConflictKey


class _Winner(msgspec.Struct, frozen=True):
    id: int | str | None = None
    task_id: int | None = None


class _Refused(msgspec.Struct, frozen=True):
    code: str | None = None
    conflict_key: ConflictKey | None = None
    winner: _Winner | None = None
    reserved_proposal_id: str | None = None
    write_occurred: bool | None = None


class _Shown(msgspec.Struct, frozen=True):
    conflict_key: ConflictKey
    id: int | None = None
    task_id: int | None = None


def judge(
    agent: str, due: ConflictKey, *, latency_ms: float, status: int | None, body: bytes, fault: str | None = None
) -> Attempt:
    """Return what an answer to a POST means; ``fault`` says why there is none (``status`` None)."""
    error = Attempt(agent=agent, due=due, fate=Fate.ERROR, latency_ms=latency_ms, status=status, what=fault)
    if status is None:
        return error
    try:
        if status == _CREATED:
            made = msgspec.json.decode(body, type=_Made)
            return msgspec.structs.replace(error, fate=Fate.WON, key=made.conflict_key, task_id=made.id)
        refused = msgspec.json.decode(body, type=_Refused)
    except msgspec.MsgspecError:
        return msgspec.structs.replace(error, what=f"{status} with a body that was not understood")
    if status != _CONFLICT or refused.code not in LOSING:
        return msgspec.structs.replace(error, what=f"{status} {refused.code or 'without a code'}")
    winner = refused.winner or _Winner()
    return msgspec.structs.replace(
        error,
        fate=Fate.LOST,
        what=refused.code,
        key=refused.conflict_key,
        task_id=winner.id
        if refused.code == Code.CONFLICT_KEY_OCCUPIED and isinstance(winner.id, int)
        else winner.task_id,
        proposal_id=refused.reserved_proposal_id,
        write_occurred=refused.write_occurred,
    )


def look(status: int | None, body: bytes) -> Pointed:
    """Return what the answer to a GET of a winner says, of a task or of a proposal."""
    try:
        shown = msgspec.json.decode(body, type=_Shown)
    except msgspec.MsgspecError:
        return Pointed(status=status)
    return Pointed(status=status, key=shown.conflict_key, task_id=shown.id if shown.task_id is None else shown.task_id)


def pointers(attempt: Attempt, slug: str) -> tuple[str, ...]:
    """Return the paths under which a loser finds its winner; fewer than it was due if it was not told."""
    if attempt.fate is not Fate.LOST:
        return ()
    task = () if attempt.task_id is None else (f"/v0/spaces/{slug}/tasks/{attempt.task_id}",)
    return task if attempt.proposal_id is None else (*task, f"/v0/proposals/{attempt.proposal_id}")


def find_faults(played: Round) -> tuple[str, ...]:
    """Return what is wrong with a round, each fault once; nothing is wrong when it is empty."""
    found = [*_error_faults(played), *_answer_faults(played), *_pointer_faults(played), *_stored_faults(played)]
    return tuple(f"round {played.number}: {fault}" for fault in dict.fromkeys(found))


def percentile(ascending: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least ``percent`` of 100 values do not exceed (nearest rank)."""
    return ascending[max(0, ceil(len(ascending) * percent / 100) - 1)]


def report(rounds: Sequence[Round]) -> Report:
    """Return what the rounds came to."""
    attempts = [attempt for played in rounds for attempt in played.attempts]
    seconds = sum(played.seconds for played in rounds)
    by_round = [find_faults(played) for played in rounds]
    faults = tuple(fault for found in by_round for fault in found)
    lost = [attempt for attempt in attempts if attempt.fate is Fate.LOST]
    errors = Counter(attempt.what or "no answer" for attempt in attempts if attempt.fate is Fate.ERROR)
    return Report(
        passed=bool(rounds) and not faults,
        verdict=_verdict(by_round),
        faults=faults,
        rounds=len(rounds),
        requests=len(attempts),
        seconds=round(seconds, 3),
        requests_per_second=round(len(attempts) / seconds, 1) if seconds else 0.0,
        winners=_tally(attempt for attempt in attempts if attempt.fate is Fate.WON),
        losers=_tally(lost),
        losers_by_code={code: _tally(one for one in lost if one.what == code) for code in sorted(LOSING)},
        errors=errors.total(),
        errors_by_kind=dict(errors.most_common()),
        latency_ms=_tally(attempts).latency_ms,
    )


def _verdict(by_round: Sequence[Sequence[str]]) -> str:
    failed = [found for found in by_round if found]
    if not by_round:
        return "no round was played"
    if not failed:
        return "one winner per slot in " + ("the round" if len(by_round) == 1 else f"all {len(by_round)} rounds")
    more = sum(map(len, failed)) - 1
    return f"FAILED in {len(failed)} of {len(by_round)} rounds: {failed[0][0]}" + (
        f" (and {more} more)" if more else ""
    )


def _tally(attempts: Iterable[Attempt]) -> Tally:
    counted = list(attempts)
    ascending = sorted(attempt.latency_ms for attempt in counted if attempt.status is not None)
    return Tally(count=len(counted), latency_ms=_spread(ascending) if ascending else None)


def _spread(ascending: Sequence[float]) -> Spread:
    p50, p95, p99 = (round(percentile(ascending, percent), 2) for percent in (50, 95, 99))
    return Spread(p50=p50, p95=p95, p99=p99, max=round(ascending[-1], 2))


def _error_faults(played: Round) -> Iterable[str]:
    errors = Counter(attempt.what or "no answer" for attempt in played.attempts if attempt.fate is Fate.ERROR)
    for what, count in errors.most_common():
        yield f"{count} of {len(played.attempts)} requests ended as: {what}"


def _answer_faults(played: Round) -> Iterable[str]:
    won: dict[ConflictKey, list[int | None]] = defaultdict(list)
    lost: dict[ConflictKey, int] = defaultdict(int)
    for attempt in played.attempts:
        if attempt.fate is Fate.WON and attempt.key is not None:
            won[attempt.key].append(attempt.task_id)
        elif attempt.fate is Fate.LOST:
            if attempt.key is None:
                yield f"{attempt.agent} lost and was not told which ConflictKey it lost"
            else:
                lost[attempt.key] += 1
            if attempt.write_occurred is not False:
                yield f"{attempt.agent} lost and was not told that nothing was written"
        if attempt.key is not None and attempt.key != attempt.due:
            yield f"{_slot(attempt.key, played.slug)} was answered to a title of {_slot(attempt.due, played.slug)}"
    for key, tasks in won.items():
        if len(tasks) > 1:
            yield f"{_slot(key, played.slug)} got {len(tasks)} winners: {_tasks(tasks)}"
    # A winner whose answer was lost on the way counts as an error already.
    if not any(attempt.uncertain for attempt in played.attempts):
        for key, count in lost.items():
            if key not in won:
                yield f"{_slot(key, played.slug)} has {count} losers and no winner"


def _pointer_faults(played: Round) -> Iterable[str]:
    for attempt in played.attempts:
        if attempt.fate is not Fate.LOST:
            continue
        slot = "its work" if attempt.key is None else _slot(attempt.key, played.slug)
        if attempt.task_id is None:
            yield f"{attempt.agent} lost {slot} and was not told to which task"
        if attempt.what == Code.CONFLICT_KEY_RESERVED and attempt.proposal_id is None:
            yield f"{attempt.agent} lost {slot} and was not told to which proposal"
        for path in pointers(attempt, played.slug):
            yield from _pointer_fault(path, played.pointed.get(path, Pointed(status=None)), attempt, slot)


def _pointer_fault(path: str, pointed: Pointed, attempt: Attempt, slot: str) -> Iterable[str]:
    if pointed.status != _OK:
        said = "did not answer" if pointed.status is None else f"answered {pointed.status}"
        yield f"{path}, which won {slot}, {said}"
    elif pointed.key is None or pointed.key != attempt.key:
        yield f"{path}, which is said to have won {slot}, has another ConflictKey"
    elif pointed.task_id != attempt.task_id:
        yield f"{path}, which won {slot}, leads to task {pointed.task_id} and its losers to task {attempt.task_id}"


def _stored_faults(played: Round) -> Iterable[str]:
    stored = played.stored
    won = {one.task_id: one.key for one in played.attempts if one.fate is Fate.WON and one.task_id is not None}
    answers = sum(attempt.fate is Fate.WON for attempt in played.attempts)
    seen = {attempt.key for attempt in played.attempts if attempt.key is not None}
    keys = {task.id: task.key for task in stored.tasks}
    for task_id, key in won.items():
        if keys.get(task_id) != key:
            yield f"task {task_id} was answered with 201 and SQL has it " + (
                "with another ConflictKey" if task_id in keys else "not"
            )
    live: dict[ConflictKey, list[int]] = defaultdict(list)
    for task in stored.tasks:
        if task.status in LIVE:
            live[task.key].append(task.id)
    for key in sorted(live.keys() | seen):
        if len(live[key]) != 1:
            yield f"SQL has {len(live[key])} live tasks for {_slot(key, played.slug)}, not one"
    uncertain = any(attempt.uncertain for attempt in played.attempts)
    if not uncertain and not len(stored.tasks) == answers == len(seen):
        yield f"{len(stored.tasks)} tasks in SQL, {answers} answers of 201 and {len(seen)} ConflictKeys are not as many"
    held = {(key, task_id) for key, ids in live.items() for task_id in ids}
    if held != set(stored.occupancies):
        yield f"{len(stored.occupancies)} occupancy rows in SQL do not match its {len(held)} live tasks"
    if stored.events != tuple(range(1, len(stored.events) + 1)):
        yield f"events are not numbered from 1 without a gap: {', '.join(map(str, stored.events[:10]))} …"
    if len(stored.events) != len(stored.tasks):
        yield f"{len(stored.events)} events in SQL for {len(stored.tasks)} tasks"


def _slot(key: ConflictKey, slug: str) -> str:
    return key.target.removeprefix(f"task:{slug}:")


def _tasks(ids: Iterable[int | None]) -> str:
    return " and ".join(f"task {task_id}" for task_id in ids)
