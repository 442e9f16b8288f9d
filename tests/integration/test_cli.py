"""The command line as its users meet it: what it prints, where, and how it exits."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGHUP, SIGKILL, SIGTERM
from typing import Any, NamedTuple

import httpx
import psycopg
import pytest

from deploy.cli import main
from deploy.postgres import OWNER, SERVICE
from deploy.program import Child, Launch
from deploy.state import Addresses, StateFolder
from models.store.migrate import HEAD
from tests.servers import SharedServers, drop_database
from tests.stack import MAR, SECRET_KEYS, TITLES, Database
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
SETTINGS = ("DIBS_DATABASE_URL", "DIBS_MIGRATE_DATABASE_URL", "DIBS_SERVICE_ROLE", "DIBS_STATE", "DIBS_REDIS_URL")
KEY = re.compile(r"dibs_([a-z2-7]{8})_[A-Za-z0-9_-]{43}\Z")


class Stdin(io.BytesIO):
    """What a test types."""

    name = "<stdin>"


class Ran(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout of a command that went well."""
        assert (self.status, self.err) == (0, "")
        assert self.out.endswith("\n")
        return json.loads(self.out)

    @property
    def refusal(self) -> str:
        """The one line on stderr of a command that was refused."""
        assert (self.status, self.out) == (1, "")
        assert self.err.startswith("dibs: ")
        assert self.err.index("\n") == len(self.err) - 1
        return self.err.removeprefix("dibs: ").rstrip("\n")

    @property
    def usage(self) -> str:
        """The line on stderr that says what is wrong with the call."""
        assert (self.status, self.out) == (2, "")
        assert "Traceback" not in self.err
        (line,) = (line for line in self.err.splitlines() if line.startswith(("Error: ", "dibs: ")))
        return line


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """``run("agent", "add", "alpha", stdin=b"")``, where no database is named and no state folder lies."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*words: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Stdin(stdin)))
        with pytest.raises(SystemExit) as ended:
            main(words)
        return Ran(int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def dibs(run: Callable[..., Ran], database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """``run`` with this test's database."""
    monkeypatch.setenv("DIBS_DATABASE_URL", database.service_url)
    return run


def test_agents_are_added_listed_and_set(dibs: Callable[..., Ran]) -> None:
    alpha = dibs("agent", "add", "alpha", "--json").json
    assert re.fullmatch(r"agt_[0-9a-f]{32}", alpha["id"])
    assert alpha == {"id": alpha["id"], "handle": "alpha", "active": True, "listed": True}
    assert dibs("agent", "add", "beta", "--unlisted", "--json").json["listed"] is False
    assert dibs("agent", "deactivate", "alpha", "--json").json == {**alpha, "active": False}
    assert dibs("agent", "unlist", "alpha", "--json").json == {**alpha, "active": False, "listed": False}
    assert dibs("agent", "activate", "alpha", "--json").json == {**alpha, "listed": False}
    assert [agent["handle"] for agent in dibs("agent", "list", "--json").json] == ["alpha", "beta"]


def test_without_json_people_read_lines_and_tables(dibs: Callable[..., Ran]) -> None:
    added = dibs("agent", "add", "x" * 63, "--unlisted")
    assert (added.status, added.err) == (0, "")
    assert re.fullmatch(r"x{63} \(agt_[0-9a-f]{32}\) is active and unlisted\n", added.out)
    head, row = dibs("agent", "list").out.splitlines()
    assert head.split() == ["id", "handle", "active", "listed"]
    assert row.split()[1:] == ["x" * 63, "yes", "no"]
    (head,) = dibs("key", "list", "x" * 63).out.splitlines()
    assert re.split(r"  +", head.strip()) == ["key id", "operator", "created at", "expires at", "revoked at"]


def test_keys_are_issued_listed_and_revoked(dibs: Callable[..., Ran], database: Database) -> None:
    dibs("agent", "add", "alpha")
    plain = dibs("key", "issue", "alpha", "--json").json
    other = dibs("key", "issue", "alpha", "--operator", "--expires", "3", "--json").json
    for issued in (plain, other):
        assert set(issued) == {"key_id", "key"}
        shape = KEY.match(issued["key"])
        assert shape is not None
        assert shape[1] == issued["key_id"]
    stored = database.rows("SELECT id, encode(secret_sha256, 'escape') AS digest FROM keys")
    assert not any(issued["key"] in str(stored) for issued in (plain, other))

    assert dibs("key", "revoke", plain["key_id"], "--json").json == {"key_id": plain["key_id"], "revoked": True}
    first, second = dibs("key", "list", "alpha", "--json").json
    assert set(first) == {"key_id", "operator", "created_at", "expires_at", "revoked_at"}
    assert (first["key_id"], first["operator"], first["expires_at"]) == (plain["key_id"], False, None)
    assert first["revoked_at"] is not None
    assert (second["key_id"], second["operator"], second["revoked_at"]) == (other["key_id"], True, None)
    life = "SELECT expires_at - created_at = interval '3 days' FROM keys WHERE id = %s"
    assert database.value(life, other["key_id"]) is True
    assert dibs("key", "revoke", plain["key_id"]).status == 0


def test_a_key_is_shown_once_to_people_too(dibs: Callable[..., Ran]) -> None:
    dibs("agent", "add", "alpha")
    issued = dibs("key", "issue", "alpha")
    assert issued.status == 0
    assert KEY.match(issued.out.splitlines()[-1])


@pytest.mark.parametrize("words", [("key", "revoke"), ("key", "list"), ("key", "issue"), ("agent", "add")])
def test_a_whole_key_is_no_argument_and_is_not_repeated(dibs: Callable[..., Ran], words: tuple[str, ...]) -> None:
    dibs("agent", "add", "alpha")
    issued = dibs("key", "issue", "alpha", "--json").json
    refused = dibs(*words, issued["key"])
    assert refused.usage.startswith("Error: Invalid value for ")
    assert issued["key"] not in refused.err
    assert dibs("key", "list", "alpha", "--json").json[0]["revoked_at"] is None


def test_a_board_is_imported_and_exported(dibs: Callable[..., Ran], tmp_path: Path) -> None:
    tasks = [{"id": row["task"], "title": row["title"], "status": row["board"]} for row in MAR["titles"]]
    document = json.dumps({"space": "mar", "catalog": MAR["catalog"], "tasks": tasks})
    file = tmp_path / "board.json"
    file.write_text(document)
    assert dibs("space", "import", str(file), "--json").json == {
        "space": "mar",
        "members": 0,
        "tasks": 7,
        "notes": 0,
        "next_task": 98,
    }
    assert dibs("space", "import", str(file)).refusal == "there is a space 'mar' already"
    exported = dibs("space", "export", "mar")
    assert [task["id"] for task in exported.json["tasks"]] == list(TITLES)
    assert dibs("space", "export", "mar", "--json") == exported


def test_a_board_comes_from_stdin_too(dibs: Callable[..., Ran]) -> None:
    assert dibs("space", "import", "-", stdin=b'{"space":"lab"}').out == (
        "space lab is there: tasks 0, notes 0, members 0, next task 1\n"
    )


@pytest.mark.parametrize(
    ("document", "line"),
    [
        (b'{"space":"lab","tasks":[{"id":1,"title":"x"}]}', "/tasks/0: Object missing required field `status`"),
        (b'{"space":"lab","catalog":[{"work_item_id":"T1","canonical_title":""}]}', "/catalog/0/canonical_title: "),
        (b'{"space":"lab","notes":[{}]}', "/notes/0: Object missing required field `id`"),
        (b'{"space":"lab","a\\u001b[31m\\n":1}', "Object contains unknown field `a\\x1b[31m `"),
    ],
)
def test_a_board_with_a_fault_is_refused_with_its_place(dibs: Callable[..., Ran], document: bytes, line: str) -> None:
    assert dibs("space", "import", "-", stdin=document).refusal.startswith(f"<stdin>: {line}")
    assert dibs("space", "export", "lab").refusal == "there is no space 'lab'"


def test_spaces_members_and_charters(dibs: Callable[..., Ran]) -> None:
    dibs("agent", "add", "alpha")
    assert dibs("space", "create", "lab", "--visibility", "members", "--json").json == {
        "space": "lab",
        "visibility": "members",
        "claim_ttl_seconds": None,
    }
    assert dibs("space", "create", "lab").refusal == "there is a space 'lab' already"

    given = {"space": "lab", "handle": "alpha", "role": "steward"}
    assert dibs("member", "set", "lab", "alpha", "--role", "steward", "--json").json == given
    assert "last steward" in dibs("member", "set", "lab", "alpha", "--role", "member").refusal
    assert "last steward" in dibs("member", "remove", "lab", "alpha").refusal
    dibs("agent", "add", "beta")
    assert dibs("member", "set", "lab", "beta", "--role", "steward").out == "beta is steward of lab\n"
    assert dibs("member", "remove", "lab", "alpha", "--json").json == {**given, "role": None}

    rows = [{"work_item_id": "T1", "canonical_title": "Map the reef", "aliases": ["chart"]}]
    assert dibs("charter", "show", "lab", "--json").json == {"space": "lab", "revision": 1, "catalog": []}
    changed = dibs("charter", "set", "lab", "-", "--json", stdin=json.dumps(rows).encode())
    assert changed.json == {"space": "lab", "revision": 2, "rows": 1}
    assert dibs("charter", "show", "lab", "--json").json == {"space": "lab", "revision": 2, "catalog": rows}
    table = dibs("charter", "show", "lab").out.splitlines()
    assert table[0] == "charter of lab, revision 2"
    assert table[2].split() == ["T1", "Map", "the", "reef", "chart"]
    refused = dibs("charter", "set", "lab", "-", stdin=b'[{"work_item_id":"x","canonical_title":"y"}]')
    assert refused.refusal == "<stdin>: /0/work_item_id: is not T and decimal digits"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("agent", "activate", "epsilon"), "there is no agent 'epsilon'"),
        (("key", "issue", "epsilon"), "there is no agent 'epsilon'"),
        (("key", "list", "epsilon"), "there is no agent 'epsilon'"),
        (("key", "revoke", "abcd2345"), "there is no key 'abcd2345'"),
        (("space", "export", "lab"), "there is no space 'lab'"),
        (("charter", "show", "lab"), "there is no space 'lab'"),
        (("member", "set", "lab", "epsilon", "--role", "member"), "there is no space 'lab'"),
        (("member", "remove", "lab", "epsilon"), "there is no space 'lab'"),
    ],
)
def test_what_does_not_exist_is_refused(dibs: Callable[..., Ran], words: tuple[str, ...], line: str) -> None:
    assert dibs(*words).refusal == line
    assert dibs(*words, "--json").refusal == line


def test_a_handle_that_is_taken_is_refused(dibs: Callable[..., Ran]) -> None:
    dibs("agent", "add", "alpha")
    assert dibs("agent", "add", "alpha", "--json").refusal == "there is an agent 'alpha' already"


@pytest.mark.parametrize(
    "words",
    [
        ("agent", "add"),
        ("agent", "add", "Alpha"),
        ("agent", "add", "alpha\n"),
        ("agent", "fly", "alpha"),
        ("space", "create", "a.b"),
        ("space", "create", "lab", "--visibility", "secret"),
        ("space", "import", "no-such-file.json"),
        ("member", "set", "lab", "alpha"),
        ("member", "set", "lab", "alpha", "--role", "king"),
        ("key", "issue", "alpha", "--expires", "0"),
        ("key", "issue", "alpha", "--expires", "soon"),
        ("key", "revoke", "abc"),
        ("web", "--port", "70000"),
        ("agent", "list", "--loud"),
        ("--loud",),
    ],
)
def test_wrong_usage_exits_with_2(run: Callable[..., Ran], words: tuple[str, ...]) -> None:
    assert run(*words).usage.startswith("Error: ")


def test_help_lists_every_command(run: Callable[..., Ran]) -> None:
    listed = run("--help")
    assert listed.status == 0
    for name in ("up", "race", "agent", "key", "member", "space", "charter", "migrate", "web", "worker"):
        assert re.search(rf"^  {name} ", listed.out, re.MULTILINE), name
    assert re.fullmatch(r"dibs \S.*\n", run("--version").out)


# The database: which one, and what may be wrong with it


@pytest.mark.parametrize("words", [("agent", "list"), ("migrate",), ("web",), ("worker",)])
def test_without_a_database_one_line_says_what_to_do(
    run: Callable[..., Ran], tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert run(*words).refusal == (
        f"DIBS_DATABASE_URL is not set and no stack runs on {tmp_path}/.dibs: set it, or start dibs up"
    )
    assert str(tmp_path / "other") in run(*words, "--state", "other").refusal


def test_a_running_stack_is_found_through_its_state_folder(
    run: Callable[..., Ran], database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StateFolder(tmp_path / "kept")
    addresses = Addresses(
        http="http://127.0.0.1:1",
        redis="unix:///nowhere",
        database=database.service_url,
        database_owner=database.owner_url,
        secret_keys=SECRET_KEYS,
    )
    with folder.hold():
        folder.publish(addresses)
        assert run("agent", "add", "alpha", "--state", "kept", "--json").json["handle"] == "alpha"
        monkeypatch.setenv("DIBS_STATE", str(folder.path))
        assert [agent["handle"] for agent in run("agent", "list", "--json").json] == ["alpha"]
        assert run("migrate", "--json").json == {"before": HEAD, "schema": HEAD}
    assert "no stack runs on" in run("agent", "list").refusal


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("postgresql://alpha:hunter2@127.0.0.1:1/dibs", "the database is out of reach: "),
        ("postgresql://alpha:hunter2@/dibs?host=/nowhere", "the database is out of reach: "),
        ("postgresql://alpha:hunter2@[::1/dibs", "the database address is not of the form "),
        ("postgresql://alpha:hun@ter2@db/dibs", "the database address is not of the form "),
        ("postgresql://alpha:hunter2/x@db:y/dibs", "the database address is not of the form "),
        ("mysql://alpha:hunter2@127.0.0.1:1/dibs", "the database address is not of the form "),
        ("hunter2", "the database address is not of the form "),
    ],
)
@pytest.mark.parametrize("words", [("agent", "list", "--json"), ("migrate",)])
def test_an_address_that_leads_nowhere_is_one_line_without_the_password(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, url: str, line: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("DIBS_DATABASE_URL", url)
    refusal = run(*words).refusal
    assert refusal.startswith(line)
    assert "ter2" not in refusal


@pytest.fixture
def bare(servers: SharedServers, database: Database) -> Iterator[Database]:
    """A database without a schema."""
    name = f"{database.service_url.partition('@/')[2].partition('?')[0]}_bare"
    servers.postgres.create_database(name)
    yield Database(*(servers.postgres.url(role=role, database=name) for role in (SERVICE, OWNER)))
    drop_database(servers.postgres, name)


def test_migrate_makes_the_schema_once_and_lets_the_service_in(
    run: Callable[..., Ran], bare: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_DATABASE_URL", bare.service_url)
    assert run("agent", "list").refusal == "the database has not the schema of this version: run dibs migrate"
    assert run("migrate").refusal.startswith("the database role may not do this: permission denied for schema public")
    monkeypatch.setenv("DIBS_MIGRATE_DATABASE_URL", bare.owner_url)
    monkeypatch.setenv("DIBS_SERVICE_ROLE", SERVICE)
    assert run("migrate", "--json").json == {"before": None, "schema": HEAD}
    assert run("migrate", "--json").json == {"before": HEAD, "schema": HEAD}
    assert run("migrate").out == f"the schema is {HEAD} already\n"
    assert run("agent", "add", "alpha").status == 0
    with psycopg.connect(bare.service_url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("DELETE FROM alembic_version")


def test_a_schema_from_the_future_is_left_alone(
    run: Callable[..., Ran], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.rows("UPDATE alembic_version SET version_num = '9999'")
    monkeypatch.setenv("DIBS_DATABASE_URL", database.owner_url)
    assert run("migrate").refusal == "the database's schema is not known here: use the dibs that migrated it"
    assert database.value("SELECT version_num FROM alembic_version") == "9999"


# Web and worker


@pytest.mark.parametrize("word", ["web", "worker"])
def test_a_wrong_setting_is_one_line_and_exits_with_2(
    dibs: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.delenv("DIBS_SECRET_KEYS", raising=False)
    monkeypatch.setenv("DIBS_REDIS_URL", "unix:///nowhere")
    assert dibs(word).usage == "dibs: DIBS_SECRET_KEYS is not set"
    monkeypatch.setenv("DIBS_SECRET_KEYS", SECRET_KEYS)
    monkeypatch.setenv("DIBS_LEASE_MS", "soon")
    assert dibs(word).usage.startswith("dibs: DIBS_LEASE_MS must be a whole number")


class Process:
    """``dibs web`` or ``dibs worker``, with its log."""

    def __init__(self, log: Path, *words: str, env: dict[str, str]) -> None:
        self.log = log
        self.log.touch()
        self.child = Child(
            Launch(
                argv=(sys.executable, "-m", "deploy.cli", *words),
                env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **env},
                cwd=log.parent,
                log=log,
                death_signal=SIGKILL,
            )
        )

    def events(self) -> list[dict[str, Any]]:
        """The lines so far; each is a JSON object."""
        text = self.log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_for(self, start: str) -> str:
        """Return the first event that starts so."""

        def found() -> str | None:
            assert self.child.poll() is None, self.log.read_text()
            return next((each["event"] for each in self.events() if each["event"].startswith(start)), None)

        return wait_for(f"an event {start!r}", found)

    def stop(self) -> int | None:
        """Ask it to end, and return its exit status."""
        self.child.send(SIGTERM)
        return self.child.wait(seconds=20)


@pytest.fixture
def processes(database: Database, redis_url: str, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []
    env = {
        "DIBS_DATABASE_URL": database.service_url,
        "DIBS_REDIS_URL": redis_url,
        "DIBS_SECRET_KEYS": SECRET_KEYS,
    }

    def start(*words: str, **more: str) -> Process:
        made.append(Process(tmp_path / f"{len(made)}.log", *words, env={**env, **more}))
        return made[-1]

    yield start
    for process in made:
        process.child.send(SIGKILL)
        process.child.wait(seconds=10)


def test_web_serves_reloads_and_stops_and_logs_json_alone(processes: Callable[..., Process]) -> None:
    web = processes("web", "--port", "0", DIBS_WEB="2")
    address = re.match(r"Listening at: (\S+)", web.wait_for("Listening at: "))
    assert address is not None

    def ready() -> bool:
        try:
            return httpx.get(f"{address[1]}/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def serving() -> int:
        return sum(each["event"].startswith("ASGI server listening") for each in web.events())

    wait_for("two processes to serve", lambda: serving() == 2)
    wait_for("/readyz to answer 200", ready)
    web.child.send(SIGHUP)
    wait_for("two further processes to serve", lambda: serving() == 4)
    wait_for("/readyz to answer 200 again", ready)
    assert web.stop() == 0
    events = web.events()
    assert {each["logger"] for each in events} == {"gunicorn.error"}
    for each in events:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", each["timestamp"])
        assert each["level"] in {"info", "warning", "error"}


def test_worker_starts_and_stops_and_logs_json_alone(processes: Callable[..., Process]) -> None:
    worker = processes("worker")
    worker.wait_for("worker_started")
    assert worker.stop() == 0
    assert [each["event"] for each in worker.events()] == ["worker_started", "worker_stopped"]


def test_worker_without_its_servers_goes_on_trying_and_tells_no_password(processes: Callable[..., Process]) -> None:
    worker = processes(
        "worker",
        DIBS_DATABASE_URL="postgresql://alpha:hunter2@127.0.0.1:1/dibs",
        DIBS_REDIS_URL="redis://:hunter2@127.0.0.1:1/0",
    )
    worker.wait_for("redis_unreachable")
    assert worker.stop() == 0
    assert "hunter2" not in worker.log.read_text()
