"""The window's transaction: what one worker makes of it when it goes well, and when it does not."""

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from models.ids import uuid7
from models.rules.conflict import DeliveryMode
from models.rules.intents import Submission
from models.store.database import sync_engine
from models.store.purge import purge_memory
from tests.pipeline import Pipeline, counted_statements, propose
from tests.stack import TITLES

T1 = TITLES[91]


class AbortError(Exception):
    """Raised by a probe: the process gives the window up."""


# One winner, and who wins


def test_the_first_in_order_wins_and_each_loser_learns_who(pipeline: Pipeline) -> None:
    members = pipeline.board.members
    several = [propose(pipeline.board, agent, TITLES[task]) for agent, task in zip(members, TITLES, strict=False)]
    numbers = [one.number for one in pipeline.append(*several)]
    assert numbers == list(range(1, len(several) + 1))
    assert pipeline.work() == 1

    first = {"T1": several[0], "T3": several[4]}
    for submission, task in zip(several, TITLES, strict=True):
        slot = "T1" if task < 95 else "T3"
        body = pipeline.body(submission)
        if submission is first[slot]:
            assert pipeline.outcome(submission) == (201, None)
            assert (body["work_item_id"], body["status"]) == (slot, "open")
            continue
        assert pipeline.outcome(submission) == (409, "conflict_key_reserved")
        assert body["reserved_proposal_id"] == f"prp_{first[slot].id.hex}"
        assert body["winner"]["task_id"] == pipeline.body(first[slot])["id"]
        assert body["conflict_key"]["target"] == f"task:{pipeline.board.slug}:slot:{slot}"
    assert pipeline.titles() == [TITLES[91], TITLES[95]]
    assert pipeline.reservations() == []


def test_an_occupant_from_before_the_window_is_named(pipeline: Pipeline) -> None:
    first, second = (propose(pipeline.board, agent, T1) for agent in pipeline.board.members[:2])
    pipeline.append(first)
    pipeline.work()
    pipeline.append(second)
    pipeline.work()
    assert pipeline.outcome(second) == (409, "conflict_key_occupied")
    assert pipeline.body(second)["winner"] == {
        "type": "task",
        "id": 1,
        "status": "open",
        "created_by": pipeline.board.members[0].id,
    }


def test_a_key_is_free_again_when_its_task_has_ended(pipeline: Pipeline) -> None:
    first, second = (propose(pipeline.board, agent, T1) for agent in pipeline.board.members[:2])
    pipeline.append(first)
    pipeline.work()
    pipeline.plant("UPDATE tasks SET status = 'done'; DELETE FROM occupancies")
    pipeline.append(second)
    pipeline.work()
    assert pipeline.outcome(second) == (201, None)


def test_a_batch_has_one_number_and_its_own_order(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    batch = propose(pipeline.board, agent, *TITLES.values(), batch=True)
    pipeline.append(batch)
    pipeline.work()
    statuses = [status for status, _ in pipeline.outcomes(batch)]
    assert sorted(statuses) == [201, 201, 409, 409, 409, 409, 409]
    for slot in (slice(0, 4), slice(4, 7)):
        digests = [proposal.payload_sha256 for proposal in batch.proposals[slot]]
        assert statuses[slot].index(201) == digests.index(min(digests))
    assert pipeline.database.value("SELECT count(DISTINCT received_seq) FROM outcomes") == 1


def test_another_delivery_mode_is_other_work(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    several = [propose(pipeline.board, agent, T1, mode=mode) for mode in DeliveryMode]
    pipeline.append(*several)
    pipeline.work()
    assert [pipeline.outcome(one) for one in several] == [(201, None), (201, None)]


def test_the_ledger_tells_the_window(pipeline: Pipeline) -> None:
    pipeline.append(propose(pipeline.board, pipeline.board.members[0], "warm the charter"))
    processor = pipeline.processor()
    pipeline.work(processor)
    won, lost = (propose(pipeline.board, agent, T1) for agent in pipeline.board.members[:2])
    pipeline.append(won, lost)
    pipeline.work(processor)

    (window,) = pipeline.database.rows("SELECT * FROM windows WHERE first_seq = 2")
    assert (window["partition"], window["last_seq"], window["intents"]) == (pipeline.board.partition, 3, 2)
    assert isinstance(window["id"], UUID)
    assert window["id"].version == 7
    rows = pipeline.database.rows("SELECT * FROM outcomes WHERE window_id = %s ORDER BY place", window["id"])
    assert [row["append_id"] for row in rows] == [won.id, lost.id]
    assert [row["place"] for row in rows] == [0, 1]
    assert [row["received_seq"] for row in rows] == [2, 3]
    assert [row["reservation"] for row in rows] == ["own", "none"]
    assert [row["task_id"] for row in rows] == [2, 2]
    # A winner's payload is its task; a loser's is kept for those who may see it.
    assert rows[0]["payload"] is None
    assert rows[1]["payload"]["title"] == T1
    events = pipeline.database.rows("SELECT number, type, task_id, data FROM events ORDER BY number")
    before = 1 + len(pipeline.board.members)
    assert [row["type"] for row in events[:before]] == ["space_created"] + ["member_set"] * (before - 1)
    events = events[before:]
    assert [(row["number"], row["type"], row["task_id"]) for row in events] == [
        (before + 1, "task_created", 1),
        (before + 2, "task_created", 2),
    ]
    assert events[1]["data"] == pipeline.body(won)


# Once, whatever happens


def stored_replies(pipeline: Pipeline) -> list[bytes]:
    return pipeline.client.lrange("dibs:reply:web", 0, -1)


@pytest.mark.parametrize("step", ["after_commit", "answered"])
def test_a_committed_window_is_only_answered_again(pipeline: Pipeline, step: str) -> None:
    def probe(reached: str) -> None:
        if reached == step:
            raise AbortError

    several = [
        propose(pipeline.board, agent, T1, key=f"key-{number}")
        for number, agent in enumerate(pipeline.board.members[:3])
    ]
    pipeline.append(*several)
    with pytest.raises(AbortError):
        pipeline.work(pipeline.processor(probe=probe))
    committed = pipeline.ledger()
    assert len(committed["tasks"]) == 1
    windows = pipeline.work()
    assert windows == (1 if step == "after_commit" else 0)
    assert pipeline.ledger() == committed
    # Answered exactly once: by whoever came to it.
    assert len(stored_replies(pipeline)) == 1
    assert pipeline.client.hlen("dibs:proposals") == 0
    assert pipeline.client.exists(f"dibs:open:{pipeline.board.partition}", f"dibs:win:{pipeline.board.partition}") == 0


def test_what_was_decided_is_not_decided_again_in_another_window(pipeline: Pipeline) -> None:
    won, lost = (propose(pipeline.board, agent, T1) for agent in pipeline.board.members[:2])
    pipeline.append(won, lost)
    pipeline.work()
    committed = pipeline.ledger()
    del committed["windows"]
    pipeline.plant("UPDATE tasks SET status = 'done'; DELETE FROM occupancies")
    pipeline.append(lost, won, again=True)
    pipeline.work()
    now = pipeline.ledger()
    assert now["outcomes"] == committed["outcomes"]
    assert now["events"] == committed["events"]
    assert len(now["tasks"]) == 1
    assert now["occupancies"] == []


def test_appending_twice_is_appending_once(pipeline: Pipeline) -> None:
    one = propose(pipeline.board, pipeline.board.members[0], T1)
    first, second = pipeline.append(one, one)
    assert (int(first.verdict), int(second.verdict)) == (0, 1)
    pipeline.work()
    assert pipeline.database.value("SELECT count(*) FROM outcomes") == 1


def aged(days: float) -> UUID:
    """Return a UUIDv7 of some days ago."""
    moment = datetime.now(UTC) - timedelta(days=days)
    return UUID(int=(uuid7().int & ((1 << 80) - 1)) | int(moment.timestamp() * 1000) << 80)


def test_an_intent_of_another_month_is_dropped(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    old = propose(pipeline.board, agent, T1, fresh=aged(30.01))
    young = propose(pipeline.board, agent, TITLES[95], fresh=aged(29.99))
    pipeline.append(old, young)
    pipeline.work()
    assert pipeline.outcomes(old) == []
    assert pipeline.outcome(young) == (201, None)
    assert pipeline.titles() == [TITLES[95]]
    assert pipeline.client.hlen("dibs:proposals") == 0


def test_the_memory_ends_after_thirty_days_and_not_before(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    kept: list[Submission] = []
    for number, days in enumerate((31, 29, 0)):
        one = propose(pipeline.board, agent, f"task {number}", key=f"key {number}")
        kept.append(one)
        pipeline.append(one)
        pipeline.work()
        age = f"UPDATE windows SET committed_at = now() - interval '{days} days' WHERE first_seq = {number + 1}"
        pipeline.plant(age)
    engine = sync_engine(pipeline.database.service_url, application_name="purge", timeout_ms=5_000)
    with engine.begin() as connection:
        assert purge_memory(connection) == 1
        assert purge_memory(connection) == 0
    engine.dispose()
    assert [len(pipeline.outcomes(one)) for one in kept] == [0, 1, 1]
    assert pipeline.database.value("SELECT count(*) FROM idempotency") == 2
    assert pipeline.database.value("SELECT count(*) FROM windows") == 2
    assert len(pipeline.titles()) == 3


# Idempotency-Key


def test_a_key_brings_its_first_answer_again(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    first, same, other = (propose(pipeline.board, agent, title, key="k") for title in (T1, T1, TITLES[95]))
    again, late = (propose(pipeline.board, agent, title, key="k") for title in (T1, TITLES[95]))
    pipeline.append(first, same, other)
    pipeline.work()
    pipeline.append(again, late)
    pipeline.work()
    for one in (same, again):
        assert pipeline.outcome(one) == (201, None)
        assert pipeline.body(one) == pipeline.body(first)
    for one in (other, late):
        assert pipeline.outcome(one) == (422, "idempotency_key_reused")
    assert pipeline.titles() == [T1]


def test_a_refusal_is_not_remembered(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    pipeline.append(propose(pipeline.board, pipeline.board.members[1], T1))
    pipeline.work()
    refused, again = (propose(pipeline.board, agent, T1, key="k") for _ in range(2))
    pipeline.append(refused)
    pipeline.work()
    assert pipeline.outcome(refused) == (409, "conflict_key_occupied")
    pipeline.plant("UPDATE tasks SET status = 'done'; DELETE FROM occupancies")
    pipeline.append(again)
    pipeline.work()
    assert pipeline.outcome(again) == (201, None)


def test_agents_do_not_share_keys(pipeline: Pipeline) -> None:
    several = [propose(pipeline.board, agent, f"by {agent.handle}", key="k") for agent in pipeline.board.members[:2]]
    pipeline.append(*several)
    pipeline.work()
    assert [pipeline.outcome(one) for one in several] == [(201, None)] * 2


# What a window costs


def test_a_window_takes_the_same_statements_whatever_its_size(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    processor = pipeline.processor()
    pipeline.append(propose(pipeline.board, agent, "the first window learns the charter"))
    pipeline.work(processor)
    seen: dict[str, list[str]] = {}
    with counted_statements(pipeline.engine) as sent:
        for size in (1, 10, 100):
            several = [propose(pipeline.board, agent, f"{size} {n % 60}", key=f"{size} {n}") for n in range(size)]
            pipeline.append(*several)
            assert pipeline.work(processor) == 1
            seen[f"{size} alone"] = list(sent)
            sent.clear()
            pipeline.append(propose(pipeline.board, agent, *(f"b{size} {n % 60}" for n in range(size)), batch=True))
            assert pipeline.work(processor) == 1
            seen[f"a batch of {size}"] = list(sent)
            sent.clear()
    first = seen["1 alone"]
    assert all(sent == first for sent in seen.values()), json.dumps(seen, indent=1)
    assert len(first) <= 12, first
