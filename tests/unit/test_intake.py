"""Appending and waiting while everything works."""

import asyncio

import pytest
from psycopg_pool import PoolTimeout

from models.rules import ids
from models.rules.codes import Code
from models.rules.outcomes import Answer
from models.window.codec import Reply
from models.window.front import Appended, Verdict
from tests.builders import create, submission
from tests.unit.intake_scene import LOST, WAIT_MS, WON, play, refused
from tests.unit.virtual import now
from web.problems import Refusal


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
            assert problem.code == Code.ALLOCATION_PENDING
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

    def test_never_appends_for_one_whose_first_append_is_under_way(self):
        """It may still be refused, and a refusal says that nothing was written."""

        async def story(scene):
            await asyncio.sleep(0.9)
            scene.redis.seconds = 0.6
            scene.redis.verdicts.append(Appended(Verdict.OVER_RATE, 1500))
            sent = submission()
            with pytest.raises(Refusal) as refusal:
                await scene.submit(sent)
            assert refusal.value.problem.code is Code.RATE_LIMITED
            await asyncio.sleep(3)
            assert scene.redis.calls == [[(sent.id, False)]]

        play(story)

    def test_costs_nothing_when_no_one_waits(self):
        async def story(scene):
            await asyncio.sleep(10)
            assert (scene.ledger.asked, scene.redis.pings) == ([], 0)

        play(story)
