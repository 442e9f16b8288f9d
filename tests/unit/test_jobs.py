"""What anyone who can write to Redis may queue, and what a worker makes of it."""

import json
import pickle
import sys
import threading
import zlib

import fakeredis
import pytest
from rq.command import send_shutdown_command
from rq.suspension import suspend
from structlog.testing import capture_logs

from models.window.scripts import JOB_NAME, QUEUE
from worker.jobs import WindowWorker

LAST = "space:the-last-one"
EVIL = "dibs_evil_module"
LIST = f"rq:queue:{QUEUE}"
INTERMEDIATE = f"rq:queue:{QUEUE}:intermediate"


@pytest.fixture
def redis():
    return fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="valkey"))


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that tells when it was imported or called."""
    module = tmp_path / f"{EVIL}.py"
    module.write_text(
        "from pathlib import Path\n"
        f"Path({str(tmp_path / 'imported')!r}).touch()\n"
        "def call(*args, **kwargs):\n"
        f"    Path({str(tmp_path / 'called')!r}).touch()\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield f"{EVIL}.call"
    assert EVIL not in sys.modules
    assert [path.name for path in tmp_path.iterdir()] == [module.name]


def data(func=JOB_NAME, instance=None, args=("space:lab",), kwargs=None):
    return json.dumps([func, instance, list(args), kwargs or {}]).encode()


def put(redis, job_id, **fields):
    """Queue a job hash as the scripts write it, with some fields changed or (None) left out."""
    whole = {
        "data": data(),
        "created_at": "2026-01-01T00:00:00.000000Z",
        "enqueued_at": "2026-01-01T00:00:00.000000Z",
        "origin": QUEUE,
        "status": "queued",
        "timeout": "600",
        "result_ttl": "0",
        "failure_ttl": "600",
        **fields,
    }
    redis.hset(f"rq:job:{job_id}", mapping={name: value for name, value in whole.items() if value is not None})
    redis.rpush(LIST, job_id)


def work(redis, *, fail=None):
    """Run a worker up to the job of ``LAST``, and return the partitions that it was called with before."""
    put(redis, "last", data=data(args=[LAST]))
    stopping = threading.Event()
    seen = []

    def run(partition):
        if partition == LAST:
            stopping.set()
            return
        seen.append(partition)
        if fail is not None:
            raise fail

    WindowWorker(redis, run, name="w1", stopping=stopping).work(logging_level="CRITICAL")
    assert stopping.is_set(), "the worker quit before it came to the last job"
    assert redis.llen(LIST) == redis.llen(INTERMEDIATE) == 0, "a job is stranded"
    return seen


def test_the_allocators_job_runs_and_leaves_nothing(redis):
    put(redis, "j1")
    assert work(redis) == ["space:lab"]
    assert not redis.exists("rq:job:j1")
    assert redis.keys("rq:job*") == []


@pytest.mark.parametrize("partition", ["space:a", "space:" + "b" * 63, "x:0", "a:15", "space:0-9"])
def test_each_kind_of_partition_is_taken(redis, partition):
    put(redis, "j1", data=data(args=[partition]))
    assert work(redis) == [partition]


@pytest.mark.parametrize(
    "payload",
    [
        data(func="os.system", args=["true"]),
        data(func=f"{EVIL}.call"),
        data(func=f"{EVIL}.call", args=[]),
        data(func="worker.jobs"),
        data(func="worker.jobs.WindowWorker"),
        data(func="worker.jobs.process_window "),
        data(func=""),
        data(func=None),
        data(func=[JOB_NAME]),
        data(instance="x"),
        data(instance=0),
        data(kwargs={"partition": "space:lab"}),
        data(args=[]),
        data(args=["space:lab", "space:lab"]),
        data(args=[["space:lab"]]),
        data(args=[None]),
        data(args=[7]),
        data(args=[""]),
        data(args=["lab"]),
        data(args=["space:"]),
        data(args=["space:lab\n"]),
        data(args=[" space:lab"]),
        data(args=["space:LAB"]),
        data(args=["space:lab:lab"]),
        data(args=["space:l\u00e4b"]),
        data(args=["space:" + "a" * 65]),
        pickle.dumps((JOB_NAME, None, ("space:lab",), {})),
        b"",
        b"null",
        b"[]",
        b"{}",
        json.dumps([JOB_NAME, None, ["space:lab"]]).encode(),
        json.dumps([JOB_NAME, None, ["space:lab"], {}, 1]).encode(),
        json.dumps([JOB_NAME, None, 5, {}]).encode(),
        json.dumps([JOB_NAME, None, "space:lab", {}]).encode(),
        json.dumps([JOB_NAME, None, {"space:lab": 1}, {}]).encode(),
        b"[" * 5000,
    ],
    ids=[
        "os.system", "evil", "evil bare", "module", "class", "space", "no name", "null name", "list name", "instance",
        "false instance", "kwargs", "no argument", "two", "a list", "null", "number", "empty", "no kind", "no name",
        "newline", "leading space", "capitals", "two colons", "umlaut", "long", "pickle", "no data", "json null",
        "json list", "json object", "three", "five", "args number", "args text", "args object", "nested",
    ],
)  # fmt: skip
def test_any_other_is_refused_and_logged(redis, evil, payload):
    put(redis, "j1", data=payload)
    with capture_logs() as logs:
        assert work(redis) == []
    assert [(one["event"], one["log_level"], one["job"]) for one in logs] == [("job_refused", "warning", "j1")]
    # Kept for a minute at most, for whoever looks.
    assert redis.ttl("rq:job:j1") in range(-2, 61)
    assert redis.ttl("rq:job:j1") != -1


@pytest.mark.parametrize("compressed_too", [True, False])
def test_pickle_bytes_are_never_loaded(redis, evil, compressed_too):
    class Bomb:
        def __reduce__(self):
            return (__import__, (EVIL,))

    payload = pickle.dumps((JOB_NAME, None, (Bomb(),), {}))
    if compressed_too:
        payload = zlib.compress(payload)
    put(redis, "j1", data=payload)
    assert work(redis) == []


@pytest.mark.parametrize("fail", [None, RuntimeError("the window's own trouble")])
def test_what_a_job_names_beside_its_function_is_ignored(redis, evil, fail):
    put(
        redis,
        "j1",
        success_callback_name=evil,
        failure_callback_name=evil,
        stopped_callback_name=evil,
        success_callback_timeout="60",
        failure_callback_timeout="60",
        webhooks=json.dumps([{"url": "http://127.0.0.1:9/", "events": ["finished", "failed"]}]),
        dependency_ids=json.dumps(["j0"]),
        worker_name="other",
        group_id="g",
        retries_left="3",
        retry_intervals=json.dumps([0]),
        meta=pickle.dumps({}),
        description="os.system('true')",
    )
    assert work(redis, fail=fail) == ["space:lab"]
    assert redis.zcard(f"rq:scheduled:{QUEUE}") == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"data": None},
        {"status": "no such state"},
        {"timeout": "soon"},
        {"created_at": "yesterday"},
        {"enqueued_at": b"\xff"},
        {"origin": b"\xff"},
    ],
    ids=["no data", "status", "timeout", "created_at", "enqueued_at", "origin"],
)
def test_a_malformed_hash_is_dropped_and_the_worker_goes_on(redis, fields):
    put(redis, "j1", **fields)
    put(redis, "j2", data=data(args=["space:next"]))
    assert work(redis) == ["space:next"]
    assert not redis.exists("rq:job:j1")


def test_an_entry_without_a_hash_is_dropped(redis):
    redis.rpush(LIST, "gone")
    put(redis, "j2")
    assert work(redis) == ["space:lab"]


def test_a_key_that_is_no_hash_is_dropped(redis):
    redis.set("rq:job:j1", "text")
    redis.rpush(LIST, "j1")
    put(redis, "j2")
    assert work(redis) == ["space:lab"]


def test_a_window_that_fails_is_no_end_of_the_worker(redis):
    put(redis, "j1")
    put(redis, "j2", data=data(args=["space:next"]))
    assert work(redis, fail=RuntimeError("trouble")) == ["space:lab", "space:next"]


def test_a_suspended_queue_and_a_shutdown_command_change_nothing(redis):
    suspend(redis)
    put(redis, "j1")
    put(redis, "j2", data=data(args=["space:next"]))
    channels = []

    def run(partition):
        channels.extend(redis.pubsub_channels())
        send_shutdown_command(redis, "w1")
        if partition == "space:next":
            stopping.set()

    stopping = threading.Event()
    WindowWorker(redis, run, name="w1", stopping=stopping).work(logging_level="CRITICAL")
    assert channels == []
    assert redis.llen(LIST) == 0


def test_a_stop_lets_the_job_in_hand_end_and_takes_no_other(redis):
    stopping = threading.Event()
    done = []

    def run(partition):
        stopping.set()
        done.append(partition)

    put(redis, "j1")
    put(redis, "j2")
    WindowWorker(redis, run, name="w1", stopping=stopping).work(logging_level="CRITICAL")
    assert done == ["space:lab"]
    assert redis.lrange(LIST, 0, -1) == [b"j2"]
    assert redis.llen(INTERMEDIATE) == 0
    assert not redis.smembers("rq:workers")


def test_a_stop_asked_for_beforehand_takes_none(redis):
    stopping = threading.Event()
    stopping.set()
    put(redis, "j1")
    WindowWorker(redis, lambda _: None, name="w1", stopping=stopping).work(logging_level="CRITICAL")
    assert redis.lrange(LIST, 0, -1) == [b"j1"]
