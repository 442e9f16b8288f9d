"""What every kind of intent is decided with and into."""

from __future__ import annotations

from uuid import UUID

import msgspec

from models.rules import ids, outcomes
from models.rules.charter import Bind
from models.rules.codes import Code
from models.rules.conflict import ConflictKey
from models.rules.desk import Desk
from models.rules.outcomes import Answer
from models.rules.spaces import Role
from models.rules.tasks import Status, Task


class Bound(msgspec.Struct, frozen=True):
    """A proposal's binding and the ConflictKey that follows from it."""

    bind: Bind
    key: ConflictKey


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who proposes: the agent, its role here (None: no member), and the proposal itself."""

    actor: str
    role: Role | None
    proposal: UUID
    received_seq: int
    if_match: tuple[int, ...] | None

    @property
    def proposal_id(self) -> str:
        """The proposal's id as answers spell it."""
        return ids.format_proposal(self.proposal)

    def refused(
        self, code: Code, detail: str | None = None, *, task_id: int | None = None, **members: object
    ) -> Answer:
        """Return a refusal that names the proposal."""
        return outcomes.refused(code, detail, task_id=task_id, **members, proposal_id=self.proposal_id)


class Ruling(msgspec.Struct, frozen=True):
    """What became of a proposal, and the ConflictKey it was about."""

    answer: Answer
    key: ConflictKey | None = None


def not_admitted(caller: Caller) -> Answer | None:
    """Return the refusal of a caller who is no member."""
    return None if caller.role is not None else caller.refused(Code.NOT_A_MEMBER)


def not_steward(caller: Caller) -> Answer | None:
    """Return the refusal of a caller who is no steward."""
    if caller.role is None:
        return caller.refused(Code.NOT_A_MEMBER)
    return None if caller.role is Role.STEWARD else caller.refused(Code.STEWARD_REQUIRED)


def not_matched(revision: int, caller: Caller) -> Answer | None:
    """Return the refusal of a change that was meant for another revision."""
    if caller.if_match is None or revision in caller.if_match:
        return None
    return caller.refused(Code.REVISION_MISMATCH, revision=revision)


def superseded(desk: Desk, task: Task, caller: Caller) -> Answer | None:
    """Return the refusal of whatever is asked of a task that another one has replaced. Seed 003."""
    if task.status is not Status.SUPERSEDED:
        return None
    survivor = desk.last_survivor(task.id)
    return caller.refused(
        Code.TASK_SUPERSEDED,
        f"Task {survivor} has taken this one's place: go on with that one.",
        task_id=task.id,
        surviving_task=survivor,
    )


def state_conflict(task: Task, caller: Caller) -> Answer:
    """Return the refusal of a change that the task's state does not allow.

    The member is ``task_status``, since a problem document's ``status`` is the HTTP status (RFC 9457).
    """
    return caller.refused(
        Code.TASK_STATE_CONFLICT,
        f"Task {task.id} is {task.status} now: act on that, or take other work.",
        task_id=task.id,
        task_status=task.status,
        holder=task.holder,
    )


def key_taken(desk: Desk, key: ConflictKey, caller: Caller) -> Answer | None:
    """Return the 409 of a proposal that wants a key which is held or has its task. Seed 000, section 3."""
    holding = desk.held_on(key)
    if holding is not None:
        return outcomes.held(key, holding, actor=caller.actor, proposal_id=caller.proposal_id)
    occupant = desk.occupant(key)
    if occupant is None:
        return None
    leader = desk.leaders.get(key)
    if leader is not None and leader.task_id == occupant.task_id:
        return outcomes.reserved(key, leader, actor=caller.actor, proposal_id=caller.proposal_id)
    return outcomes.occupied(key, occupant, actor=caller.actor, proposal_id=caller.proposal_id)
