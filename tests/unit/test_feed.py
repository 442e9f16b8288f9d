"""What the hub tells its readers, in virtual time, and who of them is cut."""

import asyncio
import itertools
import json

import pytest

from models.rules.plan import Event
from tests.unit.feed_scene import AT, LAB, LONG, POND, STEPS, Wire, play
from web.feed import TICK_SECONDS
from web.readers import CHUNK_BYTES, QUEUE_BYTES, QUEUE_EVENTS, chunk


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
