import json
from datetime import UTC, datetime

import msgspec
import pytest

from deploy.race_rules import (
    Attempt,
    Fate,
    Pointed,
    Round,
    Stored,
    StoredTask,
    find_faults,
    judge,
    look,
    percentile,
    pointers,
    report,
)
from models.rules import outcomes
from models.rules.conflict import ConflictKey, DeliveryMode, Kind
from models.rules.intents import ValidationPolicy
from models.rules.outcomes import Leader, Occupant
from models.rules.tasks import BindView, Status, Task

PROPOSAL = "prp_01a22ea6385c7f5381e58abaccd3bd00"
SLUG = "race-1"


def key(slot: str) -> ConflictKey:
    return ConflictKey(Kind.CREATE_TASK, f"task:{SLUG}:{slot}", DeliveryMode.RESULT)


T1, T3, OTHER = key("slot:T1"), key("slot:T3"), key("something else")


def won(agent: str, due: ConflictKey, task_id: int) -> Attempt:
    return Attempt(agent=agent, due=due, fate=Fate.WON, latency_ms=10, status=201, key=due, task_id=task_id)


def lost(agent: str, due: ConflictKey, task_id: int, *, proposal: str | None = None) -> Attempt:
    return Attempt(
        agent=agent,
        due=due,
        fate=Fate.LOST,
        latency_ms=20,
        status=409,
        what="conflict_key_reserved" if proposal else "conflict_key_occupied",
        key=due,
        task_id=task_id,
        proposal_id=proposal,
        write_occurred=False,
    )


FAIR = Round(
    number=3,
    slug=SLUG,
    seconds=0.5,
    attempts=(
        won("race-001", T1, 1),
        lost("race-002", T1, 1, proposal=PROPOSAL),
        lost("race-003", T1, 1),
        won("race-004", T3, 2),
        lost("race-005", T3, 2),
    ),
    pointed={
        f"/v0/spaces/{SLUG}/tasks/1": Pointed(status=200, key=T1, task_id=1),
        f"/v0/proposals/{PROPOSAL}": Pointed(status=200, key=T1, task_id=1),
        f"/v0/spaces/{SLUG}/tasks/2": Pointed(status=200, key=T3, task_id=2),
    },
    stored=Stored(
        tasks=(StoredTask(id=1, key=T1, status=Status.OPEN), StoredTask(id=2, key=T3, status=Status.OPEN)),
        occupancies=((T1, 1), (T3, 2)),
        events=(1, 2),
    ),
)


def attempt(place: int, **changes: object) -> Round:
    changed = list(FAIR.attempts)
    changed[place] = msgspec.structs.replace(changed[place], **changes)
    return msgspec.structs.replace(FAIR, attempts=tuple(changed))


def pointer(path: str, **changes: object) -> Round:
    pointed = {**FAIR.pointed, path: msgspec.structs.replace(FAIR.pointed[path], **changes)}
    return msgspec.structs.replace(FAIR, pointed=pointed)


def sql(**changes: object) -> Round:
    return msgspec.structs.replace(FAIR, stored=msgspec.structs.replace(FAIR.stored, **changes))


def joined(*more: Attempt) -> Round:
    return msgspec.structs.replace(FAIR, attempts=(*FAIR.attempts, *more))


FIRST_TASK = f"/v0/spaces/{SLUG}/tasks/1"
PLANTED = [
    (joined(won("race-006", T1, 3)), "slot:T1 got 2 winners: task 1 and task 3"),
    (joined(won("race-006", T1, 3)), "task 3 was answered with 201 and SQL has it not"),
    (
        sql(tasks=(*FAIR.stored.tasks, StoredTask(id=3, key=T1, status=Status.CLAIMED)), events=(1, 2, 3)),
        "SQL has 2 live tasks for slot:T1, not one",
    ),
    (sql(tasks=FAIR.stored.tasks[:1], occupancies=((T1, 1),), events=(1,)), "SQL has 0 live tasks for slot:T3"),
    (
        sql(tasks=(*FAIR.stored.tasks, StoredTask(id=3, key=OTHER, status=Status.OPEN)), events=(1, 2, 3)),
        "3 tasks in SQL, 2 answers of 201 and 2 ConflictKeys are not as many",
    ),
    (sql(occupancies=((T1, 1),)), "1 occupancy rows in SQL do not match its 2 live tasks"),
    (sql(occupancies=((T1, 2), (T3, 1))), "2 occupancy rows in SQL do not match its 2 live tasks"),
    (sql(events=(1, 3)), "events are not numbered from 1 without a gap: 1, 3"),
    (sql(events=(2, 3)), "events are not numbered from 1 without a gap: 2, 3"),
    (sql(events=(1,)), "1 events in SQL for 2 tasks"),
    (attempt(2, task_id=None), "race-003 lost slot:T1 and was not told to which task"),
    (attempt(1, proposal_id=None), "race-002 lost slot:T1 and was not told to which proposal"),
    (attempt(2, key=None), "race-003 lost and was not told which ConflictKey it lost"),
    (attempt(2, write_occurred=True), "race-003 lost and was not told that nothing was written"),
    (attempt(2, write_occurred=None), "race-003 lost and was not told that nothing was written"),
    (attempt(2, key=T3, due=T3), f"{FIRST_TASK}, which is said to have won slot:T3, has another ConflictKey"),
    (attempt(4, key=OTHER), "something else was answered to a title of slot:T3"),
    (attempt(3, fate=Fate.LOST, what="conflict_key_occupied", write_occurred=False), "slot:T3 has 2 losers and no"),
    (attempt(2, task_id=9), f"/v0/spaces/{SLUG}/tasks/9, which won slot:T1, did not answer"),
    (pointer(FIRST_TASK, status=404, key=None), f"{FIRST_TASK}, which won slot:T1, answered 404"),
    (pointer(FIRST_TASK, status=None), f"{FIRST_TASK}, which won slot:T1, did not answer"),
    (pointer(FIRST_TASK, key=T3), f"{FIRST_TASK}, which is said to have won slot:T1, has another ConflictKey"),
    (pointer(FIRST_TASK, key=None), f"{FIRST_TASK}, which is said to have won slot:T1, has another ConflictKey"),
    (
        pointer(f"/v0/proposals/{PROPOSAL}", task_id=2),
        f"/v0/proposals/{PROPOSAL}, which won slot:T1, leads to task 2 and its losers to task 1",
    ),
    (attempt(4, fate=Fate.ERROR, what="429 rate_limited", status=429), "1 of 5 requests ended as: 429 rate_limited"),
]


def test_a_fair_race_passes() -> None:
    found = report([FAIR, msgspec.structs.replace(FAIR, number=4)])
    assert (found.passed, found.faults) == (True, ())
    assert found.verdict == "one winner per slot in all 2 rounds"
    assert (found.winners.count, found.losers.count, found.errors, found.requests) == (4, 6, 0, 10)
    by_code = {code: tally.count for code, tally in found.losers_by_code.items()}
    assert by_code == {"conflict_key_occupied": 4, "conflict_key_reserved": 2}
    assert found.requests_per_second == 10
    assert found.winners.latency_ms is not None
    assert found.latency_ms is not None
    assert (found.winners.latency_ms.max, found.latency_ms.p50) == (10, 20)


@pytest.mark.parametrize(("played", "fault"), PLANTED, ids=[fault for _, fault in PLANTED])
def test_a_planted_fault_fails_the_race_and_is_named(played: Round, fault: str) -> None:
    assert any(found.startswith(f"round 3: {fault}") for found in find_faults(played)), find_faults(played)
    found = report([msgspec.structs.replace(FAIR, number=2), played])
    assert not found.passed
    assert found.verdict.startswith("FAILED in 1 of 2 rounds: round 3: ")


def test_a_winner_whose_answer_was_lost_is_an_error_and_no_second_fault() -> None:
    played = attempt(3, fate=Fate.ERROR, status=503, what="503 allocation_pending", key=None, task_id=None)
    assert find_faults(played) == ("round 3: 1 of 5 requests ended as: 503 allocation_pending",)


def test_errors_have_no_latency_unless_they_were_answered() -> None:
    silent = attempt(0, fate=Fate.ERROR, status=None, what="connection lost", latency_ms=0, key=None, task_id=None)
    found = report([silent])
    assert found.errors_by_kind == {"connection lost": 1}
    assert found.winners.count == 1
    assert found.latency_ms is not None
    assert found.latency_ms.p50 == 20
    assert report([msgspec.structs.replace(silent, attempts=silent.attempts[:1])]).latency_ms is None


def test_no_round_is_no_success() -> None:
    assert not report([]).passed


@pytest.mark.parametrize(("percent", "value"), [(50, 2), (51, 3), (75, 3), (95, 4), (99, 4), (100, 4), (1, 1)])
def test_percentiles_are_measured_values(percent: int, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == value
    assert percentile([7.0], percent) == 7.0


def test_answers_of_the_product_are_understood() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    task = Task(
        id=4,
        space=SLUG,
        title="x",
        body="",
        work_item_id="T1",
        bind=BindView("charter", "T1", 1.0, None, 1),
        delivery_mode=DeliveryMode.RESULT,
        validation_policy=ValidationPolicy.EVIDENCE,
        status=Status.OPEN,
        conflict_key=T1,
        created_by="agt_1",
        created_at=now,
        updated_at=now,
    )
    made = outcomes.created(task)
    occupied = outcomes.occupied(
        T1, Occupant(task_id=4, status=Status.OPEN, created_by="agt_1"), actor="agt_2", proposal_id="prp_2"
    )
    reserved = outcomes.reserved(
        T1, Leader(proposal_id=PROPOSAL, task_id=4, created_by="agt_1"), actor="agt_2", proposal_id="prp_2"
    )
    found = [
        judge("race-001", T1, latency_ms=1.0, status=answer.status, body=answer.body.encode())
        for answer in (made, occupied, reserved)
    ]
    assert [(one.fate, one.what, one.key, one.task_id, one.proposal_id) for one in found] == [
        (Fate.WON, None, T1, 4, None),
        (Fate.LOST, "conflict_key_occupied", T1, 4, None),
        (Fate.LOST, "conflict_key_reserved", T1, 4, PROPOSAL),
    ]
    assert [one.write_occurred for one in found] == [None, False, False]
    assert [pointers(one, SLUG) for one in found] == [
        (),
        (f"/v0/spaces/{SLUG}/tasks/4",),
        (f"/v0/spaces/{SLUG}/tasks/4", f"/v0/proposals/{PROPOSAL}"),
    ]
    assert look(200, made.body.encode()) == Pointed(status=200, key=T1, task_id=4)
    view = json.dumps({"proposal_id": PROPOSAL, "conflict_key": msgspec.to_builtins(T1), "task_id": 4})
    assert look(200, view.encode()) == Pointed(status=200, key=T1, task_id=4)
    assert look(404, b"{}") == Pointed(status=404)


@pytest.mark.parametrize(
    ("status", "body", "what", "uncertain"),
    [
        (503, b'{"code":"allocation_pending"}', "503 allocation_pending", True),
        (429, b'{"code":"rate_limited"}', "429 rate_limited", False),
        (409, b'{"code":"task_already_claimed"}', "409 task_already_claimed", False),
        (502, b"<html>", "502 with a body that was not understood", True),
        (201, b"{}", "201 with a body that was not understood", False),
        (None, b"", "connection lost", True),
    ],
)
def test_all_else_is_an_error(status: int | None, body: bytes, what: str, *, uncertain: bool) -> None:
    found = judge("race-001", T1, latency_ms=1.0, status=status, body=body, fault="connection lost")
    assert (found.fate, found.what, found.uncertain) == (Fate.ERROR, what, uncertain)
