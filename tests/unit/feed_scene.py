"""A hub in virtual time, on events, rights and connections that do as the test says."""

import asyncio
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from models.rules.plan import Event
from models.rules.spaces import Visibility
from models.store.feed import Page
from models.store.reads import Principal, Space
from tests.unit.virtual import now, run
from web.feed import PAGE_BYTES, Feed
from web.problems import Refusal

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
