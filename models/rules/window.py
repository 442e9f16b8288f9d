"""The allocator as one function: what a window's submissions become, given what is stored and what time it is.

Pure: the same submissions, snapshot, clock, mode and ids give the same plan on every machine, which is what makes
a rerun after a crash harmless. Seed 000, section 3; Contract 1 and 1.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from models.rules import ids, outcomes
from models.rules.charter import Bind, CompiledCharter, bind
from models.rules.codes import Code
from models.rules.conflict import ConflictKey, task_key
from models.rules.idempotency import ANOTHER_BODY, Remembered, recall
from models.rules.intents import CreateTask, Proposal, Sequenced, SlotDigest, Submission, kind_of
from models.rules.outcomes import Answer, Leader, Occupant, Outcome
from models.rules.spaces import Mode, Role, Visibility
from models.rules.tasks import BindView, Status, Task

MEMORY = timedelta(days=30)
"""How long outcomes, windows and the spaces' idempotency rows live; an older intent is dropped, not executed."""


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """What a key may do now: the agent it speaks for, whether both are in force, and the agent's role here."""

    agent: str
    agent_active: bool
    revoked: bool
    expires_at: datetime | None
    role: Role | None


class SpaceState(msgspec.Struct, frozen=True, kw_only=True):
    """A space as its partition's lock holder sees it."""

    id: int
    slug: str
    visibility: Visibility
    next_task: int
    next_event: int
    charter: CompiledCharter


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that one window's decision may depend on, read under its locks."""

    space: SpaceState | None
    authorities: Mapping[str, Authority]
    decided: Mapping[UUID, tuple[Outcome, ...]]
    remembered: Mapping[bytes, Remembered]
    occupants: Mapping[ConflictKey, Occupant]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a space's board, numbered without gaps. ``data`` is JSON that rebuilds the change."""

    number: int
    type: str
    at: datetime
    actor: str
    task_id: int
    data: str


class SlotRow(msgspec.Struct, frozen=True, kw_only=True):
    """An Idempotency-Key to remember, under the secret that signs."""

    digest: SlotDigest
    append_id: UUID


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the transaction writes, and what it answers from before.

    ``fresh`` outcomes are new rows; ``known`` ones were committed by an earlier run of the same submission.
    """

    tasks: tuple[Task, ...]
    events: tuple[Event, ...]
    slots: tuple[SlotRow, ...]
    fresh: tuple[Outcome, ...]
    known: tuple[Outcome, ...]


class Bound(msgspec.Struct, frozen=True):
    """A proposal's binding and the ConflictKey that follows from it."""

    bind: Bind
    key: ConflictKey


Bindings = Mapping[tuple[UUID, int], Bound]
"""Bindings by submission and position."""


def bind_window(window: Iterable[Sequenced], charter: CompiledCharter) -> dict[tuple[UUID, int], Bound]:
    """Bind every proposal with one charter. Seed 000, section 2.1."""
    bound: dict[tuple[UUID, int], Bound] = {}
    for entry in window:
        submission = entry.submission
        for position, proposal in enumerate(submission.proposals):
            intent = proposal.intent
            found = bind(intent.title, intent.work_item_id, charter)
            key = task_key(submission.space, intent.title, found.slot, intent.delivery_mode)
            bound[submission.id, position] = Bound(found, key)
    return bound


def in_order(window: Iterable[Sequenced]) -> list[Sequenced]:
    """Return the submissions in the order in which they are decided."""
    return sorted(window, key=lambda entry: entry.received_seq)


def leaders(window: Iterable[Sequenced], bindings: Bindings) -> dict[ConflictKey, tuple[UUID, int]]:
    """Return the first proposal for each ConflictKey: the one that may reserve it."""
    first: dict[ConflictKey, tuple[UUID, int]] = {}
    for entry in in_order(window):
        for position, _ in entry.submission.in_order():
            first.setdefault(bindings[entry.submission.id, position].key, (entry.submission.id, position))
    return first


def decide(
    window: Iterable[Sequenced],
    bindings: Bindings,
    snapshot: Snapshot,
    *,
    now: datetime,
    mode: Mode,
    window_id: UUID,
    first_place: int = 0,
    poison: frozenset[tuple[UUID, int]] = frozenset(),
) -> Plan:
    """Decide a window, or the part of one that begins at ``first_place`` of its order.

    ``poison`` names proposals that were found to make the transaction fail: they are answered ``intent_failed`` and
    the next in order takes their place.
    """
    run = _Run(bindings, snapshot, now=now, mode=mode, window_id=window_id, place=first_place, poison=poison)
    for entry in in_order(window):
        run.take(entry)
    return run.plan()


class _Run:
    """The state of one decision: what the submissions so far have made of the snapshot."""

    def __init__(
        self,
        bindings: Bindings,
        snapshot: Snapshot,
        *,
        now: datetime,
        mode: Mode,
        window_id: UUID,
        place: int,
        poison: frozenset[tuple[UUID, int]],
    ) -> None:
        self._bindings = bindings
        self._snapshot = snapshot
        self._now = now
        self._mode = mode
        self._window_id = window_id
        self._poison = poison
        self._place = place
        self._taken: set[UUID] = set()
        self._reserved: dict[ConflictKey, Leader] = {}
        self._in_window: dict[bytes, Remembered] = {}
        self._tasks: list[Task] = []
        self._events: list[Event] = []
        self._slots: list[SlotRow] = []
        self._fresh: list[Outcome] = []
        self._known: list[Outcome] = []

    def plan(self) -> Plan:
        return Plan(
            tasks=tuple(self._tasks),
            events=tuple(self._events),
            slots=tuple(self._slots),
            fresh=tuple(self._fresh),
            known=tuple(self._known),
        )

    def take(self, entry: Sequenced) -> None:
        submission = entry.submission
        if submission.id in self._taken:
            return
        self._taken.add(submission.id)
        place, self._place = self._place, self._place + len(submission.proposals)
        known = self._snapshot.decided.get(submission.id)
        if known:
            # An earlier run committed it (a worker died, or Redis gave it again): all of a submission's outcomes
            # stand in one transaction, so there is nothing left to execute.
            self._known.extend(known)
            return
        if self._now - ids.moment(submission.id) > MEMORY:
            return
        answers = self._standing_answers(submission)
        if answers is None:
            answers = {pos: self._one(entry, pos, proposal) for pos, proposal in submission.in_order()}
            self._remember(submission, [answers[pos] for pos in range(len(submission.proposals))])
        self._record(entry, answers, place)

    def _standing_answers(self, submission: Submission) -> dict[int, Answer] | None:
        """Return answers that need no look at the board: no authority, a key used before, drain, no such space."""
        refusal = self._authority(submission)
        if refusal is None:
            replay = self._replay(submission)
            if isinstance(replay, tuple):
                return dict(enumerate(replay))
            refusal = replay or self._admission(submission)
        return None if refusal is None else dict.fromkeys(range(len(submission.proposals)), refusal)

    def _authority(self, submission: Submission) -> Answer | None:
        authority = self._snapshot.authorities.get(submission.key_id)
        if (
            authority is None
            or authority.agent != submission.actor
            or authority.revoked
            or (authority.expires_at is not None and authority.expires_at <= self._now)
        ):
            return outcomes.refused(
                Code.CREDENTIAL_INVALID,
                "This key was revoked or has expired while the request waited; nothing was written. Use another key.",
            )
        if not authority.agent_active:
            return outcomes.refused(Code.ACTOR_NOT_ACTIVE)
        return None

    def _replay(self, submission: Submission) -> tuple[Answer, ...] | Answer | None:
        """Return the remembered answers of a key used before, a refusal if its body was another, or None."""
        for memory in (self._snapshot.remembered, self._in_window):
            recalled = recall(submission.slots, memory)
            if recalled is ANOTHER_BODY:
                return outcomes.refused(Code.IDEMPOTENCY_KEY_REUSED)
            if recalled:
                return recalled
        return None

    def _admission(self, submission: Submission) -> Answer | None:
        if self._mode is Mode.DRAIN:
            return outcomes.refused(Code.WORK_DRAIN_ACTIVE)
        space = self._snapshot.space
        role = self._snapshot.authorities[submission.key_id].role
        if space is None or (space.visibility is Visibility.MEMBERS and role is None):
            return outcomes.refused(Code.SPACE_NOT_FOUND)
        if role is None:
            return outcomes.refused(Code.NOT_A_MEMBER)
        return None

    def _one(self, entry: Sequenced, position: int, proposal: Proposal) -> Answer:
        submission = entry.submission
        proposal_id = ids.format_proposal(submission.proposal_id(position))
        if (submission.id, position) in self._poison:
            return outcomes.refused(Code.INTENT_FAILED, proposal_id=proposal_id)
        bound = self._bindings[submission.id, position]
        occupant = self._snapshot.occupants.get(bound.key)
        if occupant is not None:
            return outcomes.occupied(bound.key, occupant, actor=submission.actor, proposal_id=proposal_id)
        leader = self._reserved.get(bound.key)
        if leader is not None:
            return outcomes.reserved(bound.key, leader, actor=submission.actor, proposal_id=proposal_id)
        return self._win(entry, proposal.intent, bound, proposal_id)

    def _win(self, entry: Sequenced, intent: CreateTask, bound: Bound, proposal_id: str) -> Answer:
        space = self._snapshot.space
        assert space is not None
        task = Task(
            id=space.next_task + len(self._tasks),
            space=space.slug,
            title=intent.title,
            body=intent.body,
            work_item_id=bound.bind.slot,
            bind=BindView.of(bound.bind),
            delivery_mode=intent.delivery_mode,
            validation_policy=intent.validation_policy,
            status=Status.OPEN,
            conflict_key=bound.key,
            created_by=entry.submission.actor,
            received_seq=entry.received_seq,
            window_id=str(self._window_id),
            created_at=self._now,
            updated_at=self._now,
        )
        answer = outcomes.created(task)
        self._tasks.append(task)
        self._events.append(
            Event(
                number=space.next_event + len(self._events),
                type="task_created",
                at=self._now,
                actor=task.created_by,
                task_id=task.id,
                data=answer.body,
            )
        )
        self._reserved[bound.key] = Leader(proposal_id=proposal_id, task_id=task.id, created_by=task.created_by)
        return answer

    def _remember(self, submission: Submission, answers: Sequence[Answer]) -> None:
        """Keep a key's answers if they are a success: a refusal is evaluated again when it is sent again.

        Within the window even a refused key keeps its body's digest: both requests are in flight, so another body
        under the key is a mistake and not a new proposal.
        """
        if not submission.slots:
            return
        success = submission.batch or answers[0].status < 300  # noqa: PLR2004 - HTTP's boundary of success
        for digest in submission.slots:
            self._in_window[digest.slot] = Remembered(
                secret_id=digest.secret_id,
                request=digest.request,
                append_id=submission.id,
                answers=tuple(answers) if success else (),
            )
        if success:
            self._slots.append(SlotRow(digest=submission.slots[0], append_id=submission.id))

    def _record(self, entry: Sequenced, answers: Mapping[int, Answer], first_place: int) -> None:
        submission = entry.submission
        for place, (position, proposal) in enumerate(submission.in_order(), start=first_place):
            answer = answers[position]
            bound = self._bindings.get((submission.id, position))
            self._fresh.append(
                Outcome(
                    append_id=submission.id,
                    position=position,
                    batch=submission.batch,
                    place=place,
                    received_seq=entry.received_seq,
                    kind=kind_of(proposal.intent),
                    actor=submission.actor,
                    answer=answer,
                    key=bound.key if bound else None,
                    payload=None
                    if answer.code is None or answer.code is Code.WORK_DRAIN_ACTIVE
                    else outcomes.encode(proposal.intent),
                )
            )


def refuse_all(window: Iterable[Sequenced], code: Code) -> list[Outcome]:
    """Refuse every proposal with one code, for a partition that has nothing to decide upon."""
    answer = outcomes.refused(code)
    return [
        Outcome(
            append_id=entry.submission.id,
            position=position,
            batch=entry.submission.batch,
            place=position,
            received_seq=entry.received_seq,
            kind=kind_of(proposal.intent),
            actor=entry.submission.actor,
            answer=answer,
        )
        for entry in window
        for position, proposal in entry.submission.in_order()
    ]
