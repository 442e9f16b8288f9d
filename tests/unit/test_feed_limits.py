"""The streams of the feed in virtual time: heartbeats, rights, limits and ends, and what they cost in SQL."""

import asyncio

import psycopg
import pytest
from psycopg_pool import PoolTimeout

from models.rules.codes import Code
from tests.unit.feed_scene import LAB, LONG, POND, Wire, play
from tests.unit.virtual import now
from web.feed import AGENT_READERS_MAX, ANONYMOUS_READERS_MAX, READERS_MAX, TICK_SECONDS
from web.problems import Refusal
from web.readers import END_SECONDS, QUEUE_EVENTS, STALL_SECONDS


class TestHeartbeat:
    def test_comes_when_nothing_else_did_for_its_time(self):
        async def story(scene):
            said = scene.listen(await scene.open())
            await asyncio.sleep(35)
            assert said.beats == pytest.approx([10, 20, 30], abs=0.01)
            scene.ledger.happen()
            await asyncio.sleep(15)
            (told,) = (at for at, data in said.chunks if b"event: " in data)
            assert said.beats[3:] == pytest.approx([told + 10], abs=0.01)

        play(story)

    def test_goes_on_while_sql_is_away_and_the_stream_after_it(self):
        async def story(scene):
            scene.ledger.happen(count=100)
            readers = [await scene.open(after=after) for after in (0, None)]
            scene.ledger.fault = psycopg.OperationalError()
            behind, live = map(scene.listen, readers)
            for fault in (psycopg.OperationalError(), PoolTimeout()):
                scene.ledger.fault = fault
                await asyncio.sleep(25.5)
            assert all(len(said.beats) == 5 for said in (behind, live))
            scene.ledger.fault = None
            scene.ledger.happen()
            await asyncio.sleep(LONG)
            assert behind.numbers == list(range(1, 102))
            assert live.numbers == [101]

        play(story)


class TestRight:
    @pytest.mark.parametrize("code", [Code.CREDENTIAL_INVALID, Code.SPACE_NOT_FOUND])
    def test_that_is_lost_ends_the_stream_soon(self, code):
        async def story(scene):
            said, other = [scene.listen(await scene.open(agent=name, wire=Wire())) for name in ("alpha", "beta")]
            await asyncio.sleep(LONG)
            scene.directory.refused["alpha"] = code
            lost_at = now()
            scene.ledger.happen()
            await asyncio.sleep(LONG)
            assert said.ended_at - lost_at < 1.1
            scene.ledger.happen()
            await asyncio.sleep(LONG)
            assert 2 not in said.numbers
            assert other.numbers == [1, 2]
            assert other.ended_at is None

        play(story)

    def test_that_cannot_be_looked_up_is_not_lost(self):
        async def story(scene):
            said = scene.listen(await scene.open())
            scene.directory.refused["alpha"] = Code.COMMONS_RUNTIME_UNAVAILABLE
            await asyncio.sleep(LONG)
            scene.directory.refused.clear()
            scene.ledger.happen()
            await asyncio.sleep(LONG)
            assert said.numbers == [1]

        play(story)

    def test_that_was_lost_in_an_outage_shows_nothing_of_it(self):
        async def story(scene):
            said = scene.listen(await scene.open())
            await asyncio.sleep(LONG)
            scene.directory.fresh = False
            scene.directory.refused["alpha"] = Code.CREDENTIAL_INVALID
            scene.ledger.happen()
            await asyncio.sleep(LONG)
            assert said.ended_at is None
            scene.directory.fresh = True
            await asyncio.sleep(LONG)
            assert said.ended_at is not None
            assert said.numbers == []

        play(story)

    @pytest.mark.parametrize("code", [Code.CREDENTIAL_INVALID, Code.COMMONS_RUNTIME_UNAVAILABLE])
    def test_is_looked_at_before_each_page_of_the_past(self, code):
        async def story(scene):
            scene.ledger.happen(count=100)
            reader = await scene.open(after=0)
            scene.directory.refused["alpha"] = code
            said = scene.listen(reader)
            await asyncio.sleep(LONG)
            assert said.numbers == []
            assert (said.ended_at is not None) == (code is Code.CREDENTIAL_INVALID)

        play(story)

    def test_is_looked_up_once_for_all_streams_of_a_key(self):
        async def story(scene):
            for _ in range(AGENT_READERS_MAX):
                scene.listen(await scene.open())
            await asyncio.sleep(10)
            assert 10 <= scene.directory.asked <= 21

        play(story)


class TestLimit:
    @pytest.mark.parametrize(("agent", "most"), [("alpha", AGENT_READERS_MAX), (None, ANONYMOUS_READERS_MAX)])
    def test_is_one_for_each_agent_and_one_for_all_without_a_key(self, agent, most):
        async def story(scene):
            readers = [await scene.open(agent=agent) for _ in range(most)]
            with pytest.raises(Refusal) as refused:
                await scene.open(agent=agent)
            assert refused.value.problem.code is Code.RATE_LIMITED
            scene.listen(await scene.open(agent="beta"))
            await readers[0].close()
            await readers[0].close()
            scene.listen(await scene.open(agent=agent))
            with pytest.raises(Refusal):
                await scene.open(agent=agent)

        play(story)

    def test_is_one_for_the_process(self):
        async def story(scene):
            several = [await scene.open(agent=f"agent-{number // AGENT_READERS_MAX}") for number in range(READERS_MAX)]
            with pytest.raises(Refusal) as refused:
                await scene.open(agent="beta")
            assert refused.value.problem.code is Code.RATE_LIMITED
            await several[0].close()
            scene.listen(await scene.open(agent="beta"))

        play(story)

    def test_counts_nobody_that_could_not_begin(self):
        async def story(scene):
            scene.ledger.fault = psycopg.OperationalError()
            for _ in range(AGENT_READERS_MAX + 1):
                with pytest.raises(psycopg.OperationalError):
                    await scene.open()
            scene.ledger.fault = None
            scene.listen(await scene.open())

        play(story)


class TestEnd:
    def test_of_the_process_ends_every_stream_at_once(self):
        async def story(scene):
            scene.ledger.happen(count=100)
            said = [scene.listen(await scene.open(after=after, wire=Wire())) for after in (None, 0)]
            wire = Wire()
            stuck = await scene.open(after=0, wire=wire)
            await anext(stuck)
            await asyncio.sleep(LONG)
            stopped_at = now()
            scene.feed.stop()
            late = await scene.open(after=0, wire=Wire())
            said.append(scene.listen(late))
            await asyncio.sleep(LONG)
            assert [one.ended_at for one in said] == [stopped_at] * 3
            assert wire.aborted_at == pytest.approx(stopped_at + END_SECONDS)
            assert said[2].numbers == []
            await stuck.close()

        play(story)

    def test_that_is_taken_in_time_leaves_the_connection_alone(self):
        async def story(scene):
            wire = Wire()
            scene.listen(await scene.open(wire=wire))
            await asyncio.sleep(LONG)
            scene.feed.stop()
            await asyncio.sleep(LONG)
            assert wire.aborted_at is None

        play(story)

    def test_comes_to_a_peer_that_takes_nothing_though_nothing_happens(self):
        async def story(scene):
            scene.ledger.happen(count=2)
            wire, other = Wire(), Wire()
            stuck = await scene.open(after=0, wire=wire)
            scene.listen(await scene.open(wire=other))
            await anext(stuck)
            await anext(stuck)
            since = now()
            await asyncio.sleep(2 * STALL_SECONDS)
            assert wire.aborted_at == pytest.approx(since + STALL_SECONDS, abs=2 * TICK_SECONDS)
            assert other.aborted_at is None

        play(story)

    def test_comes_with_the_loss_of_the_connection(self):
        async def story(scene):
            wire = Wire()
            said = scene.listen(await scene.open(wire=wire))
            await asyncio.sleep(LONG)
            lost_at = now()
            wire.lost()
            await asyncio.sleep(LONG)
            assert said.ended_at == lost_at
            # And its place is free.
            for _ in range(AGENT_READERS_MAX):
                scene.listen(await scene.open())

        play(story)

    def test_comes_to_one_that_is_lost_while_it_begins(self):
        async def story(scene):
            wire = Wire()
            scene.ledger.gated = True
            opened = asyncio.create_task(scene.open(wire=wire))
            await asyncio.sleep(LONG)
            wire.lost()
            scene.ledger.open_gate()
            said = scene.listen(await opened)
            scene.ledger.happen(count=2 * QUEUE_EVENTS)
            await asyncio.sleep(LONG)
            assert said.ended_at is not None
            assert said.numbers == []
            assert wire.aborted_at is None
            # Nothing is kept of it: its space is not followed any more.
            scene.ledger.calls.clear()
            scene.listen(await scene.open(POND))
            await asyncio.sleep(LONG)
            assert {*scene.ledger.calls} == {("heads", (POND.id,))}

        play(story)

    def test_of_one_stream_leaves_those_who_came_meanwhile(self):
        """The space's last reader ends, another comes, and only then the first one is closed."""

        async def story(scene):
            first = await scene.open(wire=Wire())
            second = await scene.open(wire=Wire())
            first.end()
            second.end()
            await second.close()
            said = scene.listen(await scene.open())
            await first.close()
            scene.ledger.happen()
            await asyncio.sleep(LONG)
            assert said.numbers == [1]

        play(story)


class TestSql:
    def test_is_asked_one_question_a_tick_for_all_spaces_and_none_without_readers(self):
        async def story(scene):
            await asyncio.sleep(LONG)
            assert scene.ledger.calls == []
            readers = [await scene.open(space) for space in (LAB, POND) for _ in range(AGENT_READERS_MAX // 2)]
            scene.ledger.calls.clear()
            await asyncio.sleep(10)
            assert {*scene.ledger.calls} == {("heads", (LAB.id, POND.id))}
            assert len(scene.ledger.calls) <= 10 / TICK_SECONDS + 1
            scene.ledger.calls.clear()
            scene.ledger.happen(count=2)
            await asyncio.sleep(10)
            # What is new is read once for all of them.
            assert [call for call in scene.ledger.calls if call[0] == "page"] == [("page", LAB.id, 0)]
            for reader in readers:
                await reader.close()
            scene.ledger.calls.clear()
            await asyncio.sleep(10)
            assert scene.ledger.calls == []

        play(story)

    def test_tells_what_is_new_within_a_tick(self):
        async def story(scene):
            said = scene.listen(await scene.open())
            await asyncio.sleep(LONG)
            scene.ledger.happen()
            happened_at = now()
            await asyncio.sleep(LONG)
            told_at = said.chunks[-1][0]
            assert told_at - happened_at <= TICK_SECONDS

        play(story)

    def test_serves_few_that_catch_up_at_a_time(self):
        async def story(scene):
            scene.ledger.happen(count=10)
            several = [await scene.open(after=0, agent=f"agent-{number}") for number in range(50)]
            scene.ledger.gated = True
            said = [scene.listen(reader) for reader in several]
            await asyncio.sleep(LONG)
            assert sum(call[0] == "page" for call in scene.ledger.calls) <= 2
            scene.ledger.open_gate()
            await asyncio.sleep(LONG)
            assert all(one.numbers == list(range(1, 11)) for one in said)

        play(story)
