"""Closing leftovers: who may, in which order the questions are asked, and what stays on record. Seed 003."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.rules.intents import ClaimTask, SupersedeTask
from models.rules.outcomes import Answer
from models.rules.spaces import Mode, Role
from models.rules.tasks import LIVE, Status
from tests.builders import (
    ALPHA,
    BETA,
    NOW,
    Board,
    authority,
    body,
    only,
    propose,
    slot,
    submission,
    task_key_of,
    window,
)

STEWARD, OUTSIDER = "agt_steward", "agt_outsider"
T1, T3 = task_key_of(name="slot:T1"), task_key_of(name="slot:T3")
HOUR = timedelta(hours=1)
DUPLICATE, POINTER, CLOSE = "allocation_duplicate", "canonical_pointer", "steward_close"


def a_board() -> Board:
    return Board(authorities=[authority(agent=STEWARD, role=Role.STEWARD), authority(agent=OUTSIDER, role=None)])


def mar() -> Board:
    """The MAR board: 91 and 93 are left over of 94, 96 and 97 of 95."""
    board = a_board()
    for number, key, status in (
        (91, T1, "open"), (92, T1, "done"), (93, T1, "open"), (94, T1, "done"),
        (95, T3, "done"), (96, T3, "open"), (97, T3, "open"),
    ):  # fmt: skip
        board.put(id=number, key=key, status=Status(status), created_by=BETA)
    return board


def close(board: Board, task: int, survivor: int, reason: str = DUPLICATE, *, by: str = ALPHA, **how: Any) -> Answer:
    board.calls = getattr(board, "calls", 0) + 1
    intent = SupersedeTask(task_id=task, surviving_task=survivor, reason=reason)
    mode = how.pop("mode", Mode.ACTIVE)
    board.last = board.run(
        *window(propose(intent, actor=by, number=board.calls, **how), first_seq=board.calls), mode=mode
    )
    return only(board.last)


def test_the_recipe_leaves_nothing_over() -> None:
    board = mar()
    for leftover, survivor in ((91, 94), (93, 94), (96, 95), (97, 95)):
        answer = close(board, leftover, survivor)
        assert answer.status == 200
        assert json.loads(answer.body) == {
            "id": leftover,
            "status": "superseded",
            "superseded_by": survivor,
            "reason": DUPLICATE,
            "attributed_to": ALPHA,
            "history_preserved": True,
            "write_occurred": True,
            "event": "task_superseded",
        }
    assert board.occupants == {}
    assert {n: stored.task.superseded_by for n, stored in board.tasks.items() if stored.task.superseded_by} == {
        91: 94, 93: 94, 96: 95, 97: 95,
    }  # fmt: skip
    claim = only(board.run(*window(propose(ClaimTask(task_id=91), number=99), first_seq=99)))
    assert (claim.status, body(claim)["error"], body(claim)["surviving_task"]) == (409, "task_superseded", 94)


DENIALS = [
    # leftover, survivor, reason, by, status, code: in the order in which they are asked for
    (90, 90, "", OUTSIDER, 404, "task_not_found"),
    (91, 91, "", OUTSIDER, 403, "not_a_member"),
    (91, 91, "  ", ALPHA, 422, "reason_empty"),
    (91, 91, "because", ALPHA, 422, "reason_unknown"),
    (91, 91, CLOSE, ALPHA, 403, "steward_only_reason"),
    (91, 91, POINTER, ALPHA, 403, "steward_only_reason"),
    (91, 91, DUPLICATE, ALPHA, 422, "surviving_task_invalid"),
    (91, 90, DUPLICATE, ALPHA, 404, "surviving_task_not_found"),
    (80, 81, DUPLICATE, ALPHA, 409, "surviving_task_superseded"),
    (80, 82, DUPLICATE, ALPHA, 409, "surviving_task_terminal"),
    (80, 83, CLOSE, STEWARD, 409, "surviving_task_terminal"),
    (80, 95, DUPLICATE, ALPHA, 409, "task_superseded"),
    (92, 95, DUPLICATE, ALPHA, 409, "task_state_conflict"),
    (91, 95, DUPLICATE, ALPHA, 403, "not_occupancy_duplicate"),
    (91, 95, DUPLICATE, STEWARD, 403, "not_occupancy_duplicate"),
    (84, 94, DUPLICATE, ALPHA, 403, "not_occupancy_duplicate"),
]


@pytest.mark.parametrize(("leftover", "survivor", "reason", "by", "status", "code"), DENIALS)
def test_the_first_question_that_fails_is_answered(
    leftover: int, survivor: int, reason: str, by: str, status: int, code: str
) -> None:
    board = mar()
    board.put(id=80, key=T1, status=Status.SUPERSEDED, superseded_by=94)
    board.put(id=81, key=T1, status=Status.SUPERSEDED, superseded_by=80)
    board.put(id=82, key=T1, status=Status.REJECTED)
    board.put(id=83, key=T1, status=Status.WITHDRAWN)
    board.put(id=84, key=T1, status=Status.CLAIMED, holder=BETA)
    before = dict(board.tasks)
    answer = close(board, leftover, survivor, reason, by=by)
    assert (answer.status, answer.code) == (status, code)
    assert body(answer)["write_occurred"] is False
    assert board.tasks == before
    assert (board.last.tasks, board.last.events, board.last.occupancies) == ((), (), ())
    (audit,) = board.last.audits
    assert (audit.code, audit.actor, audit.leftover_task, audit.surviving_task, audit.reason) == (
        code, by, leftover, survivor, reason,
    )  # fmt: skip
    if code == "surviving_task_superseded":
        assert body(answer)["surviving_task"] == 94


@pytest.mark.parametrize(
    ("by", "reason", "leftover", "survivor", "status"),
    [
        (STEWARD, DUPLICATE, 84, 94, 200),
        (STEWARD, CLOSE, 84, 95, 200),
        (STEWARD, POINTER, 91, 95, 200),
        (ALPHA, DUPLICATE, 91, 93, 200),
        (ALPHA, DUPLICATE, 91, 84, 200),
    ],
)
def test_what_is_allowed(by: str, reason: str, leftover: int, survivor: int, status: int) -> None:
    board = mar()
    board.put(id=84, key=T1, status=Status.CLAIMED, holder=BETA)
    assert close(board, leftover, survivor, reason, by=by).status == status
    assert [row.code for row in board.last.audits] == [None]


@pytest.mark.parametrize(("later", "status"), [(-HOUR, 200), (timedelta(), 200), (timedelta(microseconds=1), 403)])
def test_new_work_is_not_pointed_at_old(later: timedelta, status: int) -> None:
    board = a_board()
    board.put(id=1, key=T1, status=Status.DONE, created_at=NOW - 9 * HOUR, updated_at=NOW - 4 * HOUR)
    board.put(id=2, key=T1, created_at=NOW - 4 * HOUR + later)
    assert close(board, 2, 1).status == status
    assert board.tasks[2].task.status == ("superseded" if status == 200 else "open")


def test_no_step_is_taken_for_another_revision_and_that_is_on_record_too() -> None:
    board = mar()
    answer = close(board, 91, 94, if_match=(7,))
    assert (answer.status, [row.code for row in board.last.audits]) == (412, ["revision_mismatch"])


def test_only_what_was_decided_is_on_record() -> None:
    """Neither a replay nor a request whose key is gone tried to close anything; drain keeps this kind."""
    board = mar()
    slots = (slot(),)
    assert close(board, 91, 94, slots=slots).status == 200
    assert close(board, 91, 94, slots=slots).status == 200
    assert board.last.audits == ()
    board.authorities["key_agt_gone"] = authority(agent="agt_gone", revoked=True)
    sent = submission(
        number=50, proposals=propose(SupersedeTask(task_id=93, surviving_task=94, reason=CLOSE)).proposals,
        actor="agt_gone",
    )  # fmt: skip
    plan = board.run(*window(sent, first_seq=50))
    assert (only(plan).code, plan.audits) == ("credential_invalid", ())
    assert close(board, 93, 94, mode=Mode.DRAIN).status == 200


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=25))
def test_pointers_never_close_a_circle(pairs: list[tuple[int, int]]) -> None:
    board = a_board()
    for number in range(1, 7):
        board.put(id=number, key=T1)
    recorded: dict[int, int] = {}
    for leftover, survivor in pairs:
        answer = close(board, leftover, survivor, CLOSE, by=STEWARD)
        if answer.status == 200:
            recorded[leftover] = survivor
        elif answer.code == "task_superseded":
            end = leftover
            while end in recorded:
                end = recorded[end]
            assert body(answer)["surviving_task"] == end
            assert board.tasks[end].task.status in LIVE
    assert {n: stored.task.superseded_by for n, stored in board.tasks.items() if stored.task.superseded_by} == recorded
    assert len(recorded) < 6
