"""The allocator as one function: what a window's submissions become, given what is stored and what time it is.

Pure: the same submissions, snapshot, clock, mode and ids give the same plan on every machine, which is what makes
a rerun after a crash harmless. Seed 000, section 3; Contract 1 and 1.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from models.rules import governance, ids, life, outcomes, resolution
from models.rules.charter import CompiledCharter, bind
from models.rules.codes import Code
from models.rules.conflict import ConflictKey, task_key
from models.rules.desk import Desk
from models.rules.dispatch import Binding, ruled, traded
from models.rules.governance import NewCatalog
from models.rules.idempotency import ANOTHER_BODY, Remembered, recall
from models.rules.intents import (
    CreateSpace,
    CreateTask,
    Governance,
    Proposal,
    RemoveMember,
    Sequenced,
    SetCharter,
    SetMember,
    Submission,
    SupersedeTask,
    WorkIntent,
    is_refused_in_drain,
    kind_of,
)
from models.rules.market import Market, Reference, WorkSlot
from models.rules.outcomes import Answer, Outcome
from models.rules.plan import NewSpace, Plan, SlotRow
from models.rules.ruling import Bound, Caller, Ruling
from models.rules.snapshot import Snapshot
from models.rules.spaces import Mode, Visibility

MEMORY = timedelta(days=30)
"""How long outcomes, windows and the spaces' idempotency rows live; an older intent is dropped, not executed."""


Bindings = Mapping[tuple[UUID, int], Binding]
"""Bindings by submission and position, for the kinds that have one."""


def bind_window(window: Iterable[Sequenced], charter: CompiledCharter | None) -> dict[tuple[UUID, int], Binding]:
    """Bind new tasks with one charter and make new catalogs ready. Seed 000, section 2.1."""
    bound: dict[tuple[UUID, int], Binding] = {}
    for entry in window:
        submission = entry.submission
        for position, proposal in enumerate(submission.proposals):
            intent = proposal.intent
            if isinstance(intent, SetCharter):
                bound[submission.id, position] = NewCatalog(intent.catalog)
            elif isinstance(intent, CreateTask) and charter is not None:
                found = bind(intent.title, intent.work_item_id, charter)
                key = task_key(submission.space, intent.title, found.slot, intent.delivery_mode)
                bound[submission.id, position] = Bound(found, key)
    return bound


def parts(window: Sequence[Sequenced]) -> list[Sequence[Sequenced]]:
    """Cut a window where the rules change: what sets a charter or a role is decided in a transaction of its own.

    What comes after it is bound and admitted by what it has put in force.
    """
    cut: list[Sequence[Sequenced]] = []
    begin = 0
    for place, entry in enumerate(window):
        if isinstance(entry.submission.proposals[0].intent, Governance):
            cut += [window[begin:place], window[place : place + 1]]
            begin = place + 1
    return [part for part in (*cut, window[begin:]) if part]


def takes_authority(window: Iterable[Sequenced]) -> bool:
    """Tell whether someone may lose a role here: no other transaction may then be deciding with the old one."""
    return any(isinstance(entry.submission.proposals[0].intent, SetMember | RemoveMember) for entry in window)


def in_order(window: Iterable[Sequenced]) -> list[Sequenced]:
    """Return the submissions in the order in which they are decided."""
    return sorted(window, key=lambda entry: entry.received_seq)


def leaders(window: Iterable[Sequenced], bindings: Bindings) -> dict[ConflictKey, tuple[UUID, int]]:
    """Return the first proposal for each ConflictKey: the one that may reserve it."""
    first: dict[ConflictKey, tuple[UUID, int]] = {}
    for entry in in_order(window):
        for position, _ in entry.submission.in_order():
            bound = bindings.get((entry.submission.id, position))
            if isinstance(bound, Bound):
                first.setdefault(bound.key, (entry.submission.id, position))
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
    run.begin()
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
        self._poison = poison
        self._place = place
        space = snapshot.space
        self._desk = None if space is None else Desk(space, snapshot.board, now=now, window_id=window_id)
        self._market = Market(snapshot.exchange, now=now)
        self._taken: set[UUID] = set()
        self._in_window: dict[bytes, Remembered] = {}
        self._spaces: list[NewSpace] = []
        self._slots: list[SlotRow] = []
        self._fresh: list[Outcome] = []
        self._known: list[Outcome] = []

    def plan(self) -> Plan:
        ledger = Plan(slots=tuple(self._slots), fresh=tuple(self._fresh), known=tuple(self._known))
        desk = self._desk
        if desk is None:
            return msgspec.structs.replace(ledger, spaces=tuple(self._spaces), work=self._market.plan())
        return msgspec.structs.replace(
            ledger,
            tasks=desk.task_rows(),
            occupancies=desk.occupancy_rows(),
            notes=desk.note_rows(),
            events=tuple(desk.events),
            audits=tuple(desk.audits),
            members=tuple(desk.members),
            catalog=desk.catalog,
        )

    def begin(self) -> None:
        # What drain keeps an agent from finishing does not run out meanwhile either.
        if self._desk is not None and self._mode is Mode.ACTIVE:
            life.expire(self._desk)

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
            self._remember(submission, [answers[pos].answer for pos in range(len(submission.proposals))])
        self._record(entry, answers, place)

    def _standing_answers(self, submission: Submission) -> dict[int, Ruling] | None:
        """Return answers that need no look at the board: no authority, a key used before, drain, no such space."""
        refusal = self._authority(submission)
        if refusal is None and isinstance(submission.proposals[0].intent, WorkIntent):
            refusal = resolution.recall(self._market, submission.slots) or self._admission(submission)
        elif refusal is None:
            replay = self._replay(submission)
            if isinstance(replay, tuple):
                return {position: Ruling(answer) for position, answer in enumerate(replay)}
            refusal = replay or self._admission(submission)
        return None if refusal is None else dict.fromkeys(range(len(submission.proposals)), Ruling(refusal))

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
        intent = submission.proposals[0].intent
        if self._mode is Mode.DRAIN and is_refused_in_drain(intent):
            return outcomes.refused(Code.WORK_DRAIN_ACTIVE)
        if isinstance(intent, CreateSpace | WorkIntent):
            return None
        space = self._snapshot.space
        role = self._snapshot.authorities[submission.key_id].role
        if space is None or (space.visibility is Visibility.MEMBERS and role is None):
            return outcomes.refused(Code.SPACE_NOT_FOUND)
        if role is None and not isinstance(intent, SupersedeTask):
            return outcomes.refused(Code.NOT_A_MEMBER)
        return None

    def _one(self, entry: Sequenced, position: int, proposal: Proposal) -> Ruling:
        submission = entry.submission
        caller = Caller(
            actor=submission.actor,
            role=self._snapshot.authorities[submission.key_id].role,
            proposal=submission.proposal_id(position),
            received_seq=entry.received_seq,
            if_match=submission.if_match,
        )
        if (submission.id, position) in self._poison:
            return Ruling(caller.refused(Code.INTENT_FAILED))
        intent = proposal.intent
        if isinstance(intent, CreateSpace):
            return Ruling(self._create_space(intent, submission.space, caller))
        if isinstance(intent, WorkIntent):
            return Ruling(traded(self._market, intent, caller))
        assert self._desk is not None
        return ruled(self._desk, intent, self._bindings.get((submission.id, position)), caller)

    def _create_space(self, intent: CreateSpace, slug: str, caller: Caller) -> Answer:
        taken = slug in self._snapshot.slugs or any(one.slug == slug for one in self._spaces)
        creation = governance.create_space(intent, slug, taken=taken, now=self._now, caller=caller)
        if creation.space is not None:
            self._spaces.append(creation.space)
        return creation.answer

    def _remember(self, submission: Submission, answers: Sequence[Answer]) -> None:
        """Keep a key's answers if they are a success: a refusal is evaluated again when it is sent again.

        Within the window even a refused key keeps its body's digest: both requests are in flight, so another body
        under the key is a mistake and not a new proposal.
        """
        if not submission.slots:
            return
        if isinstance(submission.proposals[0].intent, WorkIntent):
            self._keep(submission, answers[0])
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

    def _keep(self, submission: Submission, answer: Answer) -> None:
        """Keep the key of an operation of the exchange for ever, if it was applied; a refusal leaves no trace."""
        if answer.code is None:
            signing = submission.slots[0]
            self._market.keep(
                WorkSlot(
                    slot=signing.slot,
                    secret_id=signing.secret_id,
                    request=signing.request,
                    actor=submission.actor,
                    reference=msgspec.json.decode(answer.body, type=Reference),
                )
            )

    def _record(self, entry: Sequenced, rulings: Mapping[int, Ruling], first_place: int) -> None:
        submission = entry.submission
        for place, (position, proposal) in enumerate(submission.in_order(), start=first_place):
            ruling = rulings[position]
            answer = ruling.answer
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
                    key=ruling.key,
                    payload=None
                    if answer.code in (None, Code.WORK_DRAIN_ACTIVE) or isinstance(proposal.intent, WorkIntent)
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
