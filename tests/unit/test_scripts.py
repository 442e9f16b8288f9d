"""The Lua side on fakeredis, through the two classes that the processes use."""

import asyncio
import json
import time
from types import SimpleNamespace

import fakeredis
import pytest
from redis import ConnectionError  # noqa: A004 - the name it is raised by

from models.rules.outcomes import Answer
from models.settings import Settings
from models.window import back as back_module
from models.window import front as front_module
from models.window import scripts
from models.window.back import Back, LeaseLostError, Reservation
from models.window.codec import Reply, UnknownFormatError, encode_replies
from models.window.front import Appended, Front, Verdict
from tests.builders import ADA, BOB, create, submission, task_key_of, uuid7_at, window_id

LAB = "space:lab"
LEASE_MS = 3000
TTL_MS = 15_000
QUEUE = "rq:queue:dibs"
W1, W2, W3 = (window_id(number=number) for number in (1, 2, 3))


class Clock:
    """Redis's clock, in milliseconds; it stands still until it is moved."""

    def __init__(self):
        self.ms = 1_782_907_200_000

    def __call__(self):
        return self.ms / 1000


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


class World:
    def __init__(self):
        self.server = fakeredis.FakeServer(server_type="valkey")
        self.redis = fakeredis.FakeRedis(server=self.server, decode_responses=False)

    def front(self, call, *, instance="i1", **limits):
        """Await one call of a front with a connection of its own."""
        settings = Settings(database_url="-", redis_url="-", secret_keys=(), **limits)

        async def main():
            front = Front(fakeredis.FakeAsyncRedis(server=self.server), settings, instance=instance)
            try:
                return await call(front)
            finally:
                await front.aclose()

        return asyncio.run(main())

    def append(self, *sent, again=False, **settings):
        _, appended = self.front(lambda front: front.append([(one, again) for one in sent]), **settings)
        return appended

    def back(self, *, window_max=500):
        return Back(self.redis, lease_ms=LEASE_MS, window_ttl_ms=TTL_MS, window_max=window_max)

    def open_entries(self, partition=LAB):
        """(number, intents) of each entry that waits."""
        found = self.redis.lrange(f"dibs:open:{partition}", 0, -1)
        return [tuple(int(part) for part in entry.split(b" ", 2)[:2]) for entry in found]

    def jobs(self):
        """The partitions of the queued jobs."""
        ids = [job_id.decode() for job_id in self.redis.lrange(QUEUE, 0, -1)]
        return [json.loads(self.redis.hget(f"rq:job:{job_id}", "data"))[2][0] for job_id in ids]

    def state(self, partition=LAB):
        return {name.decode(): value.decode() for name, value in self.redis.hgetall(f"dibs:p:{partition}").items()}

    def dirty(self):
        return [partition.decode() for partition in self.redis.zrange("dibs:dirty", 0, -1)]

    def dump(self):
        """All that this Redis holds, with how long each key has to live."""
        readers = {
            b"string": self.redis.get,
            b"hash": self.redis.hgetall,
            b"list": lambda key: self.redis.lrange(key, 0, -1),
            b"set": self.redis.smembers,
            b"zset": lambda key: self.redis.zrange(key, 0, -1, withscores=True),
        }
        return {key: (readers[self.redis.type(key)](key), self.redis.pttl(key) > 0) for key in self.redis.scan_iter()}


@pytest.fixture
def world():
    return World()


def several(count, *, first=1, **fields):
    return [submission(number=number, **fields) for number in range(first, first + count)]


class TestAppend:
    def test_numbers_in_the_order_given(self, world):
        assert world.append(*several(3)) == [Appended(Verdict.APPENDED, number) for number in (1, 2, 3)]
        assert world.append(*several(2, first=4)) == [Appended(Verdict.APPENDED, number) for number in (4, 5)]

    def test_numbers_each_partition_by_itself(self, world):
        mixed = [submission(number=1), submission(number=2, space="other"), submission(number=3)]
        assert [one.number for one in world.append(*mixed)] == [1, 1, 2]
        assert world.dirty() == ["space:lab", "space:other"]

    def test_takes_a_submission_once(self, world):
        sent = submission(proposals=[create(), create()])
        assert world.append(sent, sent) == [Appended(Verdict.APPENDED, 1), Appended(Verdict.ALREADY_OPEN, 0)]
        before = world.dump()
        for again in (True, False):
            assert world.append(sent, again=again) == [Appended(Verdict.ALREADY_OPEN, 0)]
        assert world.dump() == before

    def test_takes_one_that_is_in_a_closed_window_not_again(self, world):
        sent = submission()
        world.append(sent)
        back = world.back()
        back.take(LAB, "t")
        back.close(LAB, "t", W1)
        assert world.append(sent, again=True) == [Appended(Verdict.ALREADY_OPEN, 0)]

    def test_keeps_every_byte(self, world):
        strange = submission(proposals=[create(title="\x00 \r\n %d $-1 \u00e9 \U0001f600"), create(title="1 2 3")])
        world.append(strange)
        back = world.back()
        back.take(LAB, "t")
        (entry,) = back.close(LAB, "t", W1).entries
        assert (entry.received_seq, entry.submission) == (1, strange)

    def test_gives_a_batch_one_number_and_counts_its_intents(self, world):
        world.append(submission(number=1, proposals=[create()] * 5), submission(number=2))
        assert world.open_entries() == [(1, 5), (2, 1)]
        assert world.state() == {"seq": "2", "open": "6"}
        assert world.redis.hgetall("dibs:agents") == {ADA.encode(): b"6"}

    def test_numbers_beyond_what_a_float_prints(self, world):
        world.redis.hset("dibs:p:space:lab", "seq", 2**53 - 3)
        assert [one.number for one in world.append(*several(2))] == [2**53 - 2, 2**53 - 1]
        assert world.open_entries() == [(2**53 - 2, 1), (2**53 - 1, 1)]

    def test_tells_the_instance_that_stands_since_the_first(self, world):
        def instance(name):
            return world.front(lambda front: front.append([]), instance=name)[0]

        assert [instance("i1"), instance("i2")] == ["i1", "i1"]
        world.redis.flushall()
        assert instance("i2") == "i2"

    def test_says_where_what_is_open_waits(self, world):
        lab, other = submission(number=1), submission(number=2, space="other")
        world.append(lab, other)
        wanted = [lab.id, uuid7_at(number=9), other.id]
        found = world.front(lambda front: front.open_partitions(wanted))
        assert found == {lab.id: "space:lab", other.id: "space:other"}
        assert world.front(lambda front: front.open_partitions([])) == {}


class TestLimits:
    def test_of_a_partition_counts_intents(self, world):
        batch = submission(number=1, proposals=[create()] * 3)
        two, one = submission(number=2, proposals=[create()] * 2, actor=BOB), submission(number=3)
        limits = {"window_max_open": 4}
        assert [got.verdict for got in world.append(batch, two, one, **limits)] == [
            Verdict.APPENDED,
            Verdict.PARTITION_FULL,
            Verdict.APPENDED,
        ]
        assert world.append(submission(number=4), **limits)[0].verdict is Verdict.PARTITION_FULL
        assert world.append(submission(number=5, space="other"), **limits)[0].verdict is Verdict.APPENDED

    def test_of_an_agent_counts_its_intents_everywhere(self, world):
        limits = {"agent_max_open": 3}
        sent = [
            submission(number=1, proposals=[create()] * 2),
            submission(number=2, space="other"),
            submission(number=3, space="third"),
            submission(number=4, actor=BOB),
        ]
        assert [got.verdict for got in world.append(*sent, **limits)] == [
            Verdict.APPENDED,
            Verdict.APPENDED,
            Verdict.AGENT_FULL,
            Verdict.APPENDED,
        ]

    @pytest.mark.usefixtures("clock")
    def test_refuses_without_a_trace(self, world):
        world.append(submission(number=1), window_max_open=1, agent_burst=9)
        before = world.dump()
        assert world.append(submission(number=2), window_max_open=1)[0].verdict is Verdict.PARTITION_FULL
        assert world.append(submission(number=2), agent_max_open=1)[0].verdict is Verdict.AGENT_FULL
        batch = submission(number=2, proposals=[create()] * 9)
        assert world.append(batch, agent_burst=9)[0].verdict is Verdict.OVER_RATE
        assert world.dump() == before

    @pytest.mark.usefixtures("clock")
    def test_do_not_hold_for_what_was_admitted_before(self, world):
        sent = several(5, proposals=[create()] * 2)
        limits = {"window_max_open": 1, "agent_max_open": 1, "agent_burst": 1, "agent_rate_per_second": 1}
        assert {got.verdict for got in world.append(*sent, again=True, **limits)} == {Verdict.APPENDED}
        assert not world.redis.exists(f"dibs:rate:{ADA}")

    def test_end_when_the_window_is_finished(self, world):
        sent = submission(number=1)
        world.append(sent, window_max_open=1, agent_max_open=1)
        back = world.back()
        back.take(LAB, "t")
        finish(back, back.close(LAB, "t", W1))
        got = world.append(submission(number=2), window_max_open=1, agent_max_open=1)
        assert got == [Appended(Verdict.APPENDED, 2)]


class TestRate:
    LIMITS = {"agent_rate_per_second": 10, "agent_burst": 5}  # noqa: RUF012 - read only

    def test_is_a_burst_and_then_what_the_clock_brings(self, world, clock):
        def verdicts(count, first):
            return world.append(*several(count, first=first), **self.LIMITS)

        assert [got.verdict for got in verdicts(6, 1)] == [Verdict.APPENDED] * 5 + [Verdict.OVER_RATE]
        clock.ms += 75
        assert verdicts(1, 10) == [Appended(Verdict.OVER_RATE, 25)]
        clock.ms += 25
        assert [got.verdict for got in verdicts(2, 20)] == [Verdict.APPENDED, Verdict.OVER_RATE]
        clock.ms += 250
        assert [got.verdict for got in verdicts(3, 30)] == [Verdict.APPENDED] * 2 + [Verdict.OVER_RATE]

    def test_tells_how_many_milliseconds_to_wait(self, world, clock):
        world.append(*several(5), **self.LIMITS)
        assert world.append(submission(number=9), **self.LIMITS) == [Appended(Verdict.OVER_RATE, 100)]
        batch = submission(number=9, proposals=[create()] * 3)
        assert world.append(batch, **self.LIMITS) == [Appended(Verdict.OVER_RATE, 300)]
        clock.ms += 300
        assert world.append(batch, **self.LIMITS)[0].verdict is Verdict.APPENDED

    def test_never_saves_more_than_the_burst(self, world, clock):
        world.append(submission(number=1), **self.LIMITS)
        clock.ms += 3_600_000
        verdicts = [got.verdict for got in world.append(*several(6, first=2), **self.LIMITS)]
        assert verdicts == [Verdict.APPENDED] * 5 + [Verdict.OVER_RATE]

    @pytest.mark.usefixtures("clock")
    def test_lets_a_batch_larger_than_the_burst_pass_from_a_full_bucket(self, world):
        batch = submission(number=1, proposals=[create()] * 20)
        assert world.append(batch, **self.LIMITS)[0].verdict is Verdict.APPENDED
        assert world.append(submission(number=2), **self.LIMITS)[0].verdict is Verdict.OVER_RATE

    @pytest.mark.usefixtures("clock")
    def test_is_each_agents_own(self, world):
        world.append(*several(5), **self.LIMITS)
        assert world.append(submission(number=9, actor=BOB), **self.LIMITS)[0].verdict is Verdict.APPENDED

    def test_takes_nothing_when_the_clock_is_set_back(self, world, clock):
        world.append(*several(3), **self.LIMITS)
        clock.ms -= 3_600_000
        verdicts = [got.verdict for got in world.append(*several(3, first=10), **self.LIMITS)]
        assert verdicts == [Verdict.APPENDED] * 2 + [Verdict.OVER_RATE]
        clock.ms += 100
        assert world.append(submission(number=20), **self.LIMITS)[0].verdict is Verdict.APPENDED

    @pytest.mark.usefixtures("clock")
    def test_is_forgotten_once_the_bucket_is_full_again(self, world):
        world.append(submission(number=1), **self.LIMITS)
        assert 500 < world.redis.pttl(f"dibs:rate:{ADA}") <= 1500


class TestJob:
    def test_is_one_while_none_was_taken(self, world):
        world.append(*several(3))
        world.append(submission(number=9))
        assert world.jobs() == [LAB]

    def test_is_one_for_each_partition(self, world):
        world.append(submission(number=1), submission(number=2, space="other"))
        assert world.jobs() == ["space:lab", "space:other"]

    def test_is_none_while_a_lease_lives(self, world):
        world.back().take(LAB, "t")
        world.append(*several(2))
        assert world.jobs() == []
        assert world.dirty() == [LAB]

    def test_is_a_new_one_once_the_last_was_taken_and_let_go(self, world):
        world.append(submission(number=1))
        back = world.back()
        back.take(LAB, "t")
        finish(back, back.close(LAB, "t", W1))
        back.release(LAB, "t", wake=True, instance="i")
        assert world.jobs() == [LAB]
        world.append(submission(number=2))
        assert world.jobs() == [LAB, LAB]

    def test_is_what_rq_reads(self, world):
        world.append(submission())
        (job_id,) = world.redis.lrange(QUEUE, 0, -1)
        job = world.redis.hgetall(b"rq:job:" + job_id)
        assert json.loads(job[b"data"]) == ["worker.jobs.process_window", None, ["space:lab"], {}]
        assert (job[b"origin"], job[b"status"], job[b"result_ttl"]) == (b"dibs", b"queued", b"0")
        assert world.redis.smembers("rq:queues") == {b"rq:queue:dibs"}
        assert 0 < world.redis.ttl(b"rq:job:" + job_id) <= scripts.JOB_SECONDS

    def test_has_an_id_that_no_other_had_also_after_redis_lost_everything(self, world):
        def job_id(instance):
            world.append(submission(), instance=instance)
            return world.redis.lrange(QUEUE, 0, -1)[-1]

        first = job_id("i1")
        world.redis.flushall()
        assert job_id("i2") != first


class TestLease:
    def test_is_one_holders(self, world):
        back = world.back()
        assert back.take(LAB, "t1").token == "t1"
        assert back.take(LAB, "t2") is None
        assert back.take(LAB, "t1") is None
        assert back.take("space:other", "t2") is not None

    def test_lasts_as_long_as_it_was_said_to(self, world):
        back = world.back()
        back.take(LAB, "t1")
        assert LEASE_MS - 1000 < world.redis.pttl("dibs:lease:space:lab") <= LEASE_MS

    def test_tells_what_redis_believes(self, world):
        back = world.back()
        assert (back.take(LAB, "t1").epoch, world.redis.exists("dibs:p:space:lab")) == (0, 0)
        back.release(LAB, "t1", wake=True, instance="i")
        world.append(*several(3))
        back.renumber(LAB, 4, 0)
        taken = back.take(LAB, "t2")
        assert (taken.token, taken.epoch, taken.seq) == ("t2", 4, 6)

    def test_is_renewed_by_its_holder_alone(self, world):
        back = world.back()
        back.take(LAB, "t1")
        world.redis.pexpire("dibs:lease:space:lab", 500)
        assert not back.renew(LAB, "t2")
        assert world.redis.pttl("dibs:lease:space:lab") <= 500
        assert back.renew(LAB, "t1")
        assert world.redis.pttl("dibs:lease:space:lab") > LEASE_MS - 1000

    def test_that_ran_out_is_not_renewed(self, world):
        back = world.back()
        back.take(LAB, "t1")
        world.redis.delete("dibs:lease:space:lab")
        assert not back.renew(LAB, "t1")
        assert not world.redis.exists("dibs:lease:space:lab")

    def test_that_ran_out_is_anothers_to_take(self, world, clock):
        back = world.back()
        back.take(LAB, "t1")
        clock.ms += LEASE_MS - 1
        assert back.take(LAB, "t2") is None
        clock.ms += 2
        assert back.take(LAB, "t2") is not None
        assert not back.renew(LAB, "t1")

    def test_is_let_go_by_its_holder_alone(self, world):
        back = world.back()
        world.append(submission())
        back.take(LAB, "t1")
        back.release(LAB, "t2", wake=True, instance="i")
        assert world.redis.get("dibs:lease:space:lab") == b"t1"
        assert world.jobs() == [LAB]

    def test_clears_the_call_for_it(self, world):
        world.append(submission())
        assert world.redis.exists("dibs:wake:space:lab")
        world.back().take(LAB, "t1")
        assert not world.redis.exists("dibs:wake:space:lab")


class TestRelease:
    def test_with_nothing_left_ends_the_partitions_work(self, world):
        back = world.back()
        world.append(submission())
        back.take(LAB, "t")
        finish(back, back.close(LAB, "t", W1))
        world.redis.delete(QUEUE)
        back.release(LAB, "t", wake=True, instance="i")
        assert (world.dirty(), world.jobs()) == ([], [])
        assert not world.redis.exists("dibs:lease:space:lab", "dibs:wake:space:lab")

    @pytest.mark.parametrize("left", ["open", "closed", "both"])
    @pytest.mark.parametrize("wake", [True, False])
    def test_with_work_left_calls_for_a_worker_when_asked_to(self, world, left, wake):
        back = world.back()
        world.append(submission(number=1))
        back.take(LAB, "t")
        if left != "open":
            back.close(LAB, "t", W1)
        if left == "both":
            world.append(submission(number=2))
        world.redis.delete(QUEUE)
        back.release(LAB, "t", wake=wake, instance="i")
        assert world.jobs() == ([LAB] if wake else [])
        assert world.dirty() == [LAB]

    def test_can_call_for_a_worker_on_a_redis_that_lost_its_name(self, world):
        back = world.back()
        world.append(submission())
        back.take(LAB, "t")
        world.redis.delete("dibs:instance", QUEUE)
        back.release(LAB, "t", wake=True, instance="i2")
        assert world.jobs() == [LAB]
        assert world.redis.get("dibs:instance") == b"i2"


class TestClose:
    def test_takes_what_is_open_in_its_order(self, world):
        sent = several(3)
        world.append(*sent)
        back = world.back()
        back.take(LAB, "t")
        closed = back.close(LAB, "t", W1)
        assert (closed.id, closed.corrupt) == (W1, 0)
        assert [(entry.received_seq, entry.submission) for entry in closed.entries] == list(enumerate(sent, start=1))
        assert world.open_entries() == []
        assert world.state()["window"] == str(W1)

    def test_of_nothing_is_none(self, world):
        back = world.back()
        back.take(LAB, "t")
        assert back.close(LAB, "t", W1) is None
        assert world.state() == {}

    @pytest.mark.parametrize("lease", [None, "t1"])
    def test_needs_the_lease(self, world, lease):
        world.append(submission())
        back = world.back()
        if lease:
            back.take(LAB, lease)
        with pytest.raises(LeaseLostError):
            back.close(LAB, "t2", W1)
        assert world.open_entries() == [(1, 1)]

    def test_gives_the_standing_window_again_and_none_of_what_came_since(self, world):
        world.append(*several(2))
        back = world.back()
        back.take(LAB, "t1")
        first = back.close(LAB, "t1", W1)
        world.append(submission(number=9))
        world.redis.delete("dibs:lease:space:lab")
        back.take(LAB, "t2")
        assert back.close(LAB, "t2", W2) == back.close(LAB, "t2", W3) == first
        finish(back, first)
        assert [entry.received_seq for entry in back.close(LAB, "t2", W3).entries] == [3]

    @pytest.mark.parametrize(
        ("sizes", "most", "windows"),
        [
            ([1, 1, 1, 1, 1], 2, [[1], [1], [1]]),
            ([2, 2, 2], 4, [[2, 2], [2]]),
            ([2, 2, 2], 3, [[2], [2], [2]]),
            ([1, 5, 1], 3, [[1], [5], [1]]),
            ([5, 5], 3, [[5], [5]]),
            ([3, 1], 3, [[3], [1]]),
            ([1, 2], 3, [[1, 2]]),
        ],
        ids=["singles", "even", "no half batch", "too big", "all too big", "full", "exact"],
    )
    def test_keeps_to_the_most_intents_and_lets_a_bigger_batch_go_alone(self, world, sizes, most, windows):
        if windows == [[1], [1], [1]]:
            windows = [[1, 1], [1, 1], [1]]
        for number, size in enumerate(sizes, start=1):
            world.append(submission(number=number, proposals=[create()] * size))
        back = world.back(window_max=most)
        back.take(LAB, "t")
        found = []
        while (closed := back.close(LAB, "t", window_id(number=len(found) + 1))) is not None:
            found.append([len(entry.submission.proposals) for entry in closed.entries])
            finish(back, closed)
        assert found == windows

    def test_takes_more_entries_than_a_call_may_have_arguments(self, world):
        """Redis's Lua unpacks some thousand values at most; a window is pushed in portions."""
        entry = b"%d 1 \x01x"
        world.redis.rpush("dibs:open:space:lab", *(entry % number for number in range(1, 9001)))
        back = world.back(window_max=8500)
        back.take(LAB, "t")
        assert back.close(LAB, "t", W1).corrupt == 8500
        assert world.redis.llen("dibs:win:space:lab") == 8500
        assert world.open_entries()[0] == (8501, 1)

    def test_passes_over_what_is_damaged(self, world):
        sent = submission()
        world.redis.rpush("dibs:open:space:lab", b"1 1 \x01damaged")
        world.append(sent)
        back = world.back()
        back.take(LAB, "t")
        closed = back.close(LAB, "t", W1)
        assert [entry.submission for entry in closed.entries] == [sent]
        assert closed.corrupt == 1

    def test_leaves_what_another_version_wrote(self, world):
        world.redis.rpush("dibs:open:space:lab", b"1 1 \x7funknown")
        back = world.back()
        back.take(LAB, "t1")
        for _ in range(2):
            with pytest.raises(UnknownFormatError):
                back.close(LAB, "t1", W1)
        assert world.redis.lrange("dibs:win:space:lab", 0, -1) == [b"1 1 \x7funknown"]

    def test_of_an_entry_without_its_numbers_is_no_end_of_the_partition(self, world):
        world.redis.rpush("dibs:open:space:lab", b"whatever")
        sent = submission()
        world.append(sent)
        back = world.back()
        back.take(LAB, "t")
        back.renumber(LAB, 1, 10)
        closed = back.close(LAB, "t", W1)
        assert [(entry.received_seq, entry.submission) for entry in closed.entries] == [(12, sent)]
        assert closed.corrupt == 1


def finish(back, closed, *, reservations=(), replies=None, partition=LAB):
    back.finish(partition, closed.id, reservations=reservations, entries=closed.entries, replies=replies or {})


class TestFinish:
    def test_removes_the_window_and_counts_its_intents_out(self, world):
        world.append(submission(number=1, proposals=[create()] * 3), submission(number=2, actor=BOB))
        back = world.back()
        back.take(LAB, "t")
        closed = back.close(LAB, "t", W1)
        world.append(submission(number=3))
        finish(back, closed)
        assert world.state() == {"seq": "3", "open": "1"}
        assert world.redis.hgetall("dibs:agents") == {ADA.encode(): b"1"}
        assert world.redis.hkeys("dibs:proposals") == [submission(number=3).id.hex.encode()]
        assert not world.redis.exists("dibs:win:space:lab")
        assert world.open_entries() == [(3, 1)]

    def test_a_second_time_changes_no_more_than_the_replies(self, world):
        world.append(*several(2))
        back = world.back()
        back.take(LAB, "t")
        closed = back.close(LAB, "t", W1)
        world.append(submission(number=3))
        finish(back, closed)
        before = world.dump()
        finish(back, closed)
        assert world.dump() == before

    def test_after_its_submissions_were_appended_again_leaves_them(self, world):
        """A worker that was paused finishes a window that its successor has finished; the repeat is in a new one."""
        sent = submission()
        world.append(sent)
        back = world.back()
        back.take(LAB, "t")
        closed = back.close(LAB, "t", W1)
        finish(back, closed)
        world.append(sent, again=True)
        successors = back.close(LAB, "t", W2)
        before = world.dump()
        finish(back, closed)
        assert world.dump() == before
        finish(back, successors)
        assert world.state() == {"seq": "2", "open": "0"}

    def test_removes_the_reservations_that_it_owns_alone(self, world):
        world.append(submission())
        back = world.back()
        back.take(LAB, "t")
        closed = back.close(LAB, "t", W1)
        own, other = reservation("reef", window=W1), reservation("shoal", window=W1)
        foreign = reservation("shoal", window=W2)
        back.reserve([own, foreign])
        finish(back, closed, reservations=[own, other])
        assert world.redis.keys("dibs:res:*") == [f"dibs:res:{foreign.digest}".encode()]

    def test_answers_each_web_process_that_waits(self, world):
        sent = [submission(number=1), submission(number=2, reply_to="web-2")]
        world.append(*sent)
        back = world.back()
        back.take(LAB, "t")
        won = Reply(sent[0].id, (Answer(status=201, body="{}", task_id=1),))
        lost = Reply(sent[1].id, (Answer(status=409, body="{}", task_id=1),))
        finish(back, back.close(LAB, "t", W1), replies={"web-1": [won], "web-2": [lost, won]})
        for web in ("web-1", "web-2"):
            assert 0 < world.redis.pttl(f"dibs:reply:{web}") <= scripts.REPLY_SECONDS * 1000
            assert world.redis.pttl(f"dibs:reply:{web}") > scripts.REPLY_SECONDS * 1000 - 5000
        assert world.front(lambda front: front.replies("web-1")) == [won]
        assert world.front(lambda front: front.replies("web-2")) == [lost, won]
        assert not world.redis.keys("dibs:reply:*")

    def test_gives_replies_of_several_windows_in_their_order(self, world):
        back = world.back()
        replies = [Reply(uuid7_at(number=number), ()) for number in range(1, 4)]
        back.take(LAB, "t")
        for number, reply in enumerate(replies, start=1):
            world.append(submission(number=number))
            finish(back, back.close(LAB, "t", window_id(number=number)), replies={"web-1": [reply]})
        assert world.front(lambda front: front.replies("web-1")) == replies


@pytest.mark.usefixtures("clock")
class TestSweep:
    @pytest.fixture
    def lost(self, world):
        """A partition with work whose job is gone."""
        world.append(submission())
        world.redis.delete(QUEUE)
        return world

    def age(self, world, milliseconds):
        since = int(world.redis.get("dibs:wake:space:lab"))
        world.redis.set("dibs:wake:space:lab", since - milliseconds)

    def test_finds_a_job_that_was_lost_after_a_second(self, lost):
        back = lost.back()
        self.age(lost, 999)
        assert (back.sweep("i"), lost.jobs()) == (0, [])
        self.age(lost, 1)
        assert (back.sweep("i"), lost.jobs()) == (1, [LAB])

    def test_finds_it_though_the_clock_was_set_back(self, lost):
        self.age(lost, -3_600_000)
        assert (lost.back().sweep("i"), lost.jobs()) == (1, [LAB])

    def test_queues_one_again_after_each_second_only(self, lost):
        back = lost.back()
        self.age(lost, 1000)
        assert [back.sweep("i"), back.sweep("i")] == [1, 0]
        lost.redis.delete(QUEUE)
        self.age(lost, 1000)
        assert back.sweep("i") == 1

    def test_finds_work_that_no_one_was_called_for(self, lost):
        """A worker let go after an outage, or a web process had died between the two steps when they were two."""
        lost.redis.delete("dibs:wake:space:lab")
        assert (lost.back().sweep("i"), lost.jobs()) == (1, [LAB])

    def test_leaves_a_partition_that_is_worked_on(self, lost):
        back = lost.back()
        self.age(lost, 5000)
        back.take(LAB, "t")
        assert (back.sweep("i"), lost.jobs()) == (0, [])

    def test_finds_a_window_whose_worker_died(self, lost, clock):
        back = lost.back()
        back.take(LAB, "t")
        back.close(LAB, "t", W1)
        clock.ms += LEASE_MS - 1
        assert back.sweep("i") == 0
        clock.ms += 2
        assert (back.sweep("i"), lost.jobs()) == (1, [LAB])

    def test_adds_nothing_to_a_queue_as_long_as_the_work(self, world):
        for number, space in enumerate(["lab", "b", "c"], start=1):
            world.append(submission(number=number, space=space))
        self.age(world, 5000)
        assert world.back().sweep("i") == 0
        world.redis.lpop(QUEUE)
        assert (world.back().sweep("i"), sorted(world.jobs())) == (1, ["space:b", "space:c", "space:lab"])

    def test_of_no_work_does_nothing(self, world):
        assert world.back().sweep("i") == 0
        assert world.jobs() == []

    def test_names_a_redis_that_lost_its_name(self, lost):
        lost.redis.delete("dibs:instance", "dibs:wake:space:lab")
        assert lost.back().sweep("i9") == 1
        assert lost.redis.get("dibs:instance") == b"i9"


class TestRenumber:
    def test_puts_what_waits_above_what_is_committed_in_its_order(self, world):
        sent = several(4)
        world.append(*sent[:2])
        back = world.back()
        back.take(LAB, "t")
        back.close(LAB, "t", W1)
        world.append(*sent[2:])
        back.renumber(LAB, 2, 1000)
        closed = back.close(LAB, "t", W2)
        assert closed.id == W1
        assert [(entry.received_seq, entry.submission) for entry in closed.entries] == [
            (1001, sent[0]),
            (1002, sent[1]),
        ]
        assert world.open_entries() == [(1003, 1), (1004, 1)]
        assert world.state() == {"seq": "1004", "open": "4", "epoch": "2", "window": str(W1)}

    def test_goes_above_what_was_given_when_that_is_more(self, world):
        world.append(*several(3))
        world.back().renumber(LAB, 1, 1)
        assert world.open_entries() == [(4, 1), (5, 1), (6, 1)]

    def test_is_done_once_for_an_epoch(self, world):
        world.append(*several(2))
        back = world.back()
        back.renumber(LAB, 1, 10)
        before = world.dump()
        back.renumber(LAB, 1, 10)
        back.renumber(LAB, 1, 50)
        assert world.dump() == before
        back.renumber(LAB, 2, 50)
        assert world.open_entries() == [(51, 1), (52, 1)]

    def test_leaves_a_batch_its_one_number(self, world):
        batch = submission(number=1, proposals=[create()] * 7)
        world.append(batch, submission(number=2))
        back = world.back()
        back.renumber(LAB, 1, 10)
        assert world.open_entries() == [(11, 7), (12, 1)]
        back.take(LAB, "t")
        assert back.close(LAB, "t", W1).entries[0].submission == batch

    def test_of_an_empty_redis_goes_on_from_the_committed_number(self, world):
        world.back().renumber(LAB, 1, 70)
        assert world.state() == {"seq": "70", "epoch": "1"}
        assert [one.number for one in world.append(*several(2))] == [71, 72]

    def test_is_exact_with_large_numbers(self, world):
        world.append(*several(2))
        world.back().renumber(LAB, 1, 2**52)
        assert world.open_entries() == [(2**52 + 1, 1), (2**52 + 2, 1)]

    def test_touches_no_other_partition(self, world):
        world.append(submission(number=1), submission(number=2, space="other"))
        world.back().renumber(LAB, 1, 10)
        assert world.open_entries("space:other") == [(1, 1)]


def reservation(title, *, window=W1, number=1):
    return Reservation.of(LAB, task_key_of(name=title), window, uuid7_at(number=number))


class TestReserve:
    def test_holds_what_is_free_and_what_is_its_own(self, world):
        back = world.back()
        reef, shoal = reservation("reef"), reservation("shoal")
        assert back.reserve([reef]) == {reef}
        assert back.reserve([reef, shoal]) == {reef, shoal}

    def test_holds_nothing_of_anothers(self, world):
        back = world.back()
        mine, theirs = reservation("reef", window=W1), reservation("reef", window=W2)
        back.reserve([theirs])
        assert back.reserve([mine, reservation("shoal")]) == {reservation("shoal")}
        assert world.redis.get(f"dibs:res:{theirs.digest}").decode() == theirs.token

    def test_is_the_proposals_own_within_a_window(self, world):
        back = world.back()
        back.reserve([reservation("reef", number=1)])
        assert back.reserve([reservation("reef", number=2)]) == frozenset()

    def test_lasts_for_milliseconds(self, world):
        back = world.back()
        reef = reservation("reef")
        back.reserve([reef])
        assert TTL_MS - 1000 < world.redis.pttl(f"dibs:res:{reef.digest}") <= TTL_MS

    def test_lasts_anew_for_a_rerun(self, world):
        back = world.back()
        reef = reservation("reef")
        back.reserve([reef])
        world.redis.pexpire(f"dibs:res:{reef.digest}", 500)
        back.reserve([reef])
        assert world.redis.pttl(f"dibs:res:{reef.digest}") > TTL_MS - 1000

    def test_of_nothing_asks_no_one(self, world):
        world.server.connected = False
        assert world.back().reserve([]) == frozenset()

    def test_that_fails_holds_nothing(self, world):
        world.server.connected = False
        assert world.back().reserve([reservation("reef")]) == frozenset()
        with pytest.raises(ConnectionError):
            world.back().take(LAB, "t")

    def test_that_came_later_than_its_own_end_holds_nothing(self, world, monkeypatch):
        ticks = iter([0.0, TTL_MS / 1000])
        monkeypatch.setattr(back_module, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
        assert world.back().reserve([reservation("reef")]) == frozenset()

    def test_names_each_key_and_each_space_apart(self):
        key = task_key_of(name="reef")
        tokens = {Reservation.of(partition, key, W1, uuid7_at(number=1)).digest for partition in ("space:a", "space:b")}
        assert len(tokens) == 2
        assert reservation("reef").digest != reservation("shoal").digest
        assert reservation("reef").token == f"{W1.hex}:{uuid7_at(number=1).hex}"


class TestReplies:
    def test_that_do_not_come_are_none_after_a_second(self, world, monkeypatch):
        assert front_module.REPLY_WAIT_SECONDS == 1
        monkeypatch.setattr(front_module, "REPLY_WAIT_SECONDS", 0.01)
        assert world.front(lambda front: front.replies("web-1")) == []

    def test_are_taken_sixty_five_messages_at_once(self, world):
        replies = [Reply(uuid7_at(number=number), ()) for number in range(1, 101)]
        world.redis.rpush("dibs:reply:web-1", *(encode_replies([reply]) for reply in replies))
        assert world.front(lambda front: front.replies("web-1")) == replies[:65]
        assert world.front(lambda front: front.replies("web-1")) == replies[65:]

    def test_of_another_web_process_stay_where_they_are(self, world, monkeypatch):
        monkeypatch.setattr(front_module, "REPLY_WAIT_SECONDS", 0.01)
        world.redis.rpush("dibs:reply:web-2", encode_replies([]))
        assert world.front(lambda front: front.replies("web-1")) == []
        assert world.redis.llen("dibs:reply:web-2") == 1
