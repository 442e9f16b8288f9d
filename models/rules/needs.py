"""What of a board a window needs to see: worked out of its intents before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from models.rules.conflict import ConflictKey, DeliveryMode, note_key
from models.rules.intents import (
    ActOnProposal,
    AssignTask,
    CorrectWork,
    CreateTask,
    LifeIntent,
    PostNote,
    ProposeWork,
    RemoveMember,
    ResolveWork,
    Sequenced,
    SetCharter,
    SetMember,
    SupersedeTask,
    WithdrawNote,
    WithdrawWork,
    WorkIntent,
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
                case intent if isinstance(intent, LifeIntent):
                    tasks.add(intent.task_id)
                case _:
                    pass
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


class WorkNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What of the exchange a window names, each once and in the order in which it is locked."""

    opportunities: tuple[str, ...]
    proposals: tuple[str, ...]
    slots: tuple[bytes, ...]
    actors: tuple[str, ...]


def work_needs_of(window: Iterable[Sequenced]) -> WorkNeeds:
    """Return what the exchange's intents of a window name; empty where there are none."""
    opportunities: set[str] = set()
    proposals: set[str] = set()
    slots: set[bytes] = set()
    actors: set[str] = set()
    for entry in window:
        submission = entry.submission
        intent = submission.proposals[0].intent
        if not isinstance(intent, WorkIntent):
            continue
        actors.add(submission.actor)
        slots |= {digest.slot for digest in submission.slots}
        match intent:
            case CorrectWork(work_id=work_id) | WithdrawWork(work_id=work_id) | ProposeWork(work_id=work_id):
                opportunities.add(work_id)
            case ActOnProposal(proposal_id=proposal_id, work_id=work_id):
                proposals.add(proposal_id)
                opportunities |= {work_id} if work_id is not None else set()
            case ResolveWork(original=original):
                slots |= {digest.slot for digest in original}
            case _:
                pass
    return WorkNeeds(
        opportunities=tuple(sorted(opportunities)),
        proposals=tuple(sorted(proposals)),
        slots=tuple(sorted(slots)),
        actors=tuple(sorted(actors)),
    )
