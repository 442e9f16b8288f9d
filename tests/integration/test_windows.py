"""A window explained: over the wire and on the command line the same, so that a loser can see why. Contract 2.7, 8."""

from collections.abc import Callable

import httpx
import msgspec
import pytest

from deploy.cli import main
from models.rules.intents import CreateTask, PostNote
from models.rules.windows import ExplainedWindow
from tests.integration.test_life import Table
from tests.pipeline import Pipeline, propose
from tests.stack import TITLES, Stack

NOBODYS = "01a22f7d-d7fd-7613-bb30-88a93da08381"


@pytest.fixture
def dibs(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.setenv("DIBS_DATABASE_URL", pipeline.database.service_url)

    def call(*arguments: str) -> str:
        capsys.readouterr()  # what the worker has logged
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return call


def contested(pipeline: Pipeline) -> str:
    """Run a window with winners and losers of every sort and return its id."""
    table = Table(pipeline)
    alpha, beta = table.alpha, table.beta
    table.do(alpha, CreateTask(title="Known work"))
    table.do(beta, PostNote(task_id=1, body="Met"))
    pipeline.append(
        propose(pipeline.board, beta, "KNOWN work"),
        propose(pipeline.board, alpha, TITLES[91], "Something else", TITLES[95], batch=True),
        propose(pipeline.board, beta, TITLES[93]),
        table.submission(beta, PostNote(task_id=1, body=" Met ")),
    )
    pipeline.work()
    return str(pipeline.database.value("SELECT id FROM windows ORDER BY last_seq DESC LIMIT 1"))


def test_it_says_who_lost_to_whom(pipeline: Pipeline, dibs: Callable[..., str]) -> None:
    window = contested(pipeline)
    found = msgspec.json.decode(dibs("window", "show", window, "--json"), type=ExplainedWindow)
    assert [one.place for one in found.intents] == list(range(6))
    by_seq = sorted(found.intents, key=lambda one: (one.received_seq, one.place))
    first, *batch, late, note = by_seq
    assert (first.code, first.lost_to.task_id, first.lost_to.place) == ("conflict_key_occupied", 1, None)
    assert [one.status for one in batch] == [201, 201, 201]
    assert [one.reservation for one in (first, *batch, late, note)] == ["own"] * 4 + ["none"] * 2
    (winner,) = [one for one in batch if one.conflict_key == late.conflict_key]
    assert (late.code, late.lost_to.place, late.lost_to.proposal_id) == (
        "conflict_key_reserved", winner.place, winner.proposal_id,
    )  # fmt: skip
    assert (note.status, note.lost_to.note_id, note.lost_to.task_id) == (409, 1, 1)
    table = dibs("window", "show", window)
    assert f"place {winner.place}" in table
    assert "note 1" in table
    assert TITLES[93] not in table


def test_the_wire_says_the_same(pipeline: Pipeline, dibs: Callable[..., str], stacks: Callable[..., Stack]) -> None:
    window = contested(pipeline)
    service = stacks(database=pipeline.database, redis_url=pipeline.redis_url, workers=0)
    with httpx.Client(base_url=f"{service.url}/v0/spaces/{pipeline.board.slug}", trust_env=False) as client:
        told = client.get(f"/windows/{window}")
        assert told.json() == msgspec.json.decode(dibs("window", "show", window, "--json"))
        listed = client.get("/windows", params={"limit": 1}).json()
        assert (listed["windows"][0]["id"], listed["page"]["has_more"]) == (window, True)
        for unknown in (NOBODYS, window.upper(), "0"):
            assert client.get(f"/windows/{unknown}").json()["code"] == "window_not_found"


@pytest.mark.parametrize(("given", "line"), [("x", "'x' is no window's id"), (NOBODYS, "there is no window ")])
def test_a_window_that_is_not_there_is_said_to_be(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str,
    line: str,
) -> None:
    monkeypatch.setenv("DIBS_DATABASE_URL", pipeline.database.service_url)
    with pytest.raises(SystemExit) as ended:
        main(["window", "show", given])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"dibs: {line}")
