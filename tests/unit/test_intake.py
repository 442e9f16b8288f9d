"""The waiting side against a Redis and a ledger of the test's own, in virtual time."""

import asyncio
from collections import deque
from contextlib import asynccontextmanager

import msgspec
import psycopg
import pytest
from psycopg_pool import PoolTimeout
from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError  # noqa: A004 - the names they are raised by

from models.rules import ids
from models.rules.codes import Code
from models.rules.outcomes import Answer
from models.window.codec import Reply
from models.window.front import Appended, Verdict
from tests.builders import create, submission
from tests.unit.virtual import now, run
from web.intake import Intake
from web.problems import Refusal

WON = (Answer(status=201, body='{"id":1}', task_id=1),)
LOST = (Answer(status=409, body="{}", code=Code.CONFLICT_KEY_OCCUPIED, task_id=1),)
WAIT_MS = 10_000


class FakeRedis:
    """The front's side of Redis: what is open, and the replies on their way."""

    def __init__(self):
        self.instance = "first"
        self.down = None
        self.open = {}
        self.calls = []
        self.verdicts = deque()
        self.run_then_break = False
        self.seconds = 0.001
        self.messages = asyncio.Queue()
        self.pings = 0

    async def append(self, submissions):
        await asyncio.sleep(self.seconds)
        self._refuse_when_down()
        self.calls.append([(one.id, again) for one, again in submissions])
        answered = []
        for one, again in submissions:
            verdict = self.verdicts.popleft() if self.verdicts and not again else Appended(Verdict.APPENDED, 1)
            if verdict.verdict is Verdict.APPENDED and one.id in self.open:
                verdict = Appended(Verdict.ALREADY_OPEN, 0)
            if verdict.verdict is Verdict.APPENDED:
                self.open[one.id] = one
            answered.append(verdict)
        if self.run_then_break:
            self.run_then_break = False
            raise TimeoutError("the answer never came")
        return self.instance, answered

    async def open_partitions(self, wanted):
        self._refuse_when_down()
        return {one: self.open[one].partition for one in wanted if one in self.open}

    async def replies(self, web_id):
        assert web_id == "web-1"
        try:
            async with asyncio.timeout(1):
                found = await self.messages.get()
        except builtin_timeout:
            self._refuse_when_down()
            return []
        self._refuse_when_down()
        return found

    async def ping(self):
        self.pings += 1
        self._refuse_when_down()

    def _refuse_when_down(self):
        if self.down is not None:
            raise self.down

    def flush(self, instance="second"):
        self.open.clear()
        self.instance = instance

    def answer(self, sent, answers=WON):
        """Finish a submission: it is no longer open, and its reply is on its way."""
        del self.open[sent.id]
        self.messages.put_nowait([Reply(sent.id, answers)])

    @property
    def appended(self):
        return [one for call in self.calls for one in call]


builtin_timeout = asyncio.TimeoutError


class FakeLedger:
    """The pool's side of SQL: outcomes by submission, as the one statement that reads them answers."""

    def __init__(self):
        self.rows = {}
        self.down = None
        self.asked = []

    @asynccontextmanager
    async def connection(self):
        await asyncio.sleep(0.001)
        if self.down is not None:
            raise self.down
        yield self

    async def execute(self, sql, parameters):
        assert "FROM outcomes" in sql
        (self._wanted,) = parameters
        self.asked.append(self._wanted)
        return self

    async def fetchone(self):
        found = [row for one in self._wanted for row in self.rows.get(one, ())]
        return (msgspec.json.encode(found).decode(),)

    def decide(self, sent, answers=WON):
        self.rows[sent.id] = [
            {
                "append_id": sent.id,
                "position": position,
                "batch": sent.batch,
                "place": position,
                "received_seq": 1,
                "kind": "create_task",
                "actor": sent.actor,
                "status": answer.status,
                "code": answer.code,
                "body": answer.body,
                "replay_of": answer.replay_of,
                "task_id": answer.task_id,
                "key": None,
            }
            for position, answer in enumerate(answers)
        ]


class Scene:
    """An intake with its loops running, its Redis and its ledger."""

    def __init__(self):
        self.redis = FakeRedis()
        self.ledger = FakeLedger()
        self.intake = Intake(self.redis, self.ledger, web_id="web-1", wait_ms=WAIT_MS)

    def submit(self, sent):
        return asyncio.create_task(self.intake.submit(sent))

    async def appended(self, *sent):
        """Submit, and return the tasks once Redis has them."""
        tasks = [self.submit(one) for one in sent]
        await asyncio.sleep(0.1)
        assert all(one.id in self.redis.open for one in sent)
        return tasks


def play(story):
    """Run a story with a scene, and see that it ends with no one left waiting."""

    async def main():
        scene = Scene()
        loops = [asyncio.create_task(scene.intake.run_replies()), asyncio.create_task(scene.intake.run_look())]
        await story(scene)
        assert not scene.intake._waiting
        for loop in loops:
            assert not loop.done(), "a loop ended"
            loop.cancel()

    run(main())


async def refused(task):
    with pytest.raises(Refusal) as refusal:
        await task
    return refusal.value.problem


class TestReply:
    def test_of_the_worker_is_the_answer(self):
        async def story(scene):
            sent = submission()
            (task,) = await scene.appended(sent)
            scene.redis.answer(sent)
            assert await task == WON
            assert now() < 0.2
            assert scene.redis.calls == [[(sent.id, False)]]
            assert scene.ledger.asked == []

        play(story)

    def test_reaches_each_of_those_who_were_appended_together(self):
        async def story(scene):
            sent = [submission(number=number) for number in range(1, 31)]
            tasks = await scene.appended(*sent)
            assert scene.redis.calls == [[(one.id, False) for one in sent]]
            for one in reversed(sent):
                scene.redis.answer(one, (Answer(status=201, body=str(one.id)),))
            assert [answer.body for (answer,) in await asyncio.gather(*tasks)] == [str(one.id) for one in sent]

        play(story)

    def test_of_a_batch_has_an_answer_for_each_position(self):
        async def story(scene):
            sent = submission(proposals=[create(), create()])
            (task,) = await scene.appended(sent)
            scene.redis.answer(sent, WON + LOST)
            assert await task == WON + LOST

        play(story)

    def test_of_one_that_no_one_waits_for_is_nothing(self):
        async def story(scene):
            sent = submission(number=1)
            (task,) = await scene.appended(sent)
            scene.redis.messages.put_nowait([Reply(submission(number=2).id, LOST), Reply(sent.id, WON)])
            assert await task == WON

        play(story)

    def test_that_comes_twice_counts_once(self):
        async def story(scene):
            sent = submission()
            (task,) = await scene.appended(sent)
            scene.redis.messages.put_nowait([Reply(sent.id, WON), Reply(sent.id, LOST)])
            assert await task == WON

        play(story)

    def test_is_found_in_the_ledger_when_its_message_was_lost(self):
        async def story(scene):
            sent = submission()
            (task,) = await scene.appended(sent)
            del scene.redis.open[sent.id]
            scene.ledger.decide(sent)
            assert await task == WON
            assert now() <= 1.6
            assert scene.redis.appended == [(sent.id, False)]

        play(story)

    def test_of_a_batch_is_found_in_the_ledger_by_position(self):
        async def story(scene):
            sent = submission(proposals=[create(), create()])
            (task,) = await scene.appended(sent)
            scene.ledger.decide(sent, LOST + WON)
            assert await task == LOST + WON

        play(story)


class TestRefusal:
    @pytest.mark.parametrize(
        ("verdict", "number", "code", "retry_after_s"),
        [
            (Verdict.PARTITION_FULL, 0, Code.WINDOW_FULL, None),
            (Verdict.AGENT_FULL, 0, Code.RATE_LIMITED, None),
            (Verdict.OVER_RATE, 1, Code.RATE_LIMITED, 1),
            (Verdict.OVER_RATE, 1000, Code.RATE_LIMITED, 1),
            (Verdict.OVER_RATE, 1001, Code.RATE_LIMITED, 2),
        ],
    )
    def test_at_the_door_of_redis_is_told_at_once(self, verdict, number, code, retry_after_s):
        async def story(scene):
            for call in (scene.intake.submit, scene.intake.append_only):
                scene.redis.verdicts.append(Appended(verdict, number))
                problem = await refused(call(submission()))
                assert (problem.code, problem.retry_after_s) == (code, retry_after_s)
            assert now() < 0.1

        play(story)

    def test_of_one_leaves_the_others_of_the_same_append(self):
        async def story(scene):
            full, fine = submission(number=1), submission(number=2)
            scene.redis.verdicts += [Appended(Verdict.PARTITION_FULL, 0), Appended(Verdict.APPENDED, 4)]
            tasks = [scene.submit(full), scene.submit(fine)]
            assert (await refused(tasks[0])).code is Code.WINDOW_FULL
            scene.redis.answer(fine)
            assert await tasks[1] == WON

        play(story)

    def test_is_not_followed_by_a_second_attempt(self):
        async def story(scene):
            scene.redis.verdicts.append(Appended(Verdict.PARTITION_FULL, 0))
            await refused(scene.intake.submit(submission()))
            scene.redis.flush()
            await asyncio.sleep(5)
            assert len(scene.redis.appended) == 1

        play(story)

    def test_is_none_when_the_submission_was_there_already(self):
        async def story(scene):
            sent = submission()
            scene.redis.verdicts.append(Appended(Verdict.ALREADY_OPEN, 0))
            scene.redis.open[sent.id] = sent
            task = scene.submit(sent)
            await asyncio.sleep(0.1)
            scene.redis.answer(sent)
            assert await task == WON

        play(story)


class TestDeadline:
    def test_ends_the_wait_with_the_proposals_id(self):
        async def story(scene):
            sent = submission()
            problem = await refused(scene.intake.submit(sent))
            assert now() == pytest.approx(WAIT_MS / 1000)
            assert (problem.code, problem.retry_after_s) == (Code.ALLOCATION_PENDING, 1)
            assert problem.members == {"proposal_id": ids.format_proposal(sent.id)}
            # It stays where it is: giving up to wait takes nothing back.
            assert sent.id in scene.redis.open

        play(story)

    def test_holds_while_redis_is_silent(self):
        async def story(scene):
            scene.redis.seconds = 60
            assert (await refused(scene.intake.submit(submission()))).code is Code.ALLOCATION_PENDING
            assert now() == pytest.approx(WAIT_MS / 1000)

        play(story)

    def test_holds_while_sql_is_silent_about_it(self):
        async def story(scene):
            scene.ledger.down = PoolTimeout("no connection")
            assert (await refused(scene.intake.submit(submission()))).code is Code.ALLOCATION_PENDING
            assert now() == pytest.approx(WAIT_MS / 1000)

        play(story)

    def test_of_a_client_that_went_away_frees_its_place(self):
        async def story(scene):
            gone, stays = submission(number=1), submission(number=2)
            tasks = await scene.appended(gone, stays)
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            scene.redis.answer(gone)
            scene.redis.answer(stays)
            assert await tasks[1] == WON

        play(story)


class TestLostAppend:
    """A connection that breaks leaves open whether the script ran."""

    @pytest.mark.parametrize("error", [ConnectionError(), TimeoutError(), BusyLoadingError()])
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
            scene.redis.down = ConnectionError()
            problem = await refused(scene.intake.submit(sent))
            assert problem.code is Code.ALLOCATION_PENDING
            assert problem.write_occurred is msgspec.UNSET
            assert problem.members == {"proposal_id": ids.format_proposal(sent.id)}

        play(story)

    def test_of_one_for_whom_no_one_waits_is_unknown_at_once(self):
        async def story(scene):
            sent = submission()
            scene.redis.down = ConnectionError()
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
            (other,) = await scene.appended(fresh)
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
            (task,) = await scene.appended(sent)
            await asyncio.sleep(0.4)
            assert scene.ledger.asked == []
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
            assert scene.intake.reachable
            scene.redis.down = ConnectionError()
            await asyncio.sleep(1.1)
            assert not scene.intake.reachable
            problem = await refused(getattr(scene.intake, door)(submission(number=1)))
            assert (problem.code, problem.write_occurred) == (Code.COMMONS_RUNTIME_UNAVAILABLE, False)
            assert scene.redis.appended == []
            scene.redis.down = None
            await asyncio.sleep(0.6)
            assert scene.intake.reachable
            sent = submission(number=2)
            (task,) = await scene.appended(sent)
            scene.redis.answer(sent)
            assert await task == WON

        play(story)

    def test_of_redis_is_probed_four_times_a_second(self):
        async def story(scene):
            scene.redis.down = ConnectionError()
            await asyncio.sleep(10)
            assert 15 <= scene.redis.pings <= 40

        play(story)

    def test_of_redis_hides_no_outcome_that_sql_has(self):
        async def story(scene):
            sent = submission()
            (task,) = await scene.appended(sent)
            scene.redis.down = ConnectionError()
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


class TestLook:
    def test_is_one_statement_a_second_for_all_that_wait(self):
        async def story(scene):
            sent = [submission(number=number) for number in range(1, 21)]
            tasks = await scene.appended(*sent)
            await asyncio.sleep(4)
            assert 3 <= len(scene.ledger.asked) <= 5
            assert all(sorted(asked) == [one.id for one in sent] for asked in scene.ledger.asked)
            assert len(scene.redis.calls) == 1
            for one in sent:
                scene.redis.answer(one)
            await asyncio.gather(*tasks)

        play(story)

    def test_leaves_those_alone_who_have_only_come(self):
        async def story(scene):
            await asyncio.sleep(0.7)
            sent = submission()
            task = scene.submit(sent)
            await asyncio.sleep(0.4)
            assert scene.ledger.asked == []
            scene.redis.answer(sent)
            assert await task == WON

        play(story)

    def test_costs_nothing_when_no_one_waits(self):
        async def story(scene):
            await asyncio.sleep(10)
            assert (scene.ledger.asked, scene.redis.pings) == ([], 0)

        play(story)
