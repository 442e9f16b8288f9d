"""Closing leftovers: duplicates that stacked up, retired in favour of a surviving task. Seed 003; Contract 2.5."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from models.rules import outcomes
from models.rules.codes import Code
from models.rules.desk import Desk
from models.rules.intents import CloseReason, SupersedeTask
from models.rules.outcomes import Answer
from models.rules.ruling import Caller, not_admitted, not_matched, state_conflict, superseded
from models.rules.spaces import Role
from models.rules.tasks import LIVE, Status, Task

_EVENT: Final = "task_superseded"
_ENDED_WITHOUT_WORK: Final = frozenset({Status.REJECTED, Status.WITHDRAWN})


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a leftover that was closed; ``superseded_by`` is the survivor as it was named. Seed 003."""

    id: int
    status: Literal["superseded"] = "superseded"
    superseded_by: int
    reason: CloseReason
    attributed_to: str
    history_preserved: bool = True
    write_occurred: bool = True
    event: Literal["task_superseded"] = "task_superseded"


def close(desk: Desk, intent: SupersedeTask, caller: Caller) -> Answer:
    """Close a leftover, or deny it; either way the audit has a row of it.

    The order of the questions is the contract's: the leftover, membership, the reason, the survivor, the leftover's
    state, and last whether the two are duplicates.
    """
    task = desk.task(intent.task_id)
    answer = _denied(desk, intent, task, caller)
    if answer is None:
        assert task is not None
        answer = _closed(desk, intent, task, caller)
    desk.audit(
        actor=caller.actor,
        leftover=intent.task_id,
        survivor=intent.surviving_task,
        reason=intent.reason,
        code=answer.code,
        proposal=caller.proposal,
    )
    return answer


def _closed(desk: Desk, intent: SupersedeTask, task: Task, caller: Caller) -> Answer:
    reason = CloseReason(intent.reason)
    desk.change(
        msgspec.structs.replace(task, status=Status.SUPERSEDED, superseded_by=intent.surviving_task),
        event=_EVENT,
        actor=caller.actor,
        reason=reason,
    )
    body = Closed(id=task.id, superseded_by=intent.surviving_task, reason=reason, attributed_to=caller.actor)
    return outcomes.done(body, task_id=task.id)


def _denied(desk: Desk, intent: SupersedeTask, task: Task | None, caller: Caller) -> Answer | None:
    if task is None:
        return caller.refused(Code.TASK_NOT_FOUND)
    return (
        not_admitted(caller)
        or not_matched(task.revision, caller)
        or _reason_denied(intent, caller)
        or _survivor_denied(desk, intent, caller)
        or superseded(desk, task, caller)
        or (None if task.status in LIVE else state_conflict(task, caller))
        or _duplicate_denied(desk, intent, task, caller)
    )


def _reason_denied(intent: SupersedeTask, caller: Caller) -> Answer | None:
    if not intent.reason.strip():
        return caller.refused(Code.REASON_EMPTY, pointer="/reason", task_id=intent.task_id)
    if intent.reason not in set(CloseReason):
        return caller.refused(Code.REASON_UNKNOWN, pointer="/reason", task_id=intent.task_id)
    if intent.reason != CloseReason.ALLOCATION_DUPLICATE and caller.role is not Role.STEWARD:
        return caller.refused(Code.STEWARD_ONLY_REASON, task_id=intent.task_id)
    return None


def _survivor_denied(desk: Desk, intent: SupersedeTask, caller: Caller) -> Answer | None:
    if intent.surviving_task == intent.task_id:
        return caller.refused(Code.SURVIVING_TASK_INVALID, pointer="/surviving_task", task_id=intent.task_id)
    survivor = desk.task(intent.surviving_task)
    if survivor is None:
        return caller.refused(Code.SURVIVING_TASK_NOT_FOUND, pointer="/surviving_task", task_id=intent.task_id)
    if survivor.status is Status.SUPERSEDED:
        # A survivor that is superseded itself is never recorded: that is what keeps the pointers free of cycles.
        return caller.refused(
            Code.SURVIVING_TASK_SUPERSEDED, task_id=intent.task_id, surviving_task=desk.last_survivor(survivor.id)
        )
    if survivor.status in _ENDED_WITHOUT_WORK:
        return caller.refused(
            Code.SURVIVING_TASK_TERMINAL, task_id=intent.task_id, surviving_task_status=survivor.status
        )
    return None


def _duplicate_denied(desk: Desk, intent: SupersedeTask, task: Task, caller: Caller) -> Answer | None:
    """Deny the reason allocation_duplicate for two tasks that are none.

    To everyone but a steward that also means: no one works on the leftover, and it was there before the survivor
    ended. Else a legitimate new task could be pointed at an old finished one.
    """
    if intent.reason != CloseReason.ALLOCATION_DUPLICATE:
        return None
    survivor = desk.task(intent.surviving_task)
    assert survivor is not None
    ended_at = desk.ended_at(survivor.id)
    same_work = task.conflict_key == survivor.conflict_key
    stacked = task.status is Status.OPEN and (ended_at is None or task.created_at <= ended_at)
    if same_work and (stacked or caller.role is Role.STEWARD):
        return None
    return caller.refused(Code.NOT_OCCUPANCY_DUPLICATE, task_id=task.id)
