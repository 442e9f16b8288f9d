"""Posting and withdrawing review notes. Seed 000, section 2.2; Contract 2.3."""

from __future__ import annotations

from models.rules import outcomes
from models.rules.codes import Code
from models.rules.conflict import note_key
from models.rules.desk import Desk
from models.rules.intents import PostNote, WithdrawNote
from models.rules.notes import NoteStatus
from models.rules.outcomes import Answer, Leader
from models.rules.ruling import Caller, Ruling, superseded
from models.rules.spaces import Role


def post(desk: Desk, intent: PostNote, caller: Caller) -> Ruling:
    """Post a note unless its author has said the same of the same criterion already."""
    task = desk.task(intent.task_id)
    if task is None:
        return Ruling(caller.refused(Code.TASK_NOT_FOUND))
    refusal = superseded(desk, task, caller)
    if refusal is not None:
        return Ruling(refusal)
    key = note_key(
        space_slug=desk.space.slug,
        task_id=task.id,
        criterion_index=intent.criterion_index,
        principal=caller.actor,
        body=intent.body,
        delivery_mode=task.delivery_mode,
    )
    taken = desk.note_on(key)
    if taken is not None:
        leader = desk.leaders.get(key)
        if leader is not None and leader.note_id == taken:
            answer = outcomes.reserved(key, leader, actor=caller.actor, proposal_id=caller.proposal_id)
        else:
            answer = outcomes.noted(key, taken, task_id=task.id, author=caller.actor, proposal_id=caller.proposal_id)
        return Ruling(answer, key)
    note = desk.post(
        intent.body,
        task,
        key=key,
        criterion_index=intent.criterion_index,
        author=caller.actor,
        seq=caller.received_seq,
    )
    desk.leaders[key] = Leader(
        proposal_id=caller.proposal_id, task_id=task.id, created_by=caller.actor, note_id=note.id
    )
    return Ruling(Answer(status=201, body=outcomes.encode(note), task_id=task.id), key)


def withdraw(desk: Desk, intent: WithdrawNote, caller: Caller) -> Ruling:
    """Withdraw a note: its key is free again."""
    note = desk.note(intent.note_id)
    if note is None or intent.task_id not in (None, note.task_id):
        return Ruling(caller.refused(Code.NOTE_NOT_FOUND))
    refusal = None
    if note.created_by != caller.actor and caller.role is not Role.STEWARD:
        refusal = caller.refused(Code.AUTHOR_REQUIRED, task_id=note.task_id)
    if refusal is None and note.status is NoteStatus.WITHDRAWN:
        refusal = caller.refused(Code.NOTE_STATE_CONFLICT, task_id=note.task_id, note_status=note.status)
    if refusal is not None:
        return Ruling(refusal)
    after = desk.withdraw_note(note, actor=caller.actor)
    return Ruling(outcomes.done(after, task_id=note.task_id), note.conflict_key)
