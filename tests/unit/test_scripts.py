"""What enters a window: append, its limits, the job it queues, and the replies that come back."""

import json

import pytest

from models.window import front as front_module
from models.window import scripts
from models.window.codec import Reply, encode_replies
from models.window.front import Appended, Verdict
from tests.builders import ALPHA, BETA, create, submission, uuid7_at
from tests.unit.redis_world import LAB, QUEUE, W1, finish, several


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
        assert world.redis.hgetall("dibs:agents") == {ALPHA.encode(): b"6"}

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

    def test_keeps_the_time_of_the_oldest_that_waits(self, world, clock):
        world.append(submission(number=1))
        since = clock.ms
        clock.ms += 700
        world.append(submission(number=2), submission(number=3, space="other"))
        assert world.redis.zrange("dibs:dirty", 0, -1, withscores=True) == [
            (b"space:lab", since),
            (b"space:other", since + 700),
        ]

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
        two, one = submission(number=2, proposals=[create()] * 2, actor=BETA), submission(number=3)
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
            submission(number=2, proposals=[create()] * 2),
            submission(number=3, space="other"),
            submission(number=4, space="third"),
            submission(number=5, actor=BETA),
        ]
        assert [got.verdict for got in world.append(*sent, **limits)] == [
            Verdict.APPENDED,
            Verdict.AGENT_FULL,
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
        assert not world.redis.exists(f"dibs:rate:{ALPHA}")

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
        assert world.append(submission(number=9, actor=BETA), **self.LIMITS)[0].verdict is Verdict.APPENDED

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
        assert 500 < world.redis.pttl(f"dibs:rate:{ALPHA}") <= 1500


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
