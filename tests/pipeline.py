"""A worker's processor and a web process's appends, driven step by step from one test."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import msgspec
import psycopg
from sqlalchemy import Engine, event

from models.ids import uuid7
from models.rules import ids
from models.rules.conflict import DeliveryMode
from models.rules.intents import CreateTask, Proposal, SlotDigest, Submission
from models.settings import Settings
from models.store.database import sync_engine
from models.window import back, front
from models.window.back import Back
from tests.stack import Agent, Board, Database
from tests.waiting import wait_for
from worker.leases import LeaseKeeper
from worker.process import Processor


def propose(
    board: Board,
    agent: Agent,
    *titles: str,
    batch: bool = False,
    key: str | None = None,
    mode: DeliveryMode = DeliveryMode.RESULT,
    fresh: UUID | None = None,
) -> Submission:
    """Return a submission as a web process makes it."""
    return Submission(
        id=ids.append_id(fresh or uuid7()),
        partition=board.partition,
        space=board.slug,
        actor=agent.id,
        key_id=agent.key_id,
        batch=batch,
        proposals=tuple(Proposal.of(CreateTask(title=title, delivery_mode=mode)) for title in titles),
        slots=() if key is None else (SlotDigest("k1", _digest(agent.id, key), _digest(*titles)),),
        reply_to="web",
    )


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()


class Pipeline:
    """One partition's pipeline without processes: ``append``, ``work``, then look at what is there."""

    def __init__(self, database: Database, redis_url: str, board: Board) -> None:
        self.database = database
        self.redis_url = redis_url
        self.board = board
        self.client = back.connect(redis_url, timeout_ms=5_000)
        self._engines: list[Engine] = []
        self._usual: Processor | None = None

    def append(self, *submissions: Submission, again: bool = False, **limits: int) -> list[front.Appended]:
        """Append submissions and return the verdicts."""
        settings = Settings(database_url="", redis_url=self.redis_url, secret_keys=(), **limits)

        async def go() -> list[front.Appended]:
            client = front.connect(self.redis_url, timeout_ms=5_000, connections=1)
            web = front.Front(client, settings, instance=uuid7().hex)
            try:
                _, verdicts = await web.append([(one, again) for one in submissions])
                return verdicts
            finally:
                await web.aclose()

        return asyncio.run(go())

    def back(self, *, lease_ms: int = 3_000, window_ttl_ms: int = 15_000, window_max: int = 500) -> Back:
        client = back.connect(self.redis_url, timeout_ms=5_000)
        return Back(client, lease_ms=lease_ms, window_ttl_ms=window_ttl_ms, window_max=window_max)

    def processor(
        self, *, probe: Callable[[str], None] = lambda _step: None, name: str = "test", lease_ms: int = 3_000, **options
    ) -> Processor:
        """Return a worker's processor with connections of its own."""
        engine = sync_engine(
            self.database.service_url, application_name=f"dibs-worker-{name}", timeout_ms=lease_ms * 4 // 5
        )
        self._engines.append(engine)
        several = [self.back(lease_ms=lease_ms, **options) for _ in range(3)]
        keeper = LeaseKeeper(several[2], lease_ms=lease_ms)
        return Processor(engine, several[0], several[1], keeper, name=name, probe=probe)

    @property
    def engine(self) -> Engine:
        """Return the engine of the processor that was made last."""
        return self._engines[-1]

    def work(self, processor: Processor | None = None, *, partition: str | None = None) -> int:
        """Process what waits on the board or in another partition, and return the number of windows."""
        if processor is None:
            processor = self._usual = self._usual or self.processor()
        return processor.process(partition or self.board.partition)

    def work_off(self) -> None:
        """Process until nothing waits: a turn ends early where Redis is found to have gone back."""
        wait_for("nothing to wait", lambda: self.work() == 0 and self.client.zcard("dibs:dirty") == 0)

    def outcomes(self, submission: Submission) -> list[tuple[int, str | None]]:
        """Return (status, code) of each proposal, by position."""
        rows = self.database.rows(
            "SELECT status, code FROM outcomes WHERE append_id = %s ORDER BY position", submission.id
        )
        return [(row["status"], row["code"]) for row in rows]

    def outcome(self, submission: Submission) -> tuple[int, str | None]:
        (found,) = self.outcomes(submission)
        return found

    def body(self, submission: Submission, position: int = 0) -> dict[str, Any]:
        """Return the answer's body of one proposal."""
        text = self.database.value(
            "SELECT body FROM outcomes WHERE append_id = %s AND position = %s", submission.id, position
        )
        return msgspec.json.decode(text)

    def titles(self) -> list[str]:
        """Return the titles of all tasks by id."""
        return [row["title"] for row in self.database.rows("SELECT title FROM tasks ORDER BY id")]

    def plant(self, script: str) -> None:
        """Run a script as the schema's owner."""
        with psycopg.connect(self.database.owner_url, autocommit=True) as connection:
            connection.execute(script)  # type: ignore[call-overload]

    def reservations(self) -> list[bytes]:
        return list(self.client.scan_iter("dibs:res:*"))

    def ledger(self) -> dict[str, list[dict[str, Any]]]:
        """Return every row that a window writes."""
        return {
            name: self.database.rows(f"SELECT t::text AS row FROM {name} t ORDER BY 1")
            for name in ("tasks", "occupancies", "events", "outcomes", "idempotency", "windows", "spaces")
        }

    def close(self) -> None:
        for engine in self._engines:
            engine.dispose()
        self.client.close()


@contextmanager
def counted_statements(engine: Engine) -> Iterator[list[str]]:
    """Collect all that an engine sends, BEGIN, COMMIT and ROLLBACK included."""
    sent: list[str] = []

    def statement(_connection, _cursor, text, *_rest) -> None:
        sent.append(" ".join(text.split())[:40])

    listeners: Sequence[tuple[str, Callable[..., None]]] = (
        ("before_cursor_execute", statement),
        ("begin", lambda _connection: sent.append("BEGIN")),
        ("commit", lambda _connection: sent.append("COMMIT")),
        ("rollback", lambda _connection: sent.append("ROLLBACK")),
    )
    for name, listener in listeners:
        event.listen(engine, name, listener)
    try:
        yield sent
    finally:
        for name, listener in listeners:
            event.remove(engine, name, listener)
