import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from deploy import race
from deploy.cli import main
from deploy.race import Course, raise_file_limit
from deploy.race_plot import PlotError, write_plot
from deploy.race_rules import Attempt, Fate, Round, Stored, StoredTask
from deploy.race_store import RaceError, ground
from deploy.race_volley import parse_url
from models.rules.charter import CatalogRow, validate_catalog
from models.rules.conflict import ConflictKey, DeliveryMode, Kind
from models.rules.tasks import Status

MAR = json.loads((Path(__file__).parent.parent / "data" / "mar_v0.json").read_text(encoding="utf-8"))
SLUG = "race-1"
URL = "http://127.0.0.1:1"
DATABASE = "postgresql://nobody@127.0.0.1:1/none"


def key(slot: str) -> ConflictKey:
    return ConflictKey(Kind.CREATE_TASK, f"task:{SLUG}:{slot}", DeliveryMode.RESULT)


T1 = key("slot:T1")
ALONE = Attempt(agent="race-001", due=T1, fate=Fate.WON, latency_ms=10, status=201, key=T1, task_id=1)
FAIR = Round(
    number=1,
    slug=SLUG,
    seconds=0.5,
    attempts=(ALONE,),
    pointed={},
    stored=Stored(tasks=(StoredTask(id=1, key=T1, status=Status.OPEN),), occupancies=((T1, 1),), events=(1,)),
)
CUT = Attempt(agent="race-002", due=T1, fate=Fate.ERROR, latency_ms=0, what="[Errno 104] reset")
UNFAIR = msgspec.structs.replace(FAIR, attempts=(ALONE, CUT))


def test_the_board_file_is_the_fixture() -> None:
    board = json.loads((Path(race.__file__).parent / "boards" / "multi-agent-research.json").read_bytes())
    assert (board["space"], board["catalog"], board["members"]) == (MAR["space"], MAR["catalog"], [])
    assert board["tasks"] == [
        {"id": row["task"], "title": row["title"], "status": row["board"]} for row in MAR["titles"]
    ]
    assert validate_catalog(msgspec.convert(board["catalog"], tuple[CatalogRow, ...])) is None


def test_the_default_titles_race_for_the_slots_of_the_fixture() -> None:
    due = ground().due(SLUG)
    assert due == {row["title"]: key(f"slot:{row['slot']}") for row in MAR["titles"]}
    assert len(due) == 7


def test_a_titles_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "titles"
    path.write_bytes("\ufeffWrite  the guide\r\n\n \t\nपाठ लिखें\nWrite  the guide".encode())
    found = ground(path)
    assert found.titles == ("Write  the guide", "पाठ लिखें", "Write  the guide")
    assert found.due(SLUG)["Write  the guide"] == key("write the guide")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "holds no title"),
        (b"\n \r\n", "holds no title"),
        (b"fine\n\nbell\x07\n", "line 3 is no title"),
        (b"x" * 301, "line 1 is no title"),
        ("ok\n\u200d\n".encode(), "line 2 has no visible character"),
        (b"caf\xe9", "byte 4 is not UTF-8"),
        (None, "No such file"),
    ],
)
def test_a_bad_titles_file_is_refused_with_its_line(tmp_path: Path, content: bytes | None, fault: str) -> None:
    path = tmp_path / "titles"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RaceError, match=fault) as caught:
        ground(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")],
    ids=["png", "svg", "upper case"],
)
def test_a_plot_is_written_whole(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"latencies{suffix}"
    path.write_text("an older one")
    write_plot(path, winners_ms=[1.0, 2.0], losers_ms=[3.0] * 50, title="A race")
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]
    if suffix == ".svg":
        assert path.read_text().rstrip().endswith("</svg>")


def test_a_plot_of_nothing_is_a_plot(tmp_path: Path) -> None:
    write_plot(tmp_path / "none.png", winners_ms=[], losers_ms=[], title="All errors")
    assert (tmp_path / "none.png").stat().st_size > 0


def test_a_plot_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latencies.png"
    path.write_text("an older one")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(PlotError, match="No space left on device"):
        write_plot(path, winners_ms=[1.0], losers_ms=[], title="A race")
    assert path.read_text() == "an older one"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_limit_is_raised_no_higher_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    raise_file_limit(256)
    assert asked == []
    raise_file_limit(900)
    assert asked == [(900, 1000)]
    with pytest.raises(RaceError, match="takes 1001 open files and the limit is 1000"):
        raise_file_limit(1001)


Invoke = Callable[..., tuple[int | str | None, str, str]]
Outcome = tuple[Round, ...] | Exception | type[BaseException] | None


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Run the command; ``played`` is what the race comes to instead of a real one. Returns status, stdout, stderr."""
    monkeypatch.setenv("DIBS_DATABASE_URL", DATABASE)

    def run(*arguments: str, played: Outcome = None) -> tuple[int | str | None, str, str]:
        def run_race(course: Course, *, database_url: str, **_: object) -> tuple[Round, ...]:
            assert (course.place, database_url) == (parse_url(URL), DATABASE)
            if isinstance(played, tuple):
                return played
            assert played is not None
            raise played

        monkeypatch.setattr(race, "run_race", run_race)
        with pytest.raises(SystemExit) as ended:
            main(["race", "--state", str(tmp_path / "none"), "--url", URL, *arguments])
        written = capsys.readouterr()
        return ended.value.code, written.out, written.err

    return run


def test_json_is_the_only_thing_on_stdout(invoke: Invoke, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    status, out, err = invoke("--json", "--agents", "5", "--plot", str(plot), played=(FAIR,))
    document = json.loads(out)
    assert (status, out.count("\n"), err) == (0, 1, f"wrote {plot}\n")
    assert (document["passed"], document["agents"], document["spaces"]) == (True, 5, [SLUG])
    assert document["verdict"] == "one winner per slot in the round"
    assert plot.read_bytes().startswith(b"<?xml")
    status, out, _ = invoke("--json", played=(UNFAIR,))
    assert (status, json.loads(out)["errors_by_kind"]) == (1, {"[Errno 104] reset": 1})


def test_the_table_ends_with_the_verdict(invoke: Invoke) -> None:
    status, out, _ = invoke(played=(FAIR,))
    assert (status, out.splitlines()[-1]) == (0, "verdict: one winner per slot in the round")
    status, out, _ = invoke(played=(UNFAIR,))
    assert status == 1
    assert "  [Errno 104] reset" in out
    assert out.splitlines()[-1].startswith("verdict: FAILED in 1 of 1 rounds: round 1: 1 of 2 requests ended as")


def test_an_interrupt_has_its_own_status(invoke: Invoke) -> None:
    assert invoke(played=KeyboardInterrupt) == (130, "", "dibs: interrupted\n")


def test_what_keeps_a_race_from_running_is_one_line(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert invoke(played=RaceError("it is so")) == (1, "", "dibs: it is so\n")
    assert invoke("--url", "host") == (1, "", "dibs: --url: 'host' is not of the form http://HOST:PORT\n")
    gif = tmp_path / "plot.gif"
    assert invoke("--plot", str(gif)) == (1, "", f"dibs: {gif}: a plot is written as .png or .svg\n")
    nowhere = tmp_path / "none" / "plot.svg"
    assert invoke("--plot", str(nowhere)) == (1, "", f"dibs: {nowhere}: its folder does not exist\n")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "matplotlib.figure", None)
        missing = invoke("--plot", str(tmp_path / "plot.svg"))
        assert missing == (1, "", "dibs: --plot needs matplotlib: pip install 'dibs[plot]'\n")
    monkeypatch.delenv("DIBS_DATABASE_URL")
    status, out, err = invoke()
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "DIBS_DATABASE_URL is not set and no stack runs on" in err


def test_an_address_that_is_none_is_not_shown() -> None:
    course = Course(place=parse_url(URL), ground=ground(), agents=1, rounds=1)
    with pytest.raises(RaceError, match="DIBS_DATABASE_URL is not of the form") as caught:
        race.run_race(course, database_url="secret words")
    assert "secret" not in str(caught.value)
