"""Leases, reservations and numbers in a real Valkey: what each script promises, and what happens when Redis forgets."""

import threading

import pytest

from models.ids import uuid7
from models.rules.conflict import ConflictKey, DeliveryMode, Kind
from models.window import back as window_back
from models.window.back import Back, Reservation
from tests.pipeline import Pipeline, propose
from tests.stack import TITLES
from tests.waiting import wait_for

KEY = ConflictKey(Kind.CREATE_TASK, "task:space:slot:T1", DeliveryMode.RESULT)


def reservation() -> Reservation:
    return Reservation.of("space:space", KEY, uuid7(), uuid7())


# Reservations


@pytest.mark.parametrize("ttl_ms", [250, 15_000, 3_600_000])
def test_every_life_is_in_milliseconds(pipeline: Pipeline, ttl_ms: int) -> None:
    mine = reservation()
    back = pipeline.back(window_ttl_ms=ttl_ms, lease_ms=ttl_ms)
    assert back.reserve([mine]) == {mine}
    assert ttl_ms - 200 < pipeline.client.pttl(f"dibs:res:{mine.digest}") <= ttl_ms
    assert back.take("space:space", "token") is not None
    assert ttl_ms - 200 < pipeline.client.pttl("dibs:lease:space:space") <= ttl_ms
    assert back.renew("space:space", "token")
    assert ttl_ms - 200 < pipeline.client.pttl("dibs:lease:space:space") <= ttl_ms


def test_a_token_owns_its_reservation_again(pipeline: Pipeline) -> None:
    mine, theirs = reservation(), reservation()
    back = pipeline.back(window_ttl_ms=60_000)
    assert back.reserve([mine]) == {mine}
    assert back.reserve([theirs]) == frozenset()
    pipeline.client.pexpire(f"dibs:res:{mine.digest}", 1_000)
    assert back.reserve([mine]) == {mine}
    assert pipeline.client.pttl(f"dibs:res:{mine.digest}") > 50_000


def finish(back: Back, *owned: Reservation) -> None:
    back.finish("space:space", uuid7(), reservations=owned, entries=(), replies={})


def test_a_late_release_is_no_release_of_another(pipeline: Pipeline) -> None:
    mine, theirs = reservation(), reservation()
    back = pipeline.back(window_ttl_ms=15_000)
    assert back.reserve([mine])
    pipeline.client.delete(f"dibs:res:{mine.digest}")
    assert back.reserve([theirs])
    finish(back, mine)
    assert pipeline.client.get(f"dibs:res:{theirs.digest}") == theirs.token.encode()
    finish(back, theirs)
    assert not pipeline.client.exists(f"dibs:res:{theirs.digest}")


def test_a_reservation_that_took_longer_than_it_lives_is_none(pipeline: Pipeline) -> None:
    mine = reservation()
    back = pipeline.back(window_ttl_ms=50)
    # All commands are held back for longer than that, and then run.
    pipeline.client.client_pause(timeout=150, all=True)
    assert back.reserve([mine]) == frozenset()


def test_a_window_does_not_wait_for_its_reservations(pipeline: Pipeline) -> None:
    slow = Back(
        window_back.connect(pipeline.redis_url, timeout_ms=100), lease_ms=3_000, window_ttl_ms=15_000, window_max=500
    )
    pipeline.client.client_pause(timeout=1_000, all=True)
    assert slow.reserve([reservation()]) == frozenset()
    assert wait_for("the pause to end", pipeline.client.ping)
    # The connection that was given up is not read from again.
    mine = Reservation.of("space:other", KEY, uuid7(), uuid7())
    assert slow.reserve([mine]) == {mine}


def test_a_reservation_of_another_window_refuses_nobody(pipeline: Pipeline) -> None:
    processor = pipeline.processor()
    pipeline.append(propose(pipeline.board, pipeline.board.members[0], "warm the charter"))
    pipeline.work(processor)
    key = ConflictKey(Kind.CREATE_TASK, f"task:{pipeline.board.slug}:slot:T1", DeliveryMode.RESULT)
    foreign = Reservation.of(pipeline.board.partition, key, uuid7(), uuid7())
    assert pipeline.back().reserve([foreign]) == {foreign}
    one = propose(pipeline.board, pipeline.board.members[0], TITLES[91])
    pipeline.append(one)
    pipeline.work(processor)
    assert pipeline.outcome(one) == (201, None)
    assert pipeline.database.value("SELECT reservation FROM outcomes WHERE append_id = %s", one.id) == "none"
    assert pipeline.client.get(f"dibs:res:{foreign.digest}") == foreign.token.encode()


# Leases


def test_one_holder_at_a_time(pipeline: Pipeline) -> None:
    first, second = pipeline.back(lease_ms=60_000), pipeline.back()
    partition = pipeline.board.partition
    pipeline.append(propose(pipeline.board, pipeline.board.members[0], TITLES[91]))
    assert first.take(partition, "a") is not None
    assert second.take(partition, "b") is None
    assert pipeline.work() == 0, "a processor leaves a partition that is held"
    assert not second.renew(partition, "b")
    second.release(partition, "b", wake=True, instance="x")
    assert pipeline.client.get(f"dibs:lease:{partition}") == b"a"
    with pytest.raises(window_back.LeaseLostError):
        second.close(partition, "b", uuid7())
    first.release(partition, "a", wake=True, instance="x")
    assert pipeline.work() == 1


def test_the_lease_is_kept_while_the_window_takes_long(pipeline: Pipeline) -> None:
    lease_ms = 300
    seen: list[int] = []
    renewed = threading.Event()

    def probe(reached: str) -> None:
        if reached != "before_transaction":
            return
        # Longer than one life: it is renewed as often as it takes.
        name = f"dibs:lease:{pipeline.board.partition}"
        for _ in range(3):
            low = wait_for("the lease to run down", lambda: 0 < pipeline.client.pttl(name) < lease_ms * 0.75)
            assert low
            wait_for("the lease to be renewed", lambda: pipeline.client.pttl(name) > lease_ms * 0.8)
            seen.append(1)
        renewed.set()

    one = propose(pipeline.board, pipeline.board.members[0], TITLES[91])
    pipeline.append(one)
    assert pipeline.work(pipeline.processor(probe=probe, lease_ms=lease_ms)) == 1
    assert renewed.is_set()
    assert pipeline.outcome(one) == (201, None)
    assert not pipeline.client.exists(f"dibs:lease:{pipeline.board.partition}")


def test_a_fence_that_was_raised_since_stops_the_commit(pipeline: Pipeline) -> None:
    other = pipeline.processor(name="other")

    def probe(reached: str) -> None:
        if reached == "before_transaction":
            # As if this process had been stopped until its lease ran out.
            pipeline.client.delete(f"dibs:lease:{pipeline.board.partition}")
            assert pipeline.work(other) == 1

    one = propose(pipeline.board, pipeline.board.members[0], TITLES[91])
    pipeline.append(one)
    assert pipeline.work(pipeline.processor(probe=probe)) == 0
    assert pipeline.outcome(one) == (201, None)
    assert pipeline.database.value("SELECT count(*) FROM tasks") == 1
    assert pipeline.database.value("SELECT fence FROM partitions WHERE name = %s", pipeline.board.partition) == 2


# Windows


def test_a_window_has_a_greatest_size(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    several = [propose(pipeline.board, agent, f"t{number}") for number in range(5)]
    batch = propose(pipeline.board, agent, *(f"b{number}" for number in range(7)), batch=True)
    pipeline.append(*several, batch)
    assert pipeline.work(pipeline.processor(window_max=2)) == 4
    sizes = [row["intents"] for row in pipeline.database.rows("SELECT intents FROM windows ORDER BY first_seq")]
    # A batch is not cut, even where it is larger than a window.
    assert sizes == [2, 2, 1, 7]


def test_limits_are_counted_until_the_window_is_answered(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    several = [propose(pipeline.board, agent, f"t{number}") for number in range(4)]
    verdicts = pipeline.append(*several, window_max_open=3)
    assert [int(one.verdict) for one in verdicts] == [0, 0, 0, 2]
    verdicts = pipeline.append(several[3], agent_max_open=3)
    assert [int(one.verdict) for one in verdicts] == [4]
    pipeline.work()
    verdicts = pipeline.append(several[3], window_max_open=3, agent_max_open=1)
    assert [int(one.verdict) for one in verdicts] == [0]
    pipeline.work()
    assert pipeline.client.hget(f"dibs:p:{pipeline.board.partition}", "open") == b"0"
    assert pipeline.client.hlen("dibs:agents") == 0


# Numbers


def numbers(pipeline: Pipeline) -> list[int]:
    """Return the numbers of all outcomes in the order in which they were committed."""
    rows = pipeline.database.rows("SELECT received_seq FROM outcomes ORDER BY decided_at, place")
    return [row["received_seq"] for row in rows]


def create(pipeline: Pipeline, *titles: str) -> None:
    agent = pipeline.board.members[0]
    pipeline.append(*(propose(pipeline.board, agent, title) for title in titles))


def test_an_emptied_redis_does_not_turn_the_numbers_back(pipeline: Pipeline) -> None:
    for number in range(3):
        create(pipeline, f"a{number}", f"b{number}")
        pipeline.work_off()
        pipeline.client.flushall()
    assert numbers(pipeline) == list(range(1, 7))
    row = pipeline.database.rows("SELECT epoch, last_seq FROM partitions WHERE last_seq > 0")[0]
    assert (row["epoch"], row["last_seq"]) == (2, 6)
    assert [row["epoch"] for row in pipeline.database.rows("SELECT epoch FROM windows ORDER BY first_seq")] == [0, 1, 2]


def test_an_older_copy_does_not_turn_the_numbers_back(pipeline: Pipeline) -> None:
    """The copy knows fewer numbers than were committed, and by the time a worker looks it has given out more."""
    create(pipeline, "a", "b")
    pipeline.work_off()
    copy = {name: pipeline.client.dump(name) for name in pipeline.client.keys("dibs:*")}
    create(pipeline, "c", "d", "e")
    pipeline.work_off()
    pipeline.client.flushall()
    for name, content in copy.items():
        pipeline.client.restore(name, 0, content)
    create(pipeline, "f", "g", "h", "i")
    pipeline.work_off()
    assert pipeline.titles() == list("abcdefghi")
    found = numbers(pipeline)
    assert found == sorted(set(found))
    assert pipeline.database.value("SELECT epoch FROM partitions WHERE last_seq > 0") == 1


def test_an_older_copy_with_a_window_in_it_executes_nothing_again(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    old = propose(pipeline.board, agent, TITLES[91])
    pipeline.append(old)
    pipeline.back(lease_ms=10).take(pipeline.board.partition, "dead")
    pipeline.back().close(pipeline.board.partition, "dead", uuid7())
    copy = {name: pipeline.client.dump(name) for name in pipeline.client.keys("dibs:*") if b"lease" not in name}
    pipeline.client.delete(f"dibs:lease:{pipeline.board.partition}")
    pipeline.work_off()
    pipeline.database.rows("DELETE FROM occupancies")
    pipeline.database.rows("UPDATE tasks SET status = 'done'")
    create(pipeline, "b")
    pipeline.work_off()
    pipeline.client.flushall()
    for name, content in copy.items():
        pipeline.client.restore(name, 0, content)
    create(pipeline, "c")
    pipeline.work_off()
    assert pipeline.titles() == [TITLES[91], "b", "c"]
    assert len(pipeline.outcomes(old)) == 1
    found = numbers(pipeline)
    assert found == sorted(set(found))


def test_what_waits_keeps_its_order_when_it_is_renumbered(pipeline: Pipeline) -> None:
    create(pipeline, "a", "b", "c")
    pipeline.work_off()
    pipeline.client.flushall()
    agents = pipeline.board.members
    several = [propose(pipeline.board, agent, TITLES[91]) for agent in agents]
    pipeline.append(*several)
    pipeline.work_off()
    assert [pipeline.outcome(one)[0] for one in several] == [201, *[409] * 7]
    query = "SELECT received_seq FROM outcomes WHERE append_id = %s"
    found = [pipeline.database.value(query, one.id) for one in several]
    assert found == sorted(set(found))
    assert found[0] > 3


def test_a_number_stays_exact_far_beyond_a_float_of_seven_digits(pipeline: Pipeline) -> None:
    high = 2**52
    pipeline.client.hset(f"dibs:p:{pipeline.board.partition}", "seq", high)
    create(pipeline, "a", "b")
    pipeline.work_off()
    assert numbers(pipeline) == [high + 1, high + 2]
    pipeline.client.flushall()
    create(pipeline, "c")
    pipeline.work_off()
    assert numbers(pipeline) == [high + 1, high + 2, high + 3]
