"""The one RQ job there is, and a worker that runs nothing else.

Whoever may write to Redis may queue a job, so nothing in it is trusted: it calls the worker to a partition, no more.
Only the name of the one function counts, and it is compared, never imported; callbacks, webhooks, instances and
dependencies of a job are ignored.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec
import structlog
from redis import Redis, RedisError, ResponseError
from rq import Queue, SimpleWorker
from rq.exceptions import DequeueTimeout, NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus

from models.window.scripts import JOB_NAME, QUEUE

_PARTITION: Final = re.compile(r"[a-z]{1,8}:[a-z0-9-]{1,64}\Z")
_CALL: Final = msgspec.json.Decoder(tuple[str, None, tuple[str], dict[str, object]])
AWAY_SECONDS: Final = 0.5
log = structlog.get_logger(__name__)


class RefusedJobError(Exception):
    """A job that names anything but the one function with one partition."""


class WindowJob(Job):
    """A job stripped to the name of its function and its one short argument."""

    runner: ClassVar[Callable[[str], object]]

    @classmethod
    def fetch(cls, id: str, connection: Redis | None = None, serializer: Any = None) -> WindowJob:  # noqa: A002, ANN401
        """Return the job; one that is gone or malformed is dropped, for RQ would strand it and quit over it."""
        assert connection is not None
        try:
            job = super().fetch(id, connection=connection, serializer=serializer)
        except Exception as error:
            if isinstance(error, RedisError) and not isinstance(error, ResponseError):
                raise
            connection.lrem(Queue(QUEUE, connection=connection).intermediate_queue_key, 1, id)
            if connection.delete(cls.key_for(id)):
                log.warning("job_refused", job=id[:80], reason="malformed")
            raise NoSuchJobError from error
        assert isinstance(job, WindowJob)
        return job

    def restore(self, raw_data: Any) -> None:  # noqa: ANN401 - RQ's signature
        """Load the hash and forget everything in it that could name something to import or to call."""
        kept = (b"data", b"created_at", b"enqueued_at", b"origin", b"status", b"timeout")
        super().restore({name: value for name, value in raw_data.items() if name in kept})
        self.result_ttl = 0
        self.failure_ttl = 60

    def _deserialize_data(self) -> None:
        """Read the call strictly; one of any other shape is no call at all."""
        self._func_name, self._instance, self._args, self._kwargs = "", None, [], {}
        try:
            name, _, arguments, named = _CALL.decode(self.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if name == JOB_NAME and not named and _PARTITION.match(arguments[0]):
            self._func_name, self._args = name, list(arguments)

    def _execute(self) -> None:
        if self.func_name != JOB_NAME:
            log.warning("job_refused", job=self.id[:80], reason="not the allocator's")
            raise RefusedJobError("this worker runs process_window alone")
        type(self).runner(self.args[0])


class WindowWorker(SimpleWorker):
    """RQ's in-process worker on one queue, which stops between jobs and obeys no command from Redis.

    ``stopping`` is set by the process's own signal handlers: RQ's raise from wherever the main thread is, which
    strands a job that was just popped.
    """

    def __init__(
        self, connection: Redis, run: Callable[[str], object], *, name: str, stopping: threading.Event
    ) -> None:
        job_class = type("BoundWindowJob", (WindowJob,), {"runner": staticmethod(run)})
        super().__init__(
            [Queue(QUEUE, connection=connection, job_class=job_class, serializer=JSONSerializer)],
            name=name,
            connection=connection,
            job_class=job_class,
            serializer=JSONSerializer,
            default_result_ttl=0,
            log_job_description=False,
        )
        self._stopping = stopping

    def _install_signal_handlers(self) -> None:
        """Leave the handlers of the process in place."""

    def subscribe(self) -> None:
        """Listen to no commands: they come from whoever can publish, and stop or kill at any moment."""

    def check_for_suspension(self, burst: bool) -> None:  # noqa: FBT001 - RQ's signature
        """Work on: a suspended queue would keep its producers waiting. Draining is how work is paused."""

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """Return the next job, or None once a stop was asked for.

        RQ's own waits for minutes, and longer and longer while Redis is away; this one looks up twice a second.
        """
        del timeout, max_idle_time
        while not self._stopping.is_set():
            try:
                if self.get_state() != WorkerStatus.IDLE:
                    self.set_state(WorkerStatus.IDLE)
                self.heartbeat()
                if self.should_run_maintenance_tasks:
                    self.run_maintenance_tasks()  # type: ignore[no-untyped-call]
                found: tuple[Job, Queue] | None = self.queue_class.dequeue_any(
                    self._ordered_queues,
                    1,
                    connection=self.connection,
                    job_class=self.job_class,
                    serializer=self.serializer,
                    death_penalty_class=self.death_penalty_class,
                )
            except DequeueTimeout:
                continue
            except RedisError as error:
                log.warning("redis_unreachable", kind=type(error).__name__)
                self._stopping.wait(AWAY_SECONDS)
                continue
            if found is not None:
                return found
        return None
