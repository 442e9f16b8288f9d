"""What of a board a window needs to see: worked out of its intents before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from models.rules.conflict import ConflictKey, DeliveryMode, note_key
from models.rules.intents import (
    AssignTask,
    CreateSpace,
    CreateTask,
    PostNote,
    RemoveMember,
    Sequenced,
    SetCharter,
    SetMember,
    SupersedeTask,
    WithdrawNote,
)
from models.rules.ruling import Bound
from models.rules.window import Bindings


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Names of what to load, each once. ``intents`` bounds how many tasks can end in the window."""

    keys: tuple[ConflictKey, ...]
    note_keys: tuple[ConflictKey, ...]
    tasks: tuple[int, ...]
    notes: tuple[int, ...]
    agents: tuple[str, ...]
    live: bool
    intents: int


def needs_of(window: Iterable[Sequenced], bindings: Bindings) -> Needs:
    """Return what the intents of a window name or touch."""
    keys: dict[ConflictKey, None] = {}
    note_keys: dict[ConflictKey, None] = {}
    tasks: set[int] = set()
    notes: set[int] = set()
    agents: set[str] = set()
    live = False
    intents = 0
    for entry in window:
        submission = entry.submission
        for position, proposal in enumerate(submission.proposals):
            intents += 1
            match proposal.intent:
                case CreateTask():
                    bound = bindings[submission.id, position]
                    assert isinstance(bound, Bound)
                    keys[bound.key] = None
                case PostNote() as intent:
                    tasks.add(intent.task_id)
                    note_keys |= dict.fromkeys(_note_keys(submission.space, submission.actor, intent))
                case WithdrawNote(note_id=note_id):
                    notes.add(note_id)
                case SetMember(agent=agent) | RemoveMember(agent=agent):
                    agents.add(agent)
                case SetCharter():
                    live = True
                case AssignTask(task_id=task_id, assignee=assignee):
                    tasks.add(task_id)
                    agents.add(assignee)
                case SupersedeTask(task_id=task_id, surviving_task=survivor):
                    tasks |= {task_id, survivor}
                case CreateSpace():
                    pass
                case intent:
                    tasks.add(intent.task_id)
    return Needs(
        keys=tuple(keys),
        note_keys=tuple(note_keys),
        tasks=tuple(sorted(tasks)),
        notes=tuple(sorted(notes)),
        agents=tuple(sorted(agents)),
        live=live,
        intents=intents,
    )


def _note_keys(slug: str, actor: str, intent: PostNote) -> list[ConflictKey]:
    """Return a note's key under either delivery mode: it is the task's, which is not loaded yet."""
    return [
        note_key(
            space_slug=slug,
            task_id=intent.task_id,
            criterion_index=intent.criterion_index,
            principal=actor,
            body=intent.body,
            delivery_mode=mode,
        )
        for mode in DeliveryMode
    ]
