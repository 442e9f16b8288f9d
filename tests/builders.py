"""Small valid values for tests: each argument left out has a default that changes nothing.

Ids and times are fixed, so a failing test fails the same way again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from models.rules import ids
from models.rules.canonical import keyed_digest
from models.rules.charter import CatalogRow, Charter, CompiledCharter, compile_charter
from models.rules.conflict import ConflictKey, DeliveryMode, Kind
from models.rules.idempotency import Remembered
from models.rules.intents import CreateTask, Proposal, Sequenced, SlotDigest, Submission
from models.rules.outcomes import Answer, Occupant, Outcome
from models.rules.spaces import Mode, Role, Visibility
from models.rules.tasks import Status
from models.rules.window import Authority, Plan, Snapshot, SpaceState, bind_window, decide

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
    ) -> None:
        self.charter = charter() if compiled is None else compiled
        members = {agent: authority(agent=agent) for agent in (ALPHA, BETA, EPSILON)}
        members |= {given.agent: given for given in authorities}
        self.authorities = {key_of(agent=agent): given for agent, given in members.items()}
        self.visibility = visibility
        self.exists = exists
        self.next_task = 1
        self.next_event = 1
        self.windows = 0
        self.decided: dict[UUID, tuple[Outcome, ...]] = {}
        self.remembered: dict[bytes, Remembered] = {}
        self.occupants: dict[ConflictKey, Occupant] = {}

    def snapshot(self) -> Snapshot:
        """What a window would load now."""
        space = SpaceState(
            id=7,
            slug=LAB,
            visibility=self.visibility,
            next_task=self.next_task,
            next_event=self.next_event,
            charter=self.charter,
        )
        return Snapshot(
            space=space if self.exists else None,
            authorities=dict(self.authorities),
            decided=dict(self.decided),
            remembered=dict(self.remembered),
            occupants=dict(self.occupants),
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
            self.snapshot(),
            now=now,
            mode=mode,
            window_id=window_id(number=self.windows + 1),
            poison=frozenset(poison),
        )

    def commit(self, plan: Plan) -> None:
        """Write a plan."""
        self.windows += 1
        self.next_task += len(plan.tasks)
        self.next_event += len(plan.events)
        for task in plan.tasks:
            assert task.conflict_key not in self.occupants, f"two tasks on {task.conflict_key}"
            self.occupants[task.conflict_key] = Occupant(
                task_id=task.id, status=task.status, created_by=task.created_by
            )
        for outcome in sorted(plan.fresh, key=lambda one: one.position):
            self.decided[outcome.append_id] = (*self.decided.get(outcome.append_id, ()), outcome)
        for row in plan.slots:
            assert row.digest.slot not in self.remembered, "a key remembered twice"
            self.remembered[row.digest.slot] = Remembered(
                secret_id=row.digest.secret_id,
                request=row.digest.request,
                append_id=row.append_id,
                answers=tuple(outcome.answer for outcome in self.decided[row.append_id]),
            )

    def run(self, *entries: Sequenced, **circumstances: Any) -> Plan:
        """Decide a window and write its plan."""
        plan = self.decide(entries, **circumstances)
        self.commit(plan)
        return plan

    def occupy(self, *, key: ConflictKey, task_id: int, status: Status = Status.OPEN, created_by: str = ALPHA) -> None:
        """Let a task of before hold a key."""
        self.occupants[key] = Occupant(task_id=task_id, status=status, created_by=created_by)


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


def of(plan: Plan, sent: Submission, position: int = 0) -> Answer:
    """A plan's answer to one proposal of a submission."""
    return answers(plan)[sent.id, position]


def proposal_id(sent: Submission, position: int = 0) -> str:
    """The id of a submission's proposal as answers spell it."""
    return ids.format_proposal(sent.proposal_id(position))
