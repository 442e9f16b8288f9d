"""What waits survives a lost append, a lost Redis, and outages."""

import asyncio

import msgspec
import psycopg
import pytest
from psycopg_pool import PoolTimeout
from redis import exceptions as redis_error
from structlog.testing import capture_logs

from models.rules import ids
from models.rules.codes import Code
from models.window.front import Appended, Verdict
from tests.builders import submission
from tests.unit.intake_scene import LOST, WON, play, refused
from tests.unit.virtual import now


class TestLostAppend:
    """A connection that breaks leaves open whether the script ran."""

    @pytest.mark.parametrize(
        "error", [redis_error.ConnectionError(), redis_error.TimeoutError(), redis_error.BusyLoadingError()]
    )
    def test_that_never_ran_is_repeated_under_its_own_id_and_past_the_limits(self, error):
        async def story(scene):
            sent = submission()
            scene.redis.down = error
            task = scene.submit(sent)
            await asyncio.sleep(2)
            assert not task.done()
            scene.redis.down = None
            scene.redis.verdicts.append(Appended(Verdict.OVER_RATE, 5000))
            await asyncio.sleep(1)
            assert scene.redis.appended == [(sent.id, True)]
            scene.redis.answer(sent)
            assert await task == WON

        play(story)

    def test_that_ran_is_not_repeated_while_it_is_open(self):
        async def story(scene):
            sent = submission()
            scene.redis.run_then_break = True
            task = scene.submit(sent)
            await asyncio.sleep(3)
            assert scene.redis.appended == [(sent.id, False)]
            scene.redis.answer(sent)
            assert await task == WON

        play(story)

    def test_that_ran_and_was_decided_is_answered_from_the_ledger(self):
        async def story(scene):
            sent = submission()
            scene.redis.run_then_break = True
            task = scene.submit(sent)
            await asyncio.sleep(0.01)
            del scene.redis.open[sent.id]
            scene.ledger.decide(sent, LOST)
            assert await task == LOST
            assert scene.redis.appended == [(sent.id, False)]
            assert now() < 1

        play(story)

    def test_is_still_unknown_when_the_time_is_up(self):
        async def story(scene):
            sent = submission()
            scene.redis.down = redis_error.ConnectionError()
            problem = await refused(scene.intake.submit(sent))
            assert problem.code is Code.ALLOCATION_PENDING
            assert problem.write_occurred is msgspec.UNSET
            assert problem.members == {"proposal_id": ids.format_proposal(sent.id)}

        play(story)

    def test_of_one_for_whom_no_one_waits_is_unknown_at_once(self):
        async def story(scene):
            sent = submission()
            scene.redis.down = redis_error.ConnectionError()
            problem = await refused(scene.intake.append_only(sent))
            assert problem.code is Code.ALLOCATION_PENDING
            assert problem.members == {"proposal_id": ids.format_proposal(sent.id)}
            assert now() < 0.1

        play(story)


class TestLostRedis:
    def test_with_all_its_windows_gets_what_waits_again(self):
        async def story(scene):
            sent = [submission(number=number) for number in (1, 2, 3)]
            tasks = await scene.appended(*sent)
            await asyncio.sleep(2)
            scene.redis.flush()
            await asyncio.sleep(1.1)
            assert sorted(scene.redis.calls[1]) == sorted((one.id, True) for one in sent)
            for one in sent:
                scene.redis.answer(one)
            assert await asyncio.gather(*tasks) == [WON] * 3
            assert len(scene.redis.calls) == 2

        play(story)

    def test_is_noticed_by_the_next_append_that_meets_another_instance(self):
        async def story(scene):
            waits = submission(number=1)
            (task,) = await scene.appended(waits)
            await asyncio.sleep(1)
            scene.redis.flush()
            fresh = submission(number=2)
            with capture_logs() as logs:
                (other,) = await scene.appended(fresh)
            assert [one["event"] for one in logs] == ["redis_instance_changed"]
            await asyncio.sleep(0.4)
            assert (waits.id, True) in scene.redis.appended
            assert (fresh.id, True) not in scene.redis.appended
            for one in (waits, fresh):
                scene.redis.answer(one)
            assert await asyncio.gather(task, other) == [WON, WON]

        play(story)

    def test_is_not_what_the_first_append_of_a_process_sees(self):
        async def story(scene):
            sent = submission()
            with capture_logs() as logs:
                (task,) = await scene.appended(sent)
            await asyncio.sleep(0.4)
            assert (logs, scene.ledger.asked) == ([], [])
            scene.redis.answer(sent)
            assert await task == WON

        play(story)

    def test_after_the_commit_loses_no_answer(self):
        async def story(scene):
            sent = submission()
            (task,) = await scene.appended(sent)
            scene.redis.flush()
            scene.ledger.decide(sent)
            assert await task == WON
            await asyncio.sleep(1)
            assert scene.redis.appended == [(sent.id, False)]

        play(story)

    def test_between_the_two_looks_is_a_repeat_that_the_ledger_answers(self):
        """Decided and cleaned up after the ledger was read and before Redis was: appended again, and only answered."""

        async def story(scene):
            sent = submission()
            (task,) = await scene.appended(sent)
            del scene.redis.open[sent.id]
            await asyncio.sleep(1.5)
            assert scene.redis.appended == [(sent.id, False), (sent.id, True)]
            scene.redis.answer(sent)
            assert await task == WON

        play(story)


class TestOutage:
    @pytest.mark.parametrize("door", ["submit", "append_only"])
    def test_of_redis_shuts_the_door_until_it_answers_again(self, door):
        async def story(scene):
            scene.redis.down = redis_error.ConnectionError()
            await asyncio.sleep(1.1)
            problem = await refused(getattr(scene.intake, door)(submission(number=1)))
            assert (problem.code, problem.write_occurred) == (Code.COMMONS_RUNTIME_UNAVAILABLE, False)
            assert scene.redis.appended == []
            scene.redis.down = None
            await asyncio.sleep(0.6)
            sent = submission(number=2)
            (task,) = await scene.appended(sent)
            scene.redis.answer(sent)
            assert await task == WON

        play(story)

    def test_of_redis_is_probed_four_times_a_second(self):
        async def story(scene):
            scene.redis.down = redis_error.ConnectionError()
            await asyncio.sleep(10)
            assert 15 <= scene.redis.pings <= 40

        play(story)

    def test_of_redis_hides_no_outcome_that_sql_has(self):
        async def story(scene):
            sent = submission()
            (task,) = await scene.appended(sent)
            scene.redis.down = redis_error.ConnectionError()
            await asyncio.sleep(2)
            scene.ledger.decide(sent)
            assert await task == WON
            assert now() < 4

        play(story)

    @pytest.mark.parametrize(
        "error",
        [
            PoolTimeout("no connection"),
            psycopg.OperationalError("gone"),
            psycopg.InterfaceError("closed"),
            psycopg.errors.AdminShutdown("restart"),
            psycopg.errors.UndefinedTable("not migrated"),
            psycopg.errors.ReadOnlySqlTransaction("standby"),
        ],
    )
    def test_of_sql_ends_no_loop(self, error):
        async def story(scene):
            sent = submission()
            (task,) = await scene.appended(sent)
            scene.ledger.down = error
            scene.ledger.decide(sent)
            await asyncio.sleep(4)
            assert not task.done()
            scene.ledger.down = None
            assert await task == WON

        play(story)
