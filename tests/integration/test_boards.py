"""Board files, charters and members against a real database."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import psycopg
import pytest
from sqlalchemy import Connection, Engine

from models.rules.board import BoardError, decode_board
from models.rules.charter import CatalogRow
from models.rules.spaces import Role, Visibility
from models.rules.tasks import Task
from models.store import spaces
from models.store.agents import TakenError, UnknownError, ensure_agents
from models.store.boards import Imported, export_board, import_board
from models.store.database import admin_engine
from models.store.spaces import create_space
from tests.pipeline import Pipeline, counted_statements, propose
from tests.stack import MAR, TITLES, Database, add_agents
from tests.stack import Board as Space
from tests.waiting import wait_for

LAB = "lab"
LATEST = "9999-12-31T23:59:59.999999Z"


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    found = admin_engine(database.service_url)
    yield found
    found.dispose()


def mar_file(**members: Any) -> bytes:
    """The MAR board under a name of the test's own."""
    tasks = [{"id": row["task"], "title": row["title"], "status": row["board"]} for row in MAR["titles"]]
    return json.dumps({"space": LAB, "catalog": MAR["catalog"], "tasks": tasks, **members}).encode()


def rich_file() -> bytes:
    """Every field with something in it."""
    bind = {"provenance": "charter", "slot": "T1", "score": 0.5833, "runner_up": 0.0, "charter_revision": 3}
    tasks = [
        {
            "id": 7,
            "title": "Grüße an die Korallen 🐠",
            "body": 'zwei\nZeilen\t\\ "quoted" \u2028',
            "work_item_id": "T1",
            "bind": bind,
            "delivery_mode": "repository_change",
            "validation_policy": "none",
            "status": "superseded",
            "created_by": "alpha",
            "holder": "beta.b",
            "assigned_to": "omega",
            "claimed_at": "2026-02-03T04:05:06.000007Z",
            "superseded_by": 3,
            "held": True,
            "revision": 12,
            "received_seq": 2**53 - 1,
            "window_id": "01970000-0000-7000-8000-00000000000f",
            "created_at": "2026-01-02T03:04:05.123456+05:30",
            "updated_at": "2026-01-02T03:04:05.1Z",
        },
        {"id": 3, "title": "Count fish", "status": "claimed", "holder": "omega", "created_at": "1999-12-31T23:59:59Z"},
        {"id": 4, "title": "count FISH", "status": "open", "created_at": "0001-01-01T00:00:00Z"},
        {
            "id": 5,
            "title": "Named",
            "status": "done",
            "work_item_id": "T99",
            "updated_at": "9999-12-31T23:59:59.999999Z",
        },
    ]
    return json.dumps(
        {
            "space": LAB,
            "visibility": "members",
            "catalog": [
                {"work_item_id": "t01", "canonical_title": " Map  the reef ", "aliases": ["chart", "coral"]},
                {"work_item_id": "T2", "canonical_title": "Count"},
            ],
            "members": [{"handle": name, "role": role} for name, role in (("omega", "member"), ("a_b", "steward"))],
            "tasks": tasks,
        }
    ).encode()


def load(connection: Connection, document: bytes) -> Imported:
    return import_board(connection, decode_board(document))


def counts(database: Database) -> dict[str, int]:
    names = ("spaces", "charters", "partitions", "agents", "members", "tasks", "occupancies", "events")
    return {name: database.value(f"SELECT count(*) FROM {name}") for name in names}


@pytest.mark.parametrize("document", [rich_file(), mar_file(), b'{"space":"lab"}'], ids=["rich", "mar", "empty"])
def test_export_import_export_is_the_same_byte_for_byte(engine: Engine, document: bytes) -> None:
    # A transaction that is rolled back leaves a database as fresh as before, down to the agents.
    with engine.connect() as connection:
        load(connection, document)
        first = export_board(connection, LAB)
        connection.rollback()
        with pytest.raises(UnknownError):
            export_board(connection, LAB)
        load(connection, first)
        assert export_board(connection, LAB) == first
        assert export_board(connection, LAB) == first


def test_an_export_says_all_that_the_file_said(engine: Engine) -> None:
    given = json.loads(rich_file())
    with engine.connect() as connection:
        load(connection, rich_file())
        found = json.loads(export_board(connection, LAB))
    assert list(found) == ["space", "visibility", "catalog", "members", "tasks", "notes"]
    assert (found["visibility"], found["notes"]) == ("members", [])
    assert found["catalog"] == [{"aliases": [], **row} for row in given["catalog"]]
    assert found["members"] == sorted(given["members"], key=lambda member: member["handle"])
    assert [task["id"] for task in found["tasks"]] == [3, 4, 5, 7]
    rich = found["tasks"][-1]
    key = {"kind": "create_task", "target": "task:lab:slot:T1", "delivery_mode": "repository_change"}
    times = {"created_at": "2026-01-01T21:34:05.123456Z", "updated_at": "2026-01-02T03:04:05.100000Z"}
    assert rich == {**given["tasks"][0], "space": LAB, "conflict_key": key, **times}
    assert found["tasks"][0]["created_at"] == "1999-12-31T23:59:59Z"
    assert found["tasks"][1]["created_at"] == "0001-01-01T00:00:00Z"
    assert found["tasks"][2]["updated_at"] == LATEST
    assert found["tasks"][2]["bind"]["provenance"] == "request"
    assert found["tasks"][0]["created_by"] == "import"


def test_an_import_writes_counters_events_and_one_occupancy_a_key(engine: Engine, database: Database) -> None:
    with engine.begin() as connection:
        assert load(connection, mar_file()) == Imported(space=LAB, members=0, tasks=7, notes=0, next_task=98)
    (space,) = database.rows("SELECT * FROM spaces")
    assert (space["next_task"], space["next_event"], space["charter_revision"]) == (98, 9, 1)
    held = database.rows("SELECT target, task_id FROM occupancies ORDER BY task_id")
    assert [(row["target"], row["task_id"]) for row in held] == [
        ("task:lab:slot:T1", 91),
        ("task:lab:slot:T3", 96),
    ]
    events = database.rows("SELECT number, type, actor, task_id, data::text AS data FROM events ORDER BY number")
    assert [(row["number"], row["type"], row["task_id"]) for row in events] == [
        (1, "space_created", None),
        *((number, "task_imported", task) for number, task in enumerate(TITLES, start=2)),
    ]
    events = events[1:]
    importer = database.value("SELECT id FROM agents WHERE handle = 'import' AND active AND listed")
    assert {row["actor"] for row in events} == {importer}
    told = [msgspec.json.decode(row["data"], type=Task) for row in events]
    stored = database.rows("SELECT id, title, status, target, created_by, created_at FROM tasks ORDER BY id")
    assert [
        (task.id, task.title, task.status, task.conflict_key.target, task.created_by, task.created_at) for task in told
    ] == [tuple(row.values()) for row in stored]


def test_the_oldest_live_task_of_a_key_holds_it_whatever_its_id(engine: Engine, database: Database) -> None:
    with engine.begin() as connection:
        load(connection, rich_file())
    # 4 is the elder of the two that count fish; 7 has ended.
    assert [row["task_id"] for row in database.rows("SELECT task_id FROM occupancies")] == [4]


def test_agents_that_exist_are_taken_and_stay_as_they_are(engine: Engine, database: Database) -> None:
    (omega,) = add_agents(database, ["omega"])
    database.rows("UPDATE agents SET active = false, listed = false WHERE handle = 'omega'")
    with engine.begin() as connection:
        load(connection, rich_file())
    assert database.value("SELECT holder FROM tasks WHERE id = 3") == omega.id
    rows = database.rows('SELECT handle, active, listed FROM agents ORDER BY handle COLLATE "C"')
    assert [tuple(row.values()) for row in rows] == [
        ("a_b", True, True),
        ("alpha", True, True),
        ("beta.b", True, True),
        ("import", True, True),
        ("omega", False, False),
    ]


def test_a_space_that_exists_is_refused_and_nothing_is_written(engine: Engine, database: Database) -> None:
    with engine.begin() as connection:
        create_space(connection, LAB, visibility=Visibility.PUBLIC, catalog=())
    before = counts(database)
    with pytest.raises(TakenError, match="there is a space 'lab' already"), engine.begin() as connection:
        load(connection, mar_file())
    assert counts(database) == before


def test_a_fault_in_the_last_task_leaves_nothing_behind(engine: Engine, database: Database) -> None:
    document = json.loads(mar_file())
    document["tasks"][-1]["title"] = " "
    before = counts(database)
    with pytest.raises(BoardError), engine.begin() as connection:
        load(connection, json.dumps(document).encode())
    assert counts(database) == before


def test_of_two_imports_at_once_one_is_refused(engine: Engine, database: Database) -> None:
    def run(_number: int) -> str:
        try:
            with engine.begin() as connection:
                load(connection, mar_file())
        except TakenError:
            return "refused"
        return "done"

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(run, range(4))) == ["done", "refused", "refused", "refused"]
    assert counts(database)["tasks"] == 7


def test_statements_do_not_grow_with_the_board(engine: Engine) -> None:
    def statements(size: int) -> int:
        tasks = [
            {"id": n, "title": f"Task {n}", "status": "open", "created_by": f"a{n % 7}"} for n in range(1, size + 1)
        ]
        members = [{"handle": f"a{n}", "role": "member"} for n in range(size)]
        document = json.dumps({"space": LAB, "tasks": tasks, "members": members}).encode()
        with counted_statements(engine) as sent, engine.connect() as connection:
            load(connection, document)
            export_board(connection, LAB)
            connection.rollback()
        return len(sent)

    assert statements(1) == statements(2000) <= 16


def test_an_imported_leftover_wins_and_new_work_goes_on_after_the_last_id(engine: Engine, pipeline: Pipeline) -> None:
    members = [{"handle": agent.handle, "role": "member"} for agent in pipeline.board.members]
    with engine.begin() as connection:
        load(connection, mar_file(members=members))
    space_id = pipeline.database.value("SELECT id FROM spaces WHERE slug = %s", LAB)
    pipeline.board = Space(LAB, space_id, pipeline.board.members)
    again, fresh = (
        propose(pipeline.board, agent, title)
        for agent, title in zip(pipeline.board.members, (TITLES[93], "Count the fish of the lagoon"), strict=False)
    )
    pipeline.append(again, fresh)
    assert pipeline.work() == 1
    assert pipeline.outcome(again) == (409, "conflict_key_occupied")
    assert pipeline.body(again)["winner"]["id"] == 91
    assert pipeline.outcome(fresh) == (201, None)
    assert pipeline.body(fresh)["id"] == 98
    numbers = pipeline.database.rows("SELECT number FROM events WHERE space_id = %s ORDER BY number", space_id)
    assert [row["number"] for row in numbers] == list(range(1, 10 + len(members)))


# Charters and members


@pytest.fixture
def lab(engine: Engine) -> str:
    with engine.begin() as connection:
        create_space(connection, LAB, visibility=Visibility.PUBLIC, catalog=())
        ensure_agents(connection, ("alpha", "beta", "epsilon"))
    return LAB


def roles(database: Database) -> dict[str, str]:
    rows = database.rows("SELECT a.handle, m.role FROM members m JOIN agents a ON a.id = m.agent_id")
    return {row["handle"]: row["role"] for row in rows}


def test_each_charter_is_a_new_revision_and_the_old_ones_are_kept(engine: Engine, lab: str, database: Database) -> None:
    several = [(CatalogRow("T1", "Map the reef", ("chart",)),), (), (CatalogRow("T2", "Count fish"),)]
    with engine.connect() as connection:
        assert (spaces.read_charter(connection, lab).revision, spaces.read_charter(connection, lab).rows) == (1, ())
    for number, rows in enumerate(several, start=2):
        with engine.begin() as connection:
            assert spaces.set_charter(connection, lab, rows) == number
        with engine.connect() as connection:
            found = spaces.read_charter(connection, lab)
            assert (found.revision, found.rows) == (number, rows)
    assert [row["revision"] for row in database.rows("SELECT revision FROM charters ORDER BY 1")] == [1, 2, 3, 4]


def test_a_role_is_given_changed_and_taken(engine: Engine, lab: str, database: Database) -> None:
    with engine.begin() as connection:
        spaces.set_member(connection, lab, "alpha", Role.STEWARD)
        spaces.set_member(connection, lab, "beta", Role.MEMBER)
    assert roles(database) == {"alpha": "steward", "beta": "member"}
    with engine.begin() as connection:
        spaces.set_member(connection, lab, "beta", Role.STEWARD)
        spaces.set_member(connection, lab, "alpha", Role.MEMBER)
        spaces.remove_member(connection, lab, "alpha")
    assert roles(database) == {"beta": "steward"}


@pytest.mark.parametrize(
    "change",
    [
        lambda connection: spaces.set_member(connection, LAB, "alpha", Role.MEMBER),
        lambda connection: spaces.remove_member(connection, LAB, "alpha"),
    ],
)
def test_the_last_steward_stays(
    engine: Engine, lab: str, database: Database, change: Callable[[Connection], None]
) -> None:
    with engine.begin() as connection:
        spaces.set_member(connection, lab, "alpha", Role.STEWARD)
        spaces.set_member(connection, lab, "beta", Role.MEMBER)
    with (
        pytest.raises(spaces.LastStewardError, match="'alpha' is the last steward"),
        engine.begin() as connection,
    ):
        change(connection)
    with engine.begin() as connection:
        spaces.set_member(connection, lab, "alpha", Role.STEWARD)
    assert roles(database) == {"alpha": "steward", "beta": "member"}


def test_of_two_stewards_that_go_at_once_one_stays(engine: Engine, lab: str, database: Database) -> None:
    for _ in range(5):
        with engine.begin() as connection:
            for handle in ("alpha", "beta"):
                spaces.set_member(connection, lab, handle, Role.STEWARD)

        def go(handle: str) -> str:
            try:
                with engine.begin() as connection:
                    spaces.remove_member(connection, lab, handle)
            except spaces.LastStewardError:
                return "stays"
            return "goes"

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(go, ("alpha", "beta"))) == ["goes", "stays"]
        assert list(roles(database).values()) == ["steward"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda connection: spaces.read_charter(connection, "none"), "no space 'none'"),
        (lambda connection: spaces.set_charter(connection, "none", ()), "no space 'none'"),
        (lambda connection: spaces.set_member(connection, "none", "alpha", Role.MEMBER), "no space 'none'"),
        (lambda connection: spaces.set_member(connection, LAB, "none", Role.MEMBER), "no agent 'none'"),
        (lambda connection: spaces.remove_member(connection, LAB, "none"), "no agent 'none'"),
        (lambda connection: spaces.remove_member(connection, LAB, "epsilon"), "'epsilon' is no member of 'lab'"),
    ],
)
def test_what_does_not_exist_is_named(
    engine: Engine, lab: str, change: Callable[[Connection], object], line: str
) -> None:
    with pytest.raises(UnknownError, match=line), engine.begin() as connection:
        change(connection)


@pytest.mark.parametrize(
    "change",
    [
        lambda connection: spaces.set_charter(connection, LAB, ()),
        lambda connection: spaces.set_member(connection, LAB, "alpha", Role.STEWARD),
    ],
)
def test_a_change_waits_for_the_window_in_hand(
    engine: Engine, lab: str, database: Database, change: Callable[[Connection], object]
) -> None:
    def run() -> str:
        with engine.begin() as connection:
            change(connection)
        return "done"

    def waits() -> bool:
        # Nothing else runs on this test's server. Waiting for a row is waiting for its holder's transaction.
        return database.value("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted") == 1

    with psycopg.connect(database.owner_url) as window, ThreadPoolExecutor(1) as threads:
        window.execute("SELECT 1 FROM partitions WHERE name = 'space:lab' FOR UPDATE")
        running = threads.submit(run)
        wait_for("the change to wait for the partition's row", waits)
        assert not running.done()
        window.commit()
        assert running.result(timeout=20) == "done"
