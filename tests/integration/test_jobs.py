"""The queue in Redis belongs to whoever can write to it: a worker runs one function with one short argument."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.registry import clean_registries
from rq.serializers import JSONSerializer
from structlog.testing import capture_logs

from models.window.scripts import JOB_NAME, QUEUE
from tests.pipeline import Pipeline, propose
from tests.stack import TITLES
from worker.jobs import WindowJob, WindowWorker

PLANTED = """
import pathlib
def fire(*arguments, **options):
    pathlib.Path(__file__).with_name("fired").touch()
fire()
"""
JOB = {
    "data": f'["{JOB_NAME}",null,["space:wanted"],{{}}]',
    "created_at": "2026-01-01T00:00:00.000000Z",
    "enqueued_at": "2026-01-01T00:00:00.000000Z",
    "origin": QUEUE,
    "status": "queued",
    "timeout": "600",
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a trace when it is imported and when its function is called."""
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "fired"


def put(client: redis.Redis, name: str, fields: dict[str, Any]) -> None:
    client.hset(f"rq:job:{name}", mapping=fields)
    client.rpush(f"rq:queue:{QUEUE}", name)


def work_off(redis_url: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Run a worker until it has come to a last, ordinary job; return the partitions it ran and what it logged."""
    ran: list[str] = []
    stopping = threading.Event()

    def run(partition: str) -> None:
        ran.append(partition)
        if partition == "space:last":
            stopping.set()

    with redis.Redis.from_url(redis_url) as client, capture_logs() as logged:
        put(client, "last", JOB | {"data": f'["{JOB_NAME}",null,["space:last"],{{}}]'})
        worker = WindowWorker(client, run, name="one", stopping=stopping)
        worker.work(logging_level="ERROR")
    assert ran[-1:] == ["space:last"], "the worker ended before its last job"
    ran.pop()
    return ran, list(logged)


@pytest.mark.parametrize(
    "data",
    [
        '["planted.fire",null,["space:wanted"],{}]',
        '["os.system",null,["touch fired"],{}]',
        f'["{JOB_NAME}","planted.fire",["space:wanted"],{{}}]',
        f'["{JOB_NAME}",["planted","fire"],["space:wanted"],{{}}]',
        f'["{JOB_NAME}",null,["space:wanted"],{{"connection":"planted.fire"}}]',
        f'["{JOB_NAME}",null,["space:wanted","space:wanted"],{{}}]',
        f'["{JOB_NAME}",null,[],{{}}]',
        f'["{JOB_NAME}",null,[7],{{}}]',
        f'["{JOB_NAME}",null,[null],{{}}]',
        f'["{JOB_NAME}",null,[["space:wanted"]],{{}}]',
        f'["{JOB_NAME}",null,["space:wanted\\n"],{{}}]',
        f'["{JOB_NAME}",null,["{"space:" + "a" * 65}"],{{}}]',
        f'["{JOB_NAME}",null,["../../etc"],{{}}]',
        f'["{JOB_NAME.upper()}",null,["space:wanted"],{{}}]',
        '["builtins.eval",null,["__import__(\'planted\')"],{}]',
        "[]",
        "{}",
        "7",
        "null",
        '["planted.fire"]',
    ],
)
def test_a_job_that_is_not_ours_is_refused(redis_url: str, planted: Path, data: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        put(client, "evil", JOB | {"data": data})
    ran, logged = work_off(redis_url)
    assert ran == []
    assert [(one["event"], one["job"]) for one in logged if one["log_level"] == "warning"] == [("job_refused", "evil")]
    check_unharmed(redis_url, planted)


def check_unharmed(redis_url: str, planted: Path) -> None:
    """Nothing was imported or called, and nothing is stuck."""
    assert not planted.exists()
    assert "planted" not in sys.modules
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen(f"rq:queue:{QUEUE}") == 0
        assert client.llen(Queue(QUEUE, connection=client).intermediate_queue_key) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "dancing"},
        {"timeout": "long"},
        {"created_at": "yesterday"},
        {"enqueued_at": "2026-13-45"},
        {"data": b"\x80\x05cplanted\nfire\n."},
        {"data": b"\xff\xfe"},
        {"data": "[" * 3000},
        {"data": b""},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_a_malformed_job_is_dropped(redis_url: str, planted: Path, fields: dict[str, Any]) -> None:
    with redis.Redis.from_url(redis_url) as client:
        put(client, "bad", JOB | fields)
    ran, logged = work_off(redis_url)
    assert ran == []
    assert [one["job"] for one in logged if one["event"] == "job_refused"] == ["bad"]
    check_unharmed(redis_url, planted)


@pytest.mark.parametrize("name", ["gone", "", "a" * 5000, "text"], ids=["gone", "empty", "long", "a string"])
def test_a_job_without_its_hash_is_dropped(redis_url: str, planted: Path, name: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("rq:job:text", "planted.fire")
        client.rpush(f"rq:queue:{QUEUE}", name)
    ran, _ = work_off(redis_url)
    assert ran == []
    check_unharmed(redis_url, planted)


@pytest.mark.parametrize(
    "fields",
    [
        {"success_callback_name": "planted.fire"},
        {"failure_callback_name": "planted.fire"},
        {"stopped_callback_name": "planted.fire"},
        {"dependency_id": "other", "dependency_ids": '["other"]', "allow_dependency_failures": "1"},
        {"repeats_left": "3", "repeat_intervals": "[0]"},
        {"retries_left": "3", "retry_intervals": "[0]"},
        {"result_ttl": "-1", "ttl": "1", "failure_ttl": "-1"},
        {"meta": b"\x80\x05cplanted\nfire\n."},
        {"group_id": "planted"},
        {"worker_name": "planted.fire", "exc_info": b"x"},
        {"success_callback_timeout": "abc", "webhook": "http://127.0.0.1:1/"},
    ],
    ids=str,
)
def test_what_else_stands_in_a_job_is_not_looked_at(redis_url: str, planted: Path, fields: dict[str, Any]) -> None:
    with redis.Redis.from_url(redis_url) as client:
        put(client, "dressed", JOB | fields)
    ran, logged = work_off(redis_url)
    assert ran == ["space:wanted"]
    assert not [one for one in logged if one["log_level"] != "info"]
    check_unharmed(redis_url, planted)


def test_a_window_that_raises_does_not_end_the_worker(redis_url: str) -> None:
    stopping = threading.Event()
    ran: list[str] = []

    def run(partition: str) -> None:
        ran.append(partition)
        if len(ran) == 1:
            raise RuntimeError("a bug")
        stopping.set()

    with redis.Redis.from_url(redis_url) as client:
        put(client, "first", JOB)
        put(client, "second", JOB)
        WindowWorker(client, run, name="one", stopping=stopping).work(logging_level="CRITICAL")
    assert ran == ["space:wanted", "space:wanted"]


def test_the_libraries_own_housekeeping_changes_nothing(pipeline: Pipeline) -> None:
    pipeline.append(*(propose(pipeline.board, agent, TITLES[91], key="k") for agent in pipeline.board.members))
    processor = pipeline.processor()
    stopping = threading.Event()

    def run(partition: str) -> int:
        stopping.set()
        return processor.process(partition)

    worker = WindowWorker(pipeline.client, run, name="one", stopping=stopping)
    worker.work(logging_level="ERROR")
    before = pipeline.ledger()
    assert len(before["tasks"]) == 1
    left = sorted(pipeline.client.keys("*"))
    queue = Queue(QUEUE, connection=pipeline.client, job_class=WindowJob, serializer=JSONSerializer)
    clean_registries(queue)
    IntermediateQueue(queue.key, connection=pipeline.client).cleanup(worker, queue)
    worker.run_maintenance_tasks()
    assert pipeline.ledger() == before
    now = sorted(pipeline.client.keys("*"))
    assert {name for name in now if name.startswith(b"dibs:")} == {name for name in left if name.startswith(b"dibs:")}
    assert not [name for name in now if name.startswith((b"rq:job:", b"rq:queue:", b"rq:failed", b"rq:wip"))]
    assert Job.exists("dibs-1", connection=pipeline.client) is False
    assert pipeline.work() == 0


def test_a_job_that_was_lost_after_its_pop_is_made_again(pipeline: Pipeline) -> None:
    """A worker that was killed between the pop and the first step leaves no job anywhere."""
    pipeline.append(propose(pipeline.board, pipeline.board.members[0], TITLES[91]))
    back = pipeline.back()
    assert back.sweep("x") == 0, "the job is young: it may be on its way"
    pipeline.client.delete(f"rq:queue:{QUEUE}")
    wake = f"dibs:wake:{pipeline.board.partition}"
    pipeline.client.set(wake, int(pipeline.client.get(wake)) - 1_000)
    assert back.sweep("x") == 1
    assert pipeline.client.llen(f"rq:queue:{QUEUE}") == 1
    assert pipeline.work() == 1
    assert back.sweep("x") == 0
