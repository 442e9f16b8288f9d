"""Steps in the life of a task, as the table of :mod:`models.rules.tasks` allows them. Contract 2.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, assert_never

import msgspec

from models.rules import outcomes
from models.rules.codes import Code
from models.rules.desk import SYSTEM, Desk
from models.rules.intents import (
    AssignTask,
    ClaimTask,
    Decision,
    HoldTask,
    LifeIntent,
    ReleaseTask,
    ReopenTask,
    ReviewTask,
    SubmitTask,
    UnholdTask,
    ValidationPolicy,
    WithdrawTask,
)
from models.rules.outcomes import Answer, Leader
from models.rules.ruling import (
    Caller,
    Ruling,
    key_taken,
    not_matched,
    not_steward,
    state_conflict,
    superseded,
)
from models.rules.spaces import Role
from models.rules.tasks import TRANSITIONS, Status, Task, Transition, Who

_NOBODY: Final[dict[str, Any]] = {"holder": None, "assigned_to": None, "claimed_at": None}


def step(desk: Desk, intent: LifeIntent, caller: Caller) -> Ruling:
    """Take a step, or say why it cannot be taken and who or what stands in its way.

    Asked in this order: is there the task, may the caller act here (and, for what only stewards do, as a steward), is
    it the revision that was meant, is it in a state for this, is it the caller's to do.
    """
    task = desk.task(intent.task_id)
    if task is None:
        return Ruling(caller.refused(Code.TASK_NOT_FOUND))
    rows = TRANSITIONS[type(intent), intent.decision if isinstance(intent, ReviewTask) else None]
    refusal = (
        (not_steward(caller) if rows[0].who is Who.STEWARD else None)
        or not_matched(task.revision, caller)
        or (None if isinstance(intent, HoldTask | UnholdTask) else superseded(desk, task, caller))
    )
    if refusal is not None:
        return Ruling(refusal)
    row = next((row for row in rows if task.status in row.sources), None)
    if row is None:
        return Ruling(_claimed(task, caller) if isinstance(intent, ClaimTask) else state_conflict(task, caller))
    refusal = _not_allowed(row.who, task, caller) or _not_possible(desk, intent, task, caller)
    if refusal is not None:
        return Ruling(refusal, task.conflict_key if isinstance(intent, ReopenTask) else None)
    return _taken(desk, intent, task, row, caller)


def expire(desk: Desk) -> None:
    """End the claims that are older than the space allows. Contract 2.2."""
    for task_id in desk.board.expired:
        task = desk.task(task_id)
        assert task is not None
        desk.change(
            msgspec.structs.replace(task, status=Status.OPEN, **_NOBODY),
            event="claim_expired",
            actor=SYSTEM,
            holder=task.holder,
        )


def _taken(desk: Desk, intent: LifeIntent, task: Task, row: Transition, caller: Caller) -> Ruling:
    changed, told = _effect(desk, intent, caller)
    status = task.status if row.target is None else row.target
    after = desk.change(
        msgspec.structs.replace(task, status=status, **changed), event=row.event, actor=caller.actor, **told
    )
    if isinstance(intent, ReopenTask):
        leader = Leader(proposal_id=caller.proposal_id, task_id=task.id, created_by=task.created_by)
        desk.leaders[task.conflict_key] = leader
        return Ruling(outcomes.done(after, task_id=task.id), task.conflict_key)
    return Ruling(outcomes.done(after, task_id=task.id))


def _effect(  # noqa: PLR0911 - one return for each kind
    desk: Desk, intent: LifeIntent, caller: Caller
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the members that the step changes beside the status, and what its event tells beside them."""
    match intent:
        case ClaimTask():
            return {"holder": caller.actor, "claimed_at": desk.now}, {}
        case AssignTask(assignee=assignee):
            return {"holder": assignee, "assigned_to": assignee, "claimed_at": None}, {}
        case ReleaseTask() | ReopenTask():
            return _NOBODY, {}
        case SubmitTask(evidence=evidence, note=note):
            return {}, {"evidence": evidence, "note": note or None}
        case ReviewTask(decision=decision, note=note):
            # Whoever is asked for changes has the whole life of a claim for them.
            again = decision is Decision.CHANGES_REQUESTED
            return {"claimed_at": desk.now} if again else {}, {"decision": decision, "note": note or None}
        case WithdrawTask(reason=reason):
            return _NOBODY, {"reason": reason}
        case HoldTask(reason=reason):
            return {"held": True}, {"reason": reason}
        case UnholdTask(reason=reason):
            return {"held": False}, {"reason": reason}
        case _:
            assert_never(intent)


def _claimed(task: Task, caller: Caller) -> Answer:
    """Return the 409 of a claim on a task that is not to be claimed; one that is claimed names its holder."""
    if task.status is not Status.CLAIMED:
        return state_conflict(task, caller)
    yours = task.holder == caller.actor
    return caller.refused(
        Code.TASK_ALREADY_CLAIMED,
        "You hold this task already: go on with it." if yours else None,
        task_id=task.id,
        holder=task.holder,
        task_status=task.status,
        yours=yours,
    )


_REFUSALS: Final[Mapping[Who, Code]] = {
    Who.ASSIGNEE: Code.TASK_ASSIGNED,
    Who.HOLDER: Code.HOLDER_REQUIRED,
    Who.HOLDER_OR_STEWARD: Code.HOLDER_REQUIRED,
    Who.CREATOR_OR_STEWARD: Code.CREATOR_REQUIRED,
    Who.NOT_SUBMITTER: Code.INDEPENDENT_REVIEW_REQUIRED,
}


def _not_allowed(who: Who, task: Task, caller: Caller) -> Answer | None:
    """Refuse whoever the task's own persons keep from a step; that stewards are needed was asked before."""
    steward = caller.role is Role.STEWARD
    holder = task.holder == caller.actor
    allowed = {
        Who.MEMBER: True,
        Who.STEWARD: steward,
        Who.ASSIGNEE: task.assigned_to == caller.actor,
        Who.HOLDER: holder,
        Who.HOLDER_OR_STEWARD: holder or steward,
        Who.CREATOR_OR_STEWARD: task.created_by == caller.actor or steward,
        Who.NOT_SUBMITTER: not holder,
    }
    if allowed[who]:
        return None
    return caller.refused(
        _REFUSALS[who],
        task_id=task.id,
        task_status=task.status,
        holder=task.holder,
        assigned_to=task.assigned_to,
        created_by=task.created_by,
    )


def _not_possible(desk: Desk, intent: LifeIntent, task: Task, caller: Caller) -> Answer | None:
    match intent:
        case AssignTask(assignee=assignee):
            found = desk.board.agents.get(assignee)
            if found is None or not found.active or found.role is None:
                return caller.refused(Code.ASSIGNEE_NOT_A_MEMBER, pointer="/assignee", task_id=task.id)
        case SubmitTask(evidence=()) if task.validation_policy is ValidationPolicy.EVIDENCE:
            return caller.refused(Code.EVIDENCE_REQUIRED, pointer="/evidence", task_id=task.id)
        case ReopenTask():
            return key_taken(desk, task.conflict_key, caller)
        case HoldTask() | UnholdTask() if task.held is isinstance(intent, HoldTask):
            detail = f"Task {task.id} is {'held already' if task.held else 'not held'}: nothing is left to do."
            return caller.refused(
                Code.TASK_STATE_CONFLICT, detail, task_id=task.id, task_status=task.status, held=task.held
            )
        case _:
            return None
    return None
