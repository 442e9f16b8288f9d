"""Small valid values for tests: each argument left out has a default that changes nothing.

Ids and times are fixed, so a failing test fails the same way again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from models.rules import ids
from models.rules.canonical import keyed_digest
from models.rules.charter import CatalogRow, Charter, CompiledCharter, compile_charter
from models.rules.conflict import ConflictKey, DeliveryMode, Kind
from models.rules.idempotency import Remembered
from models.rules.intents import CreateTask, Intent, Proposal, Sequenced, SlotDigest, Submission, ValidationPolicy
from models.rules.needs import needs_of
from models.rules.notes import Note
from models.rules.outcomes import Answer, Outcome
from models.rules.plan import Plan
from models.rules.snapshot import AgentState, Authority, BoardPart, LiveTask, Snapshot, SpaceState, Standing, StoredTask
from models.rules.spaces import Mode, Role, Visibility
from models.rules.tasks import LIVE, BindView, Status, Task
from models.rules.window import bind_window, decide

NOW: Final = datetime(2026, 7, 1, 12, tzinfo=UTC)
LAB: Final = "lab"
ALPHA: Final = "agt_alpha"
BETA: Final = "agt_beta"
EPSILON: Final = "agt_epsilon"
REEF: Final = "Map the reef"

ProposalAt = tuple[UUID, int]
"""A proposal by its submission and its position in it."""


def uuid7_at(*, number: int, at: datetime = NOW) -> UUID:
    """A version 7 UUID of that millisecond; ``number`` stands in its random bits."""
    return UUID(int=int(at.timestamp() * 1000) << 80 | 0x7 << 76 | 0x2 << 62 | number << 8)


def window_id(*, number: int) -> UUID:
    """The id of the test's n-th window."""
    return uuid7_at(number=0xF00000 + number)


def create(*, title: str = REEF, mode: DeliveryMode = DeliveryMode.RESULT, work_item_id: str | None = None) -> Proposal:
    """A proposal to create a task."""
    return Proposal.of(CreateTask(title=title, delivery_mode=mode, work_item_id=work_item_id))


def submission(
    *,
    number: int = 1,
    proposals: Sequence[Proposal] = (),
    title: str = REEF,
    space: str = LAB,
    actor: str = ALPHA,
    key_id: str | None = None,
    batch: bool | None = None,
    slots: tuple[SlotDigest, ...] = (),
    reply_to: str = "web-1",
    at: datetime = NOW,
) -> Submission:
    """A request's proposals: those given, or one with ``title``. Several make a batch."""
    given = tuple(proposals) or (create(title=title),)
    return Submission(
        id=uuid7_at(number=number, at=at),
        partition=f"space:{space}",
        space=space,
        actor=actor,
        key_id=key_of(agent=actor) if key_id is None else key_id,
        batch=len(given) > 1 if batch is None else batch,
        proposals=given,
        slots=slots,
        reply_to=reply_to,
    )


def propose(
    intent: Intent,
    *,
    actor: str = ALPHA,
    number: int = 1,
    if_match: tuple[int, ...] | None = None,
    slots: tuple[SlotDigest, ...] = (),
) -> Submission:
    """A submission of one intent of any kind."""
    sent = submission(number=number, proposals=(Proposal.of(intent),), actor=actor, slots=slots)
    return msgspec.structs.replace(sent, if_match=if_match)


def key_of(*, agent: str) -> str:
    """The id of an agent's one key."""
    return f"key_{agent}"


def slot(*, key: str = "retry-1", body: str = REEF, secret: str = "s1", actor: str = ALPHA) -> SlotDigest:
    """What an Idempotency-Key and a body become under one secret."""
    return SlotDigest(
        secret_id=secret,
        slot=keyed_digest(secret.encode(), "slot", actor, key),
        request=keyed_digest(secret.encode(), "request", body),
    )


def charter(*, revision: int = 1, rows: Mapping[str, Sequence[str]] | None = None) -> CompiledCharter:
    """A catalog of phrases by work item id; the first phrase is the title."""
    return compile_charter(
        Charter(
            revision=revision,
            rows=tuple(CatalogRow(item, first, tuple(rest)) for item, (first, *rest) in (rows or {}).items()),
        )
    )


def authority(
    *,
    agent: str,
    active: bool = True,
    revoked: bool = False,
    expires_at: datetime | None = None,
    role: Role | None = Role.MEMBER,
) -> Authority:
    """A key in force, of a member."""
    return Authority(agent=agent, agent_active=active, revoked=revoked, expires_at=expires_at, role=role)


def task_key_of(*, name: str, space: str = LAB, mode: DeliveryMode = DeliveryMode.RESULT) -> ConflictKey:
    """A task's ConflictKey by the last part of its target, such as ``map the reef`` or ``slot:T1``."""
    return ConflictKey(kind=Kind.CREATE_TASK, target=f"task:{space}:{name}", delivery_mode=mode)


class Board:
    """A space as SQL would keep it: decides windows and remembers what their plans wrote."""

    def __init__(
        self,
        *,
        compiled: CompiledCharter | None = None,
        authorities: Iterable[Authority] = (),
        visibility: Visibility = Visibility.PUBLIC,
        exists: bool = True,
        claim_ttl: timedelta | None = None,
    ) -> None:
        self.charter = charter() if compiled is None else compiled
        members = {agent: authority(agent=agent) for agent in (ALPHA, BETA, EPSILON)}
        members |= {given.agent: given for given in authorities}
        self.authorities = {key_of(agent=agent): given for agent, given in members.items()}
        self.visibility = visibility
        self.exists = exists
        self.claim_ttl = claim_ttl
        self.next_task = 1
        self.next_event = 1
        self.next_note = 1
        self.windows = 0
        self.decided: dict[UUID, tuple[Outcome, ...]] = {}
        self.remembered: dict[bytes, Remembered] = {}
        self.tasks: dict[int, StoredTask] = {}
        self.notes: dict[int, Note] = {}
        self.occupants: dict[ConflictKey, int] = {}
        self.note_occupants: dict[ConflictKey, int] = {}

    def part(self, entries: Sequence[Sequenced], now: datetime) -> BoardPart:
        """What a window would load of the board: only what it names or touches."""
        needs = needs_of(entries, bind_window(entries, self.charter))
        ttl = self.claim_ttl
        expired = tuple(
            number
            for number, stored in self.tasks.items()
            if ttl is not None
            and stored.task.status is Status.CLAIMED
            and stored.task.claimed_at is not None
            and stored.task.claimed_at <= now - ttl
        )
        named = {number: self.tasks[number] for number in (*needs.tasks, *expired) if number in self.tasks}
        keys = {*needs.keys, *(stored.task.conflict_key for stored in named.values())}
        notes = {number: self.notes[number] for number in needs.notes if number in self.notes}
        note_keys = {*needs.note_keys, *(note.conflict_key for note in notes.values())}
        roles = {given.agent: given for given in self.authorities.values()}
        return BoardPart(
            tasks=named,
            survivors={
                number: stored.task.superseded_by
                for number, stored in self.tasks.items()
                if stored.task.superseded_by is not None
            },
            occupants={key: number for key, number in self.occupants.items() if key in keys},
            standings=tuple(
                Standing(
                    key=stored.task.conflict_key,
                    task_id=number,
                    status=stored.task.status,
                    created_by=stored.task.created_by,
                    created_at=stored.task.created_at,
                    held=stored.task.held,
                )
                for number, stored in self.tasks.items()
                if stored.task.conflict_key in keys and (stored.task.status in LIVE or stored.task.held)
            ),
            expired=expired,
            notes=notes,
            note_occupants={key: number for key, number in self.note_occupants.items() if key in note_keys},
            agents={
                agent: AgentState(
                    handle=agent.removeprefix("agt_"), active=given.agent_active, role=given.role, since=NOW
                )
                for agent, given in roles.items()
                if agent in needs.agents
            },
            stewards=frozenset(agent for agent, given in roles.items() if given.role is Role.STEWARD),
            live=tuple(
                LiveTask(
                    id=number,
                    title=stored.task.title,
                    requested=stored.task.work_item_id if stored.task.bind.provenance == "request" else None,
                    conflict_key=stored.task.conflict_key,
                )
                for number, stored in self.tasks.items()
                if needs.live and stored.task.status in LIVE
            ),
        )

    def snapshot(self, entries: Sequence[Sequenced] = (), now: datetime = NOW) -> Snapshot:
        """What a window would load now."""
        space = SpaceState(
            id=7,
            slug=LAB,
            visibility=self.visibility,
            next_task=self.next_task,
            next_event=self.next_event,
            next_note=self.next_note,
            claim_ttl=self.claim_ttl,
            charter=self.charter,
        )
        return Snapshot(
            space=space if self.exists else None,
            authorities=dict(self.authorities),
            decided=dict(self.decided),
            remembered=dict(self.remembered),
            board=self.part(entries, now),
        )

    def decide(
        self,
        entries: Sequence[Sequenced],
        *,
        now: datetime = NOW,
        mode: Mode = Mode.ACTIVE,
        poison: Iterable[ProposalAt] = (),
    ) -> Plan:
        """Decide a window and forget the plan."""
        return decide(
            entries,
            bind_window(entries, self.charter),
            self.snapshot(entries, now),
            now=now,
            mode=mode,
            window_id=window_id(number=self.windows + 1),
            poison=frozenset(poison),
        )

    def commit(self, plan: Plan) -> None:
        """Write a plan, minding what SQL would refuse."""
        self.windows += 1
        for row in plan.tasks:
            stored = self.tasks.get(row.task.id)
            assert row.was == (None if stored is None else stored.task.revision), f"another state of {row.task.id}"
            self.tasks[row.task.id] = StoredTask(task=row.task, ended_at=row.ended_at)
            self.next_task += row.was is None
        for row in plan.notes:
            assert row.new is (row.note.id not in self.notes)
            self.notes[row.note.id] = row.note
            self.next_note += row.new
        for row in plan.occupancies:
            is_note = (row.after or row.before).note_id is not None
            kept = self.note_occupants if is_note else self.occupants
            before = row.before and (row.before.note_id if is_note else row.before.task_id)
            assert kept.get(row.key) == before, f"another occupant of {row.key}"
            if row.after is None:
                del kept[row.key]
            else:
                kept[row.key] = row.after.note_id if is_note else row.after.task_id
        assert [event.number for event in plan.events] == list(
            range(self.next_event, self.next_event + len(plan.events))
        )
        self.next_event += len(plan.events)
        self.check()
        for outcome in sorted(plan.fresh, key=lambda one: one.position):
            self.decided[outcome.append_id] = (*self.decided.get(outcome.append_id, ()), outcome)
        for row in plan.members:
            found = self.authorities[key_of(agent=row.agent)]
            self.authorities[key_of(agent=row.agent)] = msgspec.structs.replace(found, role=row.role)
        if plan.catalog is not None:
            self.charter = compile_charter(Charter(revision=self.charter.revision + 1, rows=plan.catalog))
        for row in plan.slots:
            assert row.digest.slot not in self.remembered, "a key remembered twice"
            self.remembered[row.digest.slot] = Remembered(
                secret_id=row.digest.secret_id,
                request=row.digest.request,
                append_id=row.append_id,
                answers=tuple(outcome.answer for outcome in self.decided[row.append_id]),
            )

    def check(self) -> None:
        """Every key with a live task has one occupant, a live task of that key; no other key has any."""
        live: dict[ConflictKey, set[int]] = {}
        for number, stored in self.tasks.items():
            assert (stored.ended_at is None) is (stored.task.status in LIVE)
            if stored.task.status in LIVE:
                live.setdefault(stored.task.conflict_key, set()).add(number)
        assert self.occupants.keys() == live.keys()
        assert all(number in live[key] for key, number in self.occupants.items())

    def run(self, *entries: Sequenced, **circumstances: Any) -> Plan:
        """Decide a window and write its plan."""
        plan = self.decide(entries, **circumstances)
        self.commit(plan)
        return plan

    def occupy(self, *, key: ConflictKey, task_id: int, status: Status = Status.OPEN, created_by: str = ALPHA) -> None:
        """Let a task of before hold a key."""
        self.put(id=task_id, key=key, status=status, created_by=created_by)

    def end(self, key: ConflictKey) -> None:
        """Let the key's one live task be over."""
        stored = self.tasks[self.occupants.pop(key)]
        done = msgspec.structs.replace(stored.task, status=Status.DONE)
        self.tasks[done.id] = StoredTask(task=done, ended_at=NOW)

    def put(self, **members: Any) -> Task:
        """Put a task of before on the board; the first live one of a key occupies it."""
        task = task_of(**members)
        self.tasks[task.id] = StoredTask(task=task, ended_at=None if task.status in LIVE else task.updated_at)
        self.next_task = max(self.next_task, task.id + 1)
        if task.status in LIVE:
            self.occupants.setdefault(task.conflict_key, task.id)
        return task


def task_of(
    *,
    id: int,  # noqa: A002 - the member's name
    key: ConflictKey | None = None,
    status: Status = Status.OPEN,
    created_by: str = ALPHA,
    created_at: datetime = NOW,
    **members: Any,
) -> Task:
    """A task of before."""
    mode = key.delivery_mode if key else DeliveryMode.RESULT
    return Task(
        id=id,
        space=LAB,
        title=f"Work {id}",
        body="",
        work_item_id=None,
        bind=BindView(provenance="title", slot=None, score=None, runner_up=None, charter_revision=1),
        delivery_mode=mode,
        validation_policy=members.pop("validation_policy", ValidationPolicy.EVIDENCE),
        status=status,
        conflict_key=key or task_key_of(name=f"work {id}"),
        created_by=created_by,
        created_at=created_at,
        updated_at=members.pop("updated_at", created_at),
        **members,
    )


def window(*submissions: Submission, first_seq: int = 1) -> list[Sequenced]:
    """Submissions in the order of their arrival, numbered without gaps."""
    return [Sequenced(number, one) for number, one in enumerate(submissions, start=first_seq)]


def answers(plan: Plan) -> dict[ProposalAt, Answer]:
    """The answer to each proposal that a plan speaks of."""
    return {(outcome.append_id, outcome.position): outcome.answer for outcome in (*plan.fresh, *plan.known)}


def body(answer: Answer) -> Any:
    """An answer's JSON."""
    return json.loads(answer.body)


def only(plan: Plan) -> Answer:
    """The answer of a plan that speaks of one proposal."""
    (answer,) = answers(plan).values()
    return answer


def written(plan: Plan) -> list[Task]:
    """The tasks that a plan writes."""
    return [row.task for row in plan.tasks]


def of(plan: Plan, sent: Submission, position: int = 0) -> Answer:
    """A plan's answer to one proposal of a submission."""
    return answers(plan)[sent.id, position]


def proposal_id(sent: Submission, position: int = 0) -> str:
    """The id of a submission's proposal as answers spell it."""
    return ids.format_proposal(sent.proposal_id(position))
