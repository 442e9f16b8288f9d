"""The hub and its readers, in virtual time: what is told, to whom, and who is cut."""

import asyncio
import itertools
import json
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg_pool import PoolTimeout

from models.rules.codes import Code
from models.rules.plan import Event
from models.rules.spaces import Visibility
from models.store.feed import Page
from models.store.reads import Principal, Space
from tests.unit.virtual import now, run
from web.feed import AGENT_READERS_MAX, ANONYMOUS_READERS_MAX, PAGE_BYTES, READERS_MAX, TICK_SECONDS, Feed
from web.problems import Refusal
from web.readers import CHUNK_BYTES, END_SECONDS, QUEUE_BYTES, QUEUE_EVENTS, STALL_SECONDS, chunk

LAB = Space(id=7, slug="lab", visibility=Visibility.PUBLIC)
POND = Space(id=8, slug="pond", visibility=Visibility.MEMBERS)
AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
LONG = 5.0
STEPS = ("commit", "answer the oldest", "answer the newest")


def principal(agent="alpha"):
    return Principal(
        key_id=f"key_{agent}",
        secret_sha256=b"",
        operator=False,
        expires_at=None,
        revoked=False,
        agent_id=agent,
        handle=agent,
        active=True,
        listed=True,
    )


class Ledger:
    """Events as SQL has them. With ``gated`` set, each call is parked until ``answer``."""

    def __init__(self):
        self.events = {LAB.id: [], POND.id: []}
        self.calls = []
        self.fault = None
        self.gated = False
        self.late = True
        self.parked = []

    def happen(self, space=LAB, *, count=1, data="{}"):
        for _ in range(count):
            number = len(self.events[space.id]) + 1
            self.events[space.id].append(
                Event(number=number, type="task_created", at=AT, actor="alpha", task_id=number, data=data)
            )

    async def heads(self, space_ids):
        return await self._answered(("heads", tuple(space_ids)), lambda: {n: len(self.events[n]) for n in space_ids})

    async def page(self, space_id, after, *, limit, max_bytes):
        assert max_bytes == PAGE_BYTES

        def found():
            events = self.events[space_id][after:]
            return Page(tuple(events[:limit]), has_more=len(events) > limit)

        return await self._answered(("page", space_id, after), found)

    async def _answered(self, call, find):
        self.calls.append(call)
        if self.fault is not None:
            raise self.fault
        if not self.gated:
            return find()
        # A statement sees what was committed when it began, or as late as when it ends.
        seen = find()
        answer = asyncio.get_running_loop().create_future()
        self.parked.append(answer)
        await answer
        return find() if self.late else seen

    def answer(self, position):
        if self.parked:
            self.parked.pop(position).set_result(None)

    def step(self, name):
        match name:
            case "commit":
                self.happen()
            case "answer the oldest":
                self.answer(0)
            case "answer the newest":
                self.answer(-1)

    def open_gate(self):
        self.gated = False
        while self.parked:
            self.answer(0)


class Directory:
    """Everybody may read, but for the keys in ``refused``."""

    def __init__(self):
        self.fresh = True
        self.refused = {}
        self.asked = 0

    async def authenticate_optional(self, key):
        self.asked += 1
        if key in self.refused:
            raise Refusal(self.refused[key])
        return None if key is None else principal(key)

    async def space(self, slug, found):
        assert found is None or found.agent_id
        return LAB if slug == LAB.slug else POND


class Wire:
    def __init__(self):
        self.aborted_at = None
        self.lost = None

    def abort(self):
        self.aborted_at = now()

    def when_lost(self, call):
        self.lost = call


class Scene:
    def __init__(self):
        self.ledger = Ledger()
        self.directory = Directory()
        self.feed = Feed(self.directory, self.ledger)
        self.tasks = []

    async def open(self, space=LAB, *, after=None, agent="alpha", wire=None):
        found = None if agent is None else principal(agent)
        return await self.feed.open(space, key=agent, principal=found, after=after, wire=wire)

    def listen(self, reader):
        """Take all that the stream says, as fast as it comes, as a server would."""
        said = Said()

        async def go():
            try:
                async for data in reader:
                    said.take(data)
            finally:
                await reader.close()
            said.ended_at = now()

        self.tasks.append(asyncio.create_task(go()))
        return said


class Said:
    """What a stream said, and when."""

    def __init__(self):
        self.chunks = []
        self.ended_at = None

    def take(self, data):
        self.chunks.append((now(), data))

    @property
    def numbers(self):
        return [
            int(found) for _, data in self.chunks for found in re.findall(rb"^id: (\d+)\nevent", data, re.MULTILINE)
        ]

    @property
    def beats(self):
        return [at for at, data in self.chunks if data == b":\n\n"]


@asynccontextmanager
async def hub(scene):
    running = asyncio.create_task(scene.feed.run())
    try:
        yield
        assert not running.done(), "the hub ended"
    finally:
        for task in (running, *scene.tasks):
            task.cancel()
        ended = await asyncio.gather(running, *scene.tasks, return_exceptions=True)
    for error in ended:
        if error is not None and not isinstance(error, asyncio.CancelledError):
            raise error


def play(story):
    async def go():
        scene = Scene()
        async with hub(scene):
            await story(scene)

    run(go())


class TestEvent:
    def test_is_one_line_of_json_under_its_number(self):
        data = '{"title": "two\\nlines",\r\n "body" : ["\u2028", 1.50, 12345678901234567890]}'
        event = Event(number=41, type="task_created", at=AT, actor="alpha", task_id=None, data=data)
        number, said = chunk(event)
        assert number == 41
        head, kind, body, *rest = said.decode().split("\n")
        assert (head, kind, rest) == ("id: 41", "event: task_created", ["", ""])
        assert "\r" not in body
        assert json.loads(body.removeprefix("data: ")) == {
            "number": 41,
            "type": "task_created",
            "at": "2026-03-04T05:06:07Z",
            "actor": "alpha",
            "task_id": None,
            "data": json.loads(data),
        }
        assert "12345678901234567890" in body


class TestPosition:
    def test_begins_behind_what_was_seen(self):
        async def story(scene):
            scene.ledger.happen(count=150)
            said = scene.listen(await scene.open(after=20))
            await asyncio.sleep(LONG)
            scene.ledger.happen(count=3)
            await asyncio.sleep(LONG)
            assert said.numbers == list(range(21, 154))
            assert said.chunks[0][1] == b"retry: 1000\nid: 20\n\n"

        play(story)

    def test_is_now_where_none_is_given(self):
        async def story(scene):
            scene.ledger.happen(count=5)
            said = scene.listen(await scene.open())
            await asyncio.sleep(LONG)
            assert said.numbers == []
            # The client knows where it stands though it has seen no event yet.
            assert said.chunks[0][1] == b"retry: 1000\nid: 5\n\n"
            scene.ledger.happen(count=2)
            await asyncio.sleep(LONG)
            assert said.numbers == [6, 7]

        play(story)

    def test_ahead_of_all_events_waits_for_its_turn(self):
        async def story(scene):
            scene.ledger.happen(count=2)
            said = scene.listen(await scene.open(after=4))
            scene.ledger.happen(count=4)
            await asyncio.sleep(LONG)
            assert said.numbers == [5, 6]

        play(story)

    @pytest.mark.parametrize("late", [False, True])
    def test_in_the_past_joins_the_present_under_every_interleaving(self, late, monkeypatch):
        """Events happen, and each statement of hub and reader begins and ends, in every order of five steps."""

        monkeypatch.setattr("web.feed.PAGE_EVENTS", 2)

        async def story(scene, steps):
            scene.ledger.late = late
            scene.ledger.happen(count=3)
            first = scene.listen(await scene.open())
            await asyncio.sleep(LONG)
            scene.ledger.gated = True
            scene.ledger.happen()
            opened = asyncio.create_task(scene.open(after=1))
            for step in steps:
                await asyncio.sleep(TICK_SECONDS * 1.5)
                scene.ledger.step(step)
            scene.ledger.open_gate()
            second = scene.listen(await opened)
            await asyncio.sleep(LONG)
            scene.ledger.happen()
            await asyncio.sleep(LONG)
            last = len(scene.ledger.events[LAB.id])
            assert first.numbers == list(range(4, last + 1))
            assert second.numbers == list(range(2, last + 1))

        for several in itertools.product(STEPS, repeat=5):
            play(lambda scene, several=several: story(scene, several))

    @pytest.mark.parametrize("late", [False, True])
    def test_in_the_past_joins_while_it_reads(self, late, monkeypatch):
        """As above, but the reader is there already and reads one page after the other between the steps."""

        monkeypatch.setattr("web.feed.PAGE_EVENTS", 2)

        async def story(scene, steps):
            scene.ledger.late = late
            scene.ledger.happen(count=4)
            others = scene.listen(await scene.open(after=0))
            await asyncio.sleep(LONG)
            reader = await scene.open(after=0)
            scene.ledger.gated = True
            said = scene.listen(reader)
            for step in steps:
                await asyncio.sleep(TICK_SECONDS * 1.5)
                scene.ledger.step(step)
            scene.ledger.open_gate()
            await asyncio.sleep(LONG)
            every = list(range(1, len(scene.ledger.events[LAB.id]) + 1))
            assert said.numbers == every
            assert others.numbers == every

        for several in itertools.product(STEPS, repeat=5):
            play(lambda scene, several=several: story(scene, several))


class TestQueue:
    def test_that_is_full_cuts_that_reader_alone(self):
        async def story(scene):
            wires = [Wire() for _ in range(3)]
            slow = await scene.open(wire=wires[0])
            await anext(slow)
            quick = scene.listen(await scene.open(wire=wires[1]))
            elsewhere = scene.listen(await scene.open(POND, wire=wires[2]))
            for _ in range(QUEUE_EVENTS):
                scene.ledger.happen()
                await asyncio.sleep(0)
            await asyncio.sleep(LONG)
            assert wires[0].aborted_at is None, "cut before the queue was full"
            scene.ledger.happen()
            scene.ledger.happen(POND)
            await asyncio.sleep(LONG)
            assert wires[0].aborted_at is not None
            with pytest.raises(StopAsyncIteration):
                await anext(slow)
            await slow.close()
            scene.ledger.happen(count=3)
            await asyncio.sleep(LONG)
            assert quick.numbers == list(range(1, QUEUE_EVENTS + 5))
            assert elsewhere.numbers == [1]
            assert [wire.aborted_at for wire in wires[1:]] == [None, None]
            # From the last number that it saw it misses nothing.
            again = scene.listen(await scene.open(after=0))
            await asyncio.sleep(LONG)
            assert again.numbers == list(range(1, QUEUE_EVENTS + 5))

        play(story)

    def test_is_bounded_in_bytes_too(self):
        async def story(scene):
            wire = Wire()
            slow = await scene.open(wire=wire)
            await anext(slow)
            large = json.dumps({"body": "x" * (QUEUE_BYTES // 4)})
            for _ in range(4):
                scene.ledger.happen(data=large)
                await asyncio.sleep(LONG)
            assert wire.aborted_at is None
            scene.ledger.happen(data=large)
            await asyncio.sleep(LONG)
            assert wire.aborted_at is not None

        play(story)

    def test_takes_any_burst_for_a_reader_that_reads(self):
        async def story(scene):
            wire = Wire()
            said = scene.listen(await scene.open(wire=wire))
            scene.ledger.happen(count=20 * QUEUE_EVENTS)
            await asyncio.sleep(LONG)
            assert said.numbers == list(range(1, 20 * QUEUE_EVENTS + 1))
            assert wire.aborted_at is None

        play(story)

    def test_is_handed_over_in_chunks_of_bounded_size(self):
        async def story(scene):
            scene.ledger.happen(count=40, data=json.dumps({"body": "x" * 5000}))
            scene.ledger.happen(data=json.dumps({"body": "y" * (2 * CHUNK_BYTES)}))
            scene.ledger.happen(count=2)
            said = scene.listen(await scene.open(after=0))
            await asyncio.sleep(LONG)
            assert said.numbers == list(range(1, 44))
            sizes = [len(data) for _, data in said.chunks]
            assert sorted(sizes)[-2] <= CHUNK_BYTES
            assert len(sizes) < 9

        play(story)


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
