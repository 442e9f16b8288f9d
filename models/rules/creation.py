"""A new task: the first eligible proposal of a ConflictKey wins. Seed 000, section 3."""

from __future__ import annotations

from models.rules import outcomes
from models.rules.desk import Desk
from models.rules.intents import CreateTask
from models.rules.outcomes import Leader
from models.rules.ruling import Bound, Caller, Ruling, key_taken
from models.rules.tasks import BindView, Status, Task


def create(desk: Desk, intent: CreateTask, bound: Bound, caller: Caller) -> Ruling:
    """Put the task on the board unless its key is held, occupied, or was reserved earlier in the window."""
    refusal = key_taken(desk, bound.key, caller)
    if refusal is not None:
        return Ruling(refusal, bound.key)
    task = Task(
        id=desk.next_task_id,
        space=desk.space.slug,
        title=intent.title,
        body=intent.body,
        work_item_id=bound.bind.slot,
        bind=BindView.of(bound.bind),
        delivery_mode=intent.delivery_mode,
        validation_policy=intent.validation_policy,
        status=Status.OPEN,
        conflict_key=bound.key,
        created_by=caller.actor,
        received_seq=caller.received_seq,
        window_id=desk.window_id,
        created_at=desk.now,
        updated_at=desk.now,
    )
    desk.add(task)
    desk.leaders[bound.key] = Leader(proposal_id=caller.proposal_id, task_id=task.id, created_by=task.created_by)
    return Ruling(outcomes.created(task), bound.key)
