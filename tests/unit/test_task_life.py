"""The life of a task, step by status by caller, against a table that was written down by hand. Contract 2.2."""

from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from models.rules.conflict import DeliveryMode
from models.rules.intents import (
    AssignTask,
    ClaimTask,
    Decision,
    HoldTask,
    ReleaseTask,
    ReopenTask,
    ReviewTask,
    SubmitTask,
    UnholdTask,
    ValidationPolicy,
    WithdrawTask,
)
from models.rules.spaces import Mode, Role
from models.rules.tasks import Status
from tests.builders import ALPHA, BETA, EPSILON, NOW, Board, authority, body, only, propose, task_key_of, window

CREATOR, HOLDER, OTHER, STEWARD, OUTSIDER = ALPHA, BETA, EPSILON, "agt_steward", "agt_outsider"
CALLERS = {"creator": CREATOR, "holder": HOLDER, "other": OTHER, "steward": STEWARD, "outsider": OUTSIDER}
KEY = task_key_of(name="reef")
REF = ("https://example.test/a",)

STEPS = {
    "claim": ClaimTask(task_id=1),
    "assign": AssignTask(task_id=1, assignee=OTHER),
    "release": ReleaseTask(task_id=1),
    "submit": SubmitTask(task_id=1, evidence=REF),
    "accept": ReviewTask(task_id=1, decision=Decision.ACCEPT),
    "ask": ReviewTask(task_id=1, decision=Decision.CHANGES_REQUESTED),
    "reject": ReviewTask(task_id=1, decision=Decision.REJECT),
    "withdraw": WithdrawTask(task_id=1, reason="moot"),
    "reopen": ReopenTask(task_id=1),
    "hold": HoldTask(task_id=1, reason="wait"),
    "unhold": UnholdTask(task_id=1, reason="go on"),
}
STATUSES = ["open", "claimed", "assigned", "in_review", "done", "rejected", "withdrawn", "superseded"]
MEMBERS = ("creator", "holder", "other", "steward")


class Row(NamedTuple):
    """From these states; to that one; for these callers; what the others are told; the event."""

    sources: str
    target: str
    callers: str
    others: str
    event: str


LIFE = {
    "claim": [
        Row("open", "claimed", "creator holder other steward", "", "task_claimed"),
        Row("assigned", "claimed", "holder", "task_assigned", "task_claimed"),
    ],
    "assign": [Row("open claimed", "assigned", "steward", "steward_required", "task_assigned")],
    "release": [Row("claimed assigned", "open", "holder steward", "holder_required", "task_released")],
    "submit": [Row("claimed assigned", "in_review", "holder", "holder_required", "task_submitted")],
    "accept": [Row("in_review", "done", "creator other steward", "independent_review_required", "task_reviewed")],
    "ask": [Row("in_review", "claimed", "creator other steward", "independent_review_required", "task_reviewed")],
    "reject": [Row("in_review", "rejected", "creator other steward", "independent_review_required", "task_reviewed")],
    "withdraw": [Row("open claimed assigned", "withdrawn", "creator steward", "creator_required", "task_withdrawn")],
    "reopen": [Row("done rejected withdrawn", "open", "steward", "steward_required", "task_reopened")],
    "hold": [Row(" ".join(STATUSES), "same", "steward", "steward_required", "task_held")],
    "unhold": [Row(" ".join(STATUSES), "same", "steward", "steward_required", "task_unheld")],
}
STEWARDS_OWN = {"assign", "reopen", "hold", "unhold"}


def expected(step: str, status: str, caller: str) -> tuple[int, str]:
    """Return the HTTP status and the code, or the status that the task has then."""
    if caller == "outsider" or (step in STEWARDS_OWN and caller != "steward"):
        return 403, "not_a_member" if caller == "outsider" else "steward_required"
    if status == "superseded" and step not in {"hold", "unhold"}:
        return 409, "task_superseded"
    for row in LIFE[step]:
        if status in row.sources.split():
            if caller in row.callers.split():
                return 200, status if row.target == "same" else row.target
            return (409 if row.others == "task_assigned" else 403), row.others
    if step == "claim" and status == "claimed":
        return 409, "task_already_claimed"
    return 409, "task_state_conflict"


def board_with(status: str, **members: Any) -> Board:
    board = Board(
        authorities=[
            authority(agent=STEWARD, role=Role.STEWARD),
            authority(agent=OUTSIDER, role=None),
        ]
    )
    held = status in {"claimed", "assigned", "in_review", "done", "rejected"}
    board.put(
        id=1,
        key=KEY,
        status=Status(status),
        created_by=CREATOR,
        holder=HOLDER if held else None,
        assigned_to=HOLDER if status == "assigned" else None,
        claimed_at=NOW - timedelta(hours=1) if held and status != "assigned" else None,
        superseded_by=2 if status == "superseded" else None,
        **members,
    )
    board.put(id=2, status=Status.OPEN)
    return board


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("step", STEPS)
def test_every_step_from_every_state_by_everyone(step: str, status: str, caller: str) -> None:
    board = board_with(status, held=step == "unhold")
    before = board.tasks[1].task
    plan = board.run(*window(propose(STEPS[step], actor=CALLERS[caller])))
    answer = only(plan)
    code, told = expected(step, status, caller)
    if code != 200:
        assert (answer.status, answer.code) == (code, told)
        assert body(answer)["write_occurred"] is False
        assert (plan.tasks, plan.events, plan.occupancies, plan.audits) == ((), (), (), ())
        return
    after = board.tasks[1].task
    assert (answer.status, body(answer)["status"], after.status) == (200, told, told)
    assert after.revision == before.revision + 1
    assert after.updated_at == NOW
    (event,) = plan.events
    assert (event.type, event.actor, event.task_id) == (
        next(row.event for row in LIFE[step] if status in row.sources.split()),
        CALLERS[caller],
        1,
    )
    assert (board.tasks[1].ended_at is None) is (told in {"open", "claimed", "assigned", "in_review"})
    people = (after.holder, after.assigned_to, after.claimed_at)
    match step:
        case "claim":
            assert people == (CALLERS[caller], before.assigned_to, NOW)
        case "assign":
            assert people == (OTHER, OTHER, None)
        case "release" | "reopen" | "withdraw":
            assert people == (None, None, None)
        case "ask":
            assert people == (HOLDER, None, NOW)
        case _:
            assert people == (before.holder, before.assigned_to, before.claimed_at)


def test_a_step_of_no_task_is_said_to_be() -> None:
    for intent in STEPS.values():
        answer = only(Board(authorities=[authority(agent=ALPHA, role=Role.STEWARD)]).run(*window(propose(intent))))
        assert (answer.status, answer.code) == (404, "task_not_found")


@pytest.mark.parametrize(("if_match", "status"), [(None, 200), ((1,), 200), ((4, 1), 200), ((2,), 412), ((), 412)])
def test_a_step_is_for_the_revision_that_was_meant(if_match: tuple[int, ...] | None, status: int) -> None:
    board = board_with("open")
    answer = only(board.run(*window(propose(STEPS["claim"], if_match=if_match))))
    assert answer.status == status
    if status == 412:
        assert (body(answer)["code"], body(answer)["revision"]) == ("revision_mismatch", 1)


def test_of_many_claims_the_first_wins_and_the_others_learn_who() -> None:
    board = board_with("open")
    claims = [propose(STEPS["claim"], actor=actor, number=n) for n, actor in enumerate((BETA, EPSILON, BETA), 1)]
    plan = board.run(*window(*claims))
    found = [body(outcome.answer) for outcome in plan.fresh]
    assert [one["status"] for one in found] == ["claimed", 409, 409]
    assert [(one["code"], one["holder"], one["yours"]) for one in found[1:]] == [
        ("task_already_claimed", BETA, False),
        ("task_already_claimed", BETA, True),
    ]


def test_evidence_is_needed_where_the_policy_says_so() -> None:
    bare = SubmitTask(task_id=1)
    answer = only(board_with("claimed").run(*window(propose(bare, actor=HOLDER))))
    assert (answer.status, answer.code) == (422, "evidence_required")
    trusting = board_with("claimed", validation_policy=ValidationPolicy.NONE)
    assert only(trusting.run(*window(propose(bare, actor=HOLDER)))).status == 200


@pytest.mark.parametrize(
    "assignee", [authority(agent="agt_x", role=None), authority(agent="agt_x", active=False), None]
)
def test_work_is_assigned_to_active_members_only(assignee) -> None:
    board = board_with("open")
    if assignee is not None:
        board.authorities["key_x"] = assignee
    answer = only(board.run(*window(propose(AssignTask(task_id=1, assignee="agt_x"), actor=STEWARD))))
    assert (answer.status, answer.code) == (422, "assignee_not_a_member")


def test_hold_and_unhold_are_said_once() -> None:
    board = board_with("open")
    unheld = only(board.run(*window(propose(STEPS["unhold"], actor=STEWARD, number=1))))
    assert (unheld.status, body(unheld)["held"]) == (409, False)
    assert only(board.run(*window(propose(STEPS["hold"], actor=STEWARD, number=2)))).status == 200
    again = only(board.run(*window(propose(STEPS["hold"], actor=STEWARD, number=3))))
    assert (again.status, body(again)["held"]) == (409, True)


@pytest.mark.parametrize(
    ("age", "mode", "ends"),
    [
        (timedelta(seconds=59, microseconds=999_999), Mode.ACTIVE, False),
        (timedelta(seconds=60), Mode.ACTIVE, True),
        (timedelta(days=3), Mode.ACTIVE, True),
        (timedelta(days=3), Mode.DRAIN, False),
    ],
)
def test_a_claim_ends_when_its_time_is_over(age: timedelta, mode: Mode, ends: bool) -> None:
    board = board_with("open")
    board.claim_ttl = timedelta(seconds=60)
    board.put(id=3, status=Status.CLAIMED, holder=HOLDER, claimed_at=NOW - age)
    board.put(id=4, status=Status.IN_REVIEW, holder=HOLDER, claimed_at=NOW - timedelta(days=9))
    plan = board.run(mode=mode)
    task = board.tasks[3].task
    assert (task.status, task.holder) == (("open", None) if ends else ("claimed", HOLDER))
    assert [(event.type, event.actor, event.task_id) for event in plan.events] == (
        [("claim_expired", "dibs", 3)] if ends else []
    )
    assert board.tasks[4].task.status == "in_review"


def test_a_task_of_the_other_mode_is_other_work() -> None:
    board = board_with("withdrawn")
    board.put(id=5, key=task_key_of(name="reef", mode=DeliveryMode.REPOSITORY_CHANGE))
    assert only(board.run(*window(propose(STEPS["reopen"], actor=STEWARD)))).status == 200
