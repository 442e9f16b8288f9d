"""Who works on a partition, and what a window takes from it."""

import pytest

from models.window.back import LeaseLostError
from models.window.codec import UnknownFormatError
from tests.builders import create, submission, window_id
from tests.unit.redis_world import LAB, LEASE_MS, QUEUE, W1, W2, W3, finish, several


class TestLease:
    def test_is_one_holders(self, world):
        back = world.back()
        assert back.take(LAB, "t1") is not None
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
        assert (taken.epoch, taken.seq) == (4, 6)

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
        assert [(entry.received_seq, entry.submission) for entry in closed.entries] == [(11, sent)]
        assert closed.corrupt == 1


class TestRenumber:
    def test_puts_what_waits_above_what_is_committed_in_its_order(self, world):
        sent = several(4)
        world.append(*sent[:2])
        back = world.back()
        back.take(LAB, "t")
        back.close(LAB, "t", W1)
        world.append(*sent[2:])
        back.renumber(LAB, 2, 1000)
        # The window that was closed is open again: SQL may know its id with numbers of an epoch before.
        closed = back.close(LAB, "t", W2)
        assert closed.id == W2
        assert [(entry.received_seq, entry.submission) for entry in closed.entries] == [
            (1001 + number, one) for number, one in enumerate(sent)
        ]
        assert world.state() == {"seq": "1004", "open": "4", "epoch": "2", "window": str(W2)}

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
