"""`dibs doctor` and `dibs queue`: each fault has its own line, and what waits is counted. Contract 8."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from deploy.cli import main
from deploy.cli_doctor import _clock
from tests.pipeline import Pipeline, propose
from tests.stack import SECRET_KEYS

Command = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def dibs(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("DIBS_DATABASE_URL", pipeline.database.service_url)
    monkeypatch.setenv("DIBS_REDIS_URL", pipeline.redis_url)
    monkeypatch.setenv("DIBS_SECRET_KEYS", SECRET_KEYS)

    def call(*arguments: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--json"])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, json.loads(out), err

    return call


@pytest.fixture
def evicting(pipeline: Pipeline) -> Iterator[None]:
    before = pipeline.client.config_get("maxmemory-policy")["maxmemory-policy"]
    pipeline.client.config_set("maxmemory-policy", "allkeys-lru")
    yield
    pipeline.client.config_set("maxmemory-policy", before)


def faults(findings: list[dict[str, Any]]) -> dict[str, str]:
    return {one["name"]: one["remedy"] for one in findings if one["remedy"] is not None}


def serve(pipeline: Pipeline) -> None:
    """Let a process of each kind be alive."""
    for kind in ("web", "worker"):
        pipeline.database.rows(
            "INSERT INTO fleet VALUES (%s, %s, 'here', 1, '0', 'active', 1, 0, clock_timestamp(), clock_timestamp())",
            kind,
            kind,
        )


def test_a_sound_set_up_has_no_fault(pipeline: Pipeline, dibs: Command) -> None:
    serve(pipeline)
    status, findings, err = dibs("doctor")
    assert (status, faults(findings), err) == (0, {}, "")
    assert {one["name"] for one in findings} == {
        "database version", "schema", "audit", "database clock", "mode", "fleet", "redis version", "eviction",
        "persistence", "redis clock", "queue",
    }  # fmt: skip


def test_each_fault_has_its_line(pipeline: Pipeline, dibs: Command, evicting: None) -> None:
    status, findings, err = dibs("doctor")
    assert (status, set(faults(findings))) == (1, {"eviction", "fleet"})
    assert "noeviction" in faults(findings)["eviction"]
    assert err.count("\n") == 1
    pipeline.database.rows("UPDATE alembic_version SET version_num = '0001'")
    assert "dibs migrate" in faults(dibs("doctor")[1])["schema"]


def test_what_is_out_of_reach_is_said_to_be(pipeline: Pipeline, dibs: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(pipeline.database.service_url)
    wrong = f"postgresql://{parts['user']}:wrong-password@/{parts['dbname']}?host={parts['host']}"
    monkeypatch.setenv("DIBS_DATABASE_URL", wrong)
    monkeypatch.setenv("DIBS_REDIS_URL", "unix:///nowhere/at/all.sock")
    status, findings, err = dibs("doctor")
    assert (status, set(faults(findings))) == (1, {"database", "redis"})
    assert "wrong-password" not in json.dumps(findings) + err


def test_the_owner_of_the_tables_is_no_role_to_serve_with(
    pipeline: Pipeline, dibs: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(pipeline)
    monkeypatch.setenv("DIBS_DATABASE_URL", pipeline.database.owner_url)
    assert set(faults(dibs("doctor")[1])) == {"audit"}


@pytest.mark.parametrize(("skew", "wrong"), [(0, False), (900, False), (5_000, True), (-5_000, True)])
def test_a_clock_that_is_off_is_told(skew: int, wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    assert (_clock("clock", 1_000_000_000 + skew).remedy is not None) is wrong


def test_the_queue_counts_what_waits(pipeline: Pipeline, dibs: Command) -> None:
    assert dibs("queue")[1] == {"intents": 0, "jobs": 0, "partitions": []}
    pipeline.append(*(propose(pipeline.board, agent, "a", "b", batch=True) for agent in pipeline.board.members[:3]))
    status, found, _ = dibs("queue")
    (waiting,) = found["partitions"]
    assert (status, found["intents"], found["jobs"]) == (0, 6, 1)
    assert (waiting["partition"], waiting["open"], waiting["taken"]) == (pipeline.board.partition, 6, False)
    assert 0 <= waiting["oldest_age_ms"] < 60_000
    pipeline.work()
    assert dibs("queue")[1]["intents"] == 0
