"""Reservations, the end of a window, and the sweep that finds what was forgotten."""

from types import SimpleNamespace

import pytest
from redis import exceptions as redis_error

from models.rules.outcomes import Answer
from models.window import back as back_module
from models.window import scripts
from models.window.back import Reservation
from models.window.codec import Reply
from tests.builders import ALPHA, BETA, create, submission, task_key_of, uuid7_at, window_id
from tests.unit.redis_world import LAB, LEASE_MS, QUEUE, TTL_MS, W1, W2, finish, reservation, several


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
        with pytest.raises(redis_error.ConnectionError):
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


class TestFinish:
    def test_removes_the_window_and_counts_its_intents_out(self, world):
        world.append(submission(number=1, proposals=[create()] * 3), submission(number=2, actor=BETA))
        back = world.back()
        back.take(LAB, "t")
        closed = back.close(LAB, "t", W1)
        world.append(submission(number=3))
        finish(back, closed)
        assert world.state() == {"seq": "3", "open": "1"}
        assert world.redis.hgetall("dibs:agents") == {ALPHA.encode(): b"1"}
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

    def test_of_a_submission_that_stands_twice_in_the_window_counts_it_once(self, world):
        """As when Redis came back from a copy that was older than its index of proposals."""
        world.append(submission(proposals=[create()] * 3))
        world.redis.rpush("dibs:open:space:lab", world.redis.lindex("dibs:open:space:lab", 0))
        back = world.back()
        back.take(LAB, "t")
        closed = back.close(LAB, "t", W1)
        assert len(closed.entries) == 2
        finish(back, closed)
        assert world.state()["open"] == "0"

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
