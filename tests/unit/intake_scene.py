"""An intake with a Redis and a ledger of the test's own, in virtual time."""

import asyncio
from collections import deque
from contextlib import asynccontextmanager

import msgspec
import pytest
from redis import exceptions as redis_error

from models.rules.codes import Code
from models.rules.outcomes import Answer
from models.window.codec import Reply
from models.window.front import Appended, Verdict
from tests.unit.virtual import run
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
            raise redis_error.TimeoutError("the answer never came")
        return self.instance, answered

    async def open_partitions(self, wanted):
        self._refuse_when_down()
        return {one: self.open[one].partition for one in wanted if one in self.open}

    async def replies(self, web_id):
        assert web_id == "web-1"
        try:
            async with asyncio.timeout(1):
                found = await self.messages.get()
        except TimeoutError:
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
