"""Who has a ConflictKey, through any windows, against the plainest model that says the same. Contract 2.2."""

from datetime import timedelta
from typing import NamedTuple

from hypothesis import event, given, settings
from hypothesis import strategies as st

from models.rules.codes import Code
from models.rules.intents import (
    ClaimTask,
    CreateTask,
    Decision,
    HoldTask,
    Intent,
    ReleaseTask,
    ReopenTask,
    ReviewTask,
    SubmitTask,
    SupersedeTask,
    UnholdTask,
    WithdrawTask,
)
from models.rules.spaces import Role
from models.rules.tasks import Status
from tests.builders import ALPHA, BETA, NOW, Board, authority, body, propose, task_key_of, window

STEWARD = "agt_steward"
NAMES = ("reef", "shoal")
KEYS = {name: task_key_of(name=name) for name in NAMES}
LIVE = {"open", "claimed", "assigned", "in_review"}
REF = ("https://example.test/a",)
TASKS = st.integers(1, 8)

intents = st.one_of(
    st.sampled_from(NAMES).map(lambda name: CreateTask(title=name)),
    TASKS.map(lambda n: ClaimTask(task_id=n)),
    TASKS.map(lambda n: ReleaseTask(task_id=n)),
    TASKS.map(lambda n: SubmitTask(task_id=n, evidence=REF)),
    st.builds(lambda n, d: ReviewTask(task_id=n, decision=d), TASKS, st.sampled_from(list(Decision))),
    TASKS.map(lambda n: WithdrawTask(task_id=n, reason="x")),
    TASKS.map(lambda n: ReopenTask(task_id=n)),
    TASKS.map(lambda n: HoldTask(task_id=n, reason="x")),
    TASKS.map(lambda n: UnholdTask(task_id=n, reason="x")),
    st.builds(
        lambda n, m, r: SupersedeTask(task_id=n, surviving_task=m, reason=r),
        TASKS,
        TASKS,
        st.sampled_from(["allocation_duplicate", "steward_close"]),
    ),
)
actors = st.sampled_from([ALPHA, BETA, STEWARD])
windows = st.lists(st.lists(st.tuples(actors, intents), min_size=1, max_size=6), max_size=8)
leftovers = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3)), max_size=4)


class Mine(NamedTuple):
    """A task as the model keeps it: what it is, since when, and whether it is held."""

    name: str
    age: tuple[int, int]
    status: str
    held: bool


class Model:
    """Tasks by number, and who has each name: what the contract says in three sentences, said as code."""

    def __init__(self) -> None:
        self.tasks: dict[int, Mine] = {}
        self.has: dict[str, int] = {}

    def line(self, name: str) -> list[int]:
        found = [n for n, task in self.tasks.items() if task.name == name and task.status in LIVE]
        return sorted(found, key=lambda n: self.tasks[n].age)

    def blocked(self, name: str) -> str | None:
        if any(task.held for task in self.tasks.values() if task.name == name):
            return "held"
        return "taken" if name in self.has else None

    def move(self, number: int, status: str, survivor: int | None = None) -> None:
        task = self.tasks[number]
        self.tasks[number] = task._replace(status=status)
        if status in LIVE:
            if task.status not in LIVE:
                self.has[task.name] = number
        elif self.has.get(task.name) == number:
            del self.has[task.name]
            line = self.line(task.name)
            if line:
                self.has[task.name] = survivor if survivor in line else line[0]


def follow(model: Model, intent: Intent, answer: dict, status: int) -> None:
    """Do to the model what an accepted intent did, and check what a refused create or reopen was told."""
    if isinstance(intent, CreateTask):
        blocked = model.blocked(intent.title)
        assert (status == 201) is (blocked is None)
        if status == 201:
            model.tasks[answer["id"]] = Mine(intent.title, (10**6, answer["id"]), "open", held=False)
            model.has[intent.title] = answer["id"]
        else:
            check_refusal(model, intent.title, answer, blocked)
    elif status == 200 and isinstance(intent, SupersedeTask):
        model.move(intent.task_id, "superseded", intent.surviving_task)
    elif status == 200:
        number = intent.task_id  # type: ignore[union-attr]
        if isinstance(intent, ReopenTask):
            assert model.blocked(model.tasks[number].name) is None
        model.move(number, answer["status"])
        model.tasks[number] = model.tasks[number]._replace(held=answer["held"])
    elif isinstance(intent, ReopenTask) and answer["error"] == "allocation_conflict":
        name = model.tasks[intent.task_id].name
        check_refusal(model, name, answer, model.blocked(name))


def check_refusal(model: Model, name: str, answer: dict, blocked: str | None) -> None:
    event(f"refused: {answer['code']} {blocked}")
    winner = answer["winner"]
    number = winner["task_id"] if winner["type"] == "reserved_intent" else winner["id"]
    assert model.tasks[number].name == name
    if blocked == "held":
        assert (answer["code"], answer["held"], answer["outcome"]) == (Code.CONFLICT_KEY_OCCUPIED, True, "idle")
        assert model.tasks[number].held
    else:
        assert number == model.has[name]


@settings(max_examples=150)
@given(left=leftovers, several=windows)
def test_a_key_has_one_live_task_as_long_as_any_is_live(
    left: list[tuple[str, int]], several: list[list[tuple[str, Intent]]]
) -> None:
    board = Board(authorities=[authority(agent=STEWARD, role=Role.STEWARD)])
    model = Model()
    for number, (name, hours) in enumerate(left, start=1):
        board.put(id=number, key=KEYS[name], created_at=NOW - timedelta(hours=hours))
        model.tasks[number] = Mine(name, (-hours, number), "open", held=False)
    for name in NAMES:
        line = model.line(name)
        if line:
            model.has[name] = line[0]
            board.occupants[KEYS[name]] = line[0]
    number = 0
    for turn in several:
        sent = []
        for actor, intent in turn:
            number += 1
            sent.append((propose(intent, actor=actor, number=number), intent))
        plan = board.run(*window(*(one for one, _ in sent), first_seq=number * 10))
        answers = {outcome.append_id: outcome.answer for outcome in plan.fresh}
        for one, intent in sent:
            answer = answers[one.id]
            follow(model, intent, body(answer), answer.status)
        assert board.occupants == {KEYS[name]: n for name, n in model.has.items()}
        assert {n: stored.task.status for n, stored in board.tasks.items()} == {
            n: Status(task.status) for n, task in model.tasks.items()
        }
