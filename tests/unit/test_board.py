import json
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.rules.board import (
    IMPORTER,
    BoardError,
    BoardTask,
    decode_board,
    decode_catalog,
    encode_board,
    is_handle,
    is_slug,
)
from models.rules.board_plan import import_plan
from models.rules.board_tasks import handles_of, occupants, tasks_of, with_agents
from models.rules.conflict import DeliveryMode, Kind
from models.rules.intents import ValidationPolicy
from models.rules.notes import Note
from models.rules.tasks import LIVE, BindView, Status, Task
from tests.builders import NOW

MAR = json.loads((Path(__file__).parent.parent / "data" / "mar_v0.json").read_text(encoding="utf-8"))
CATALOG = [{"work_item_id": "T1", "canonical_title": "Map the reef", "aliases": ["chart coral"]}]
SECOND = timedelta(seconds=1)


def task_of(number: int = 1, /, **fields: Any) -> dict[str, Any]:
    return {"id": number, "title": f"Task {number}", "status": "open", **fields}


def file_of(*tasks: dict[str, Any], **members: Any) -> bytes:
    return json.dumps({"space": "lab", "tasks": tasks, **members}).encode()


def read(*tasks: dict[str, Any], **members: Any) -> tuple[Task, ...]:
    return tasks_of(decode_board(file_of(*tasks, **members)), now=NOW)


def one(**fields: Any) -> Task:
    (found,) = read(task_of(**fields), catalog=CATALOG)
    return found


def fault(*tasks: dict[str, Any], **members: Any) -> tuple[str, str]:
    with pytest.raises(BoardError) as caught:
        read(*tasks, **members)
    return caught.value.pointer, str(caught.value)


class TestDefaults:
    def test_of_a_task_with_an_id_a_title_and_a_status(self):
        assert one(title=" Count\tfish ") == Task(
            id=1,
            space="lab",
            title="Count fish",
            body="",
            work_item_id=None,
            bind=BindView("title", None, 0.0, None, 1),
            delivery_mode=DeliveryMode.RESULT,
            validation_policy=ValidationPolicy.EVIDENCE,
            status=Status.OPEN,
            conflict_key=one(title="count FISH").conflict_key,
            created_by=IMPORTER,
            created_at=NOW,
            updated_at=NOW,
        )

    def test_of_a_board_with_nothing_but_a_name(self):
        board = decode_board(b'{"space": "lab"}')
        assert (board.visibility, board.catalog, board.members, tasks_of(board, now=NOW)) == ("public", (), (), ())
        assert handles_of(board) == ()

    @pytest.mark.parametrize("name", sorted(set(BoardTask.__struct_fields__) - {"id", "title", "status"}))
    def test_null_is_absence_or_refused(self, name):
        """The fields that a task has anyway are named or left out; the others may say that they have nothing."""
        if name in {"body", "delivery_mode", "validation_policy", "held", "revision"}:
            assert fault(task_of(**{name: None}))[0] == f"/tasks/0/{name}"
        else:
            assert one(**{name: None}) == one()


class TestBinding:
    def test_the_mar_board_is_bound_as_the_seed_says(self):
        tasks = read(
            *(task_of(row["task"], title=row["title"], status=row["board"]) for row in MAR["titles"]),
            space=MAR["space"],
            catalog=MAR["catalog"],
        )
        assert {task.id: task.work_item_id for task in tasks} == {row["task"]: row["slot"] for row in MAR["titles"]}
        assert {task.bind.provenance for task in tasks} == {"charter"}
        assert {task.conflict_key.target for task in tasks} == {
            f"task:{MAR['space']}:slot:T1",
            f"task:{MAR['space']}:slot:T3",
        }
        assert occupants(tasks) == {91, 96}

    def test_a_work_item_id_alone_counts_as_requested(self):
        task = one(title="Map the reef", work_item_id=" t007 ")
        assert task.bind == BindView("request", "T7", None, None, 1)
        assert (task.work_item_id, task.conflict_key.target) == ("T7", "task:lab:slot:T7")

    @pytest.mark.parametrize("item", ["T1", None])
    def test_a_bind_stands_as_it_is_even_where_the_catalog_says_otherwise(self, item):
        bind = {"provenance": "charter", "slot": "T1", "score": 0.4125, "runner_up": 0, "charter_revision": 9}
        task = one(title="Count fish", work_item_id=item, bind=bind)
        assert task.bind == BindView("charter", "T1", 0.4125, 0.0, 9)
        assert (task.work_item_id, task.conflict_key.target) == ("T1", "task:lab:slot:T1")

    def test_a_bind_to_the_title_keeps_the_charter_away(self):
        task = one(title="Map the reef", bind={"provenance": "title", "charter_revision": 1})
        assert (task.work_item_id, task.conflict_key.target) == (None, "task:lab:map the reef")

    def test_the_mode_is_part_of_the_key(self):
        key = one(title="Map the reef", delivery_mode="repository_change").conflict_key
        assert (key.kind, key.delivery_mode) == (Kind.CREATE_TASK, DeliveryMode.REPOSITORY_CHANGE)


class TestTimes:
    def test_are_kept_to_the_microsecond_and_told_in_utc(self):
        task = one(
            created_at="2026-01-02T03:04:05.000001+05:30",
            updated_at="2026-01-02T03:04:05.123456Z",
            claimed_at="2026-01-02T03:04:05-01:00",
        )
        assert task.created_at == datetime(2026, 1, 1, 21, 34, 5, 1, UTC)
        assert task.created_at.utcoffset() == timedelta(0)
        assert task.updated_at == datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)
        assert task.claimed_at == datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC)

    @pytest.mark.parametrize("name", ["created_at", "updated_at", "claimed_at"])
    @pytest.mark.parametrize(
        "text", ["2026-01-02T03:04:05", "yesterday", "0001-01-01T00:00:00+01:00", "9999-12-31T23:30:00-01:00"]
    )
    def test_without_a_zone_or_outside_the_calendar_are_refused(self, name, text):
        assert fault(task_of(**{name: text}))[0] == f"/tasks/0/{name}"


class TestSuccession:
    def test_may_pass_several_and_end_at_any_task_of_the_file(self):
        tasks = read(
            task_of(3, status="superseded", superseded_by=2),
            task_of(2, status="superseded", superseded_by=1),
            task_of(1, status="done"),
            task_of(4, status="superseded"),
        )
        assert {task.id: task.superseded_by for task in tasks} == {1: None, 2: 1, 3: 2, 4: None}

    @pytest.mark.parametrize("order", list(permutations([(1, 2), (2, 3), (3, 1)])))
    def test_in_a_circle_is_refused(self, order):
        several = [task_of(one, status="superseded", superseded_by=other) for one, other in order]
        pointer, line = fault(task_of(9), *several)
        assert pointer == "/tasks/1/superseded_by"
        assert "leads back" in line

    def test_by_itself_is_refused(self):
        assert fault(task_of(1, status="superseded", superseded_by=1))[0] == "/tasks/0/superseded_by"

    def test_by_a_task_outside_the_file_is_refused(self):
        assert fault(task_of(1, status="superseded", superseded_by=7)) == (
            "/tasks/0/superseded_by",
            "/tasks/0/superseded_by: task 7 is not in this file",
        )

    @pytest.mark.parametrize("status", sorted(set(Status) - {Status.SUPERSEDED}))
    def test_of_a_task_that_was_not_superseded_is_refused(self, status):
        assert fault(task_of(1, status=status, superseded_by=2), task_of(2))[0] == "/tasks/0/superseded_by"

    @given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    def test_is_refused_exactly_if_it_never_ends(self, targets):
        """``targets[n]`` is the survivor of task n + 1; 0 is none."""
        targets = [target if target <= len(targets) else 0 for target in targets]
        tasks = [
            task_of(n, status="superseded", superseded_by=target or None) for n, target in enumerate(targets, start=1)
        ]

        def ends(number: int) -> bool:
            for _ in targets:
                number = targets[number - 1] if number else 0
            return number == 0

        if all(ends(number) for number in range(1, len(targets) + 1)):
            assert len(read(*tasks)) == len(targets)
        else:
            assert fault(*tasks)[0].endswith("/superseded_by")


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        (file_of(task_of(0)), "/tasks/0/id"),
        (file_of(task_of(1), task_of(2**53)), "/tasks/1/id"),
        (file_of(task_of(True)), "/tasks/0/id"),
        (file_of(task_of(4), task_of(5), task_of(4)), "/tasks/2/id"),
        (file_of({"id": 1, "title": "x"}), "/tasks/0"),
        (file_of({"id": 1, "status": "open"}), "/tasks/0"),
        (file_of({"title": "x", "status": "open"}), "/tasks/0"),
        (file_of(task_of(color="red")), "/tasks/0"),
        (file_of(task_of(status="opened")), "/tasks/0/status"),
        (file_of(task_of(title=" \t ")), "/tasks/0/title"),
        (file_of(task_of(title="a\x00b")), "/tasks/0/title"),
        (file_of(task_of(title="a\u202eb")), "/tasks/0/title"),
        (file_of(task_of(title="x" * 301)), "/tasks/0/title"),
        (file_of(task_of(body="x" * 8001)), "/tasks/0/body"),
        (file_of(task_of(body="a\x00b")), "/tasks/0/body"),
        (file_of(task_of(space="other")), "/tasks/0/space"),
        (file_of(task_of(work_item_id="7")), "/tasks/0/work_item_id"),
        (file_of(task_of(delivery_mode="post")), "/tasks/0/delivery_mode"),
        (file_of(task_of(validation_policy="trust")), "/tasks/0/validation_policy"),
        (file_of(task_of(revision=0)), "/tasks/0/revision"),
        (file_of(task_of(revision=2**31)), "/tasks/0/revision"),
        (file_of(task_of(received_seq=-1)), "/tasks/0/received_seq"),
        (file_of(task_of(received_seq=2**53)), "/tasks/0/received_seq"),
        (file_of(task_of(window_id="w1")), "/tasks/0/window_id"),
        (file_of(task_of(created_by="Alpha")), "/tasks/0/created_by"),
        (file_of(task_of(holder="")), "/tasks/0/holder"),
        (file_of(task_of(assigned_to="a b")), "/tasks/0/assigned_to"),
        (file_of(task_of(held=1)), "/tasks/0/held"),
        (file_of(task_of(bind={"provenance": "luck", "charter_revision": 1})), "/tasks/0/bind/provenance"),
        (file_of(task_of(bind={"provenance": "title", "slot": "T1", "charter_revision": 1})), "/tasks/0/bind/slot"),
        (file_of(task_of(bind={"provenance": "charter", "charter_revision": 1})), "/tasks/0/bind/slot"),
        (file_of(task_of(bind={"provenance": "request", "slot": "x", "charter_revision": 1})), "/tasks/0/bind/slot"),
        (
            file_of(task_of(bind={"provenance": "request", "slot": "T1", "score": 1.5, "charter_revision": 1})),
            "/tasks/0/bind/score",
        ),
        (
            file_of(task_of(work_item_id="T2", bind={"provenance": "request", "slot": "T1", "charter_revision": 1})),
            "/tasks/0/work_item_id",
        ),
        (
            file_of(task_of(conflict_key={"kind": "create_task", "target": "task:lab:x", "delivery_mode": "result"})),
            "/tasks/0/conflict_key",
        ),
        (
            file_of(task_of(conflict_key={"kind": "create_task", "target": "task:lab:task 1", "delivery_mode": "no"})),
            "/tasks/0/conflict_key/delivery_mode",
        ),
        (file_of(space="Lab"), "/space"),
        (file_of(space=""), "/space"),
        (file_of(space="a" * 64), "/space"),
        (file_of(space="lab\n"), "/space"),
        (file_of(visibility="secret"), "/visibility"),
        (file_of(members=[{"handle": "Alpha", "role": "member"}]), "/members/0/handle"),
        (file_of(members=[{"handle": "alpha", "role": "owner"}]), "/members/0/role"),
        (file_of(members=[{"handle": "alpha"}]), "/members/0"),
        (file_of(members=[{"handle": "alpha", "role": role} for role in ("member", "steward")]), "/members/1/handle"),
        (file_of(catalog=[*CATALOG, {"work_item_id": "t01", "canonical_title": "x"}]), "/catalog/1/work_item_id"),
        (file_of(catalog=[{"work_item_id": "one", "canonical_title": "x"}]), "/catalog/0/work_item_id"),
        (file_of(catalog=[{"work_item_id": "T1", "canonical_title": " "}]), "/catalog/0/canonical_title"),
        (file_of(catalog=[{**CATALOG[0], "aliases": ["x", "a\x07"]}]), "/catalog/0/aliases/1"),
        (file_of(catalog=[{**CATALOG[0], "weight": 1}]), "/catalog/0"),
        (file_of(notes=[{"id": 1}]), "/notes/0"),
        (file_of(color="red"), ""),
        (b"{}", ""),
        (b"[]", ""),
        (b"", ""),
        (b"{", ""),
        (b'\xef\xbb\xbf{"space":"lab"}', ""),
        (b'{"space":"\xff"}', ""),
        (b'{"space":"\\ud800"}', ""),
        (b'{"space":"lab","space":"lab"}', ""),
        (b'{"space":"lab","tasks":[{"id":1,"title":"x","status":"open","\\u0069d":1}]}', ""),
        (b'{"space":"lab","notes":' + b"[" * 5000 + b"]" * 5000 + b"}", "/notes/0"),
        (b'{"space":"lab","tasks":[{"id":1' + b"0" * 5000 + b',"title":"x","status":"open"}]}', "/tasks/0/id"),
    ],
)
def test_a_file_is_refused_at_its_first_fault(document: bytes, pointer: str):
    with pytest.raises(BoardError) as caught:
        tasks_of(decode_board(document), now=NOW)
    assert caught.value.pointer == pointer
    assert str(caught.value).startswith(f"{pointer}: " if pointer else "")
    assert len(str(caught.value)) > len(pointer) + 2


def test_a_title_and_a_body_may_be_as_long_as_a_tasks():
    task = one(title="x" * 300, body="\n" * 8000)
    assert (len(task.title), len(task.body)) == (300, 8000)


def test_the_longest_numbers_are_taken():
    task = one(id=2**53 - 1, received_seq=2**53 - 1, revision=2**31 - 1)
    assert (task.id, task.received_seq, task.revision) == (2**53 - 1, 2**53 - 1, 2**31 - 1)


@pytest.mark.parametrize("name", ["a", "0", "a.b_c-d", "x" * 63])
def test_handles(name):
    assert is_handle(name)
    assert not is_handle(name + " ")


@pytest.mark.parametrize("name", ["", "A", ".a", "-a", "_a", "a/b", "a\n", "é", "x" * 64])
def test_no_handles(name):
    assert not is_handle(name)
    assert not is_slug(name)


@pytest.mark.parametrize(("name", "fits"), [("a-b", True), ("9", True), ("a.b", False), ("a_b", False)])
def test_slugs_have_no_dots(name, fits):
    assert is_slug(name) is fits


@st.composite
def boards_with_leftovers(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Tasks with few titles and times, so that several share a key and an age."""
    moments = [(NOW + number * SECOND).isoformat() for number in range(3)]
    return [
        task_of(
            number,
            title=draw(st.sampled_from(["Map the reef", "Chart CORAL: map the reef", "Count fish"])),
            status=draw(st.sampled_from(sorted(Status))),
            delivery_mode=draw(st.sampled_from(sorted(DeliveryMode))),
            created_at=draw(st.sampled_from(moments)),
        )
        for number in draw(st.lists(st.integers(1, 9), unique=True))
    ]


@given(boards_with_leftovers())
def test_each_key_with_a_live_task_is_held_by_its_oldest(tasks):
    found = read(*tasks, catalog=CATALOG)
    holding = occupants(found)
    live = [task for task in found if task.status in LIVE]
    holders = {task.conflict_key: task for task in live if task.id in holding}
    assert holding <= {task.id for task in live}
    assert len(holders) == len(holding)
    assert holders.keys() == {task.conflict_key for task in live}
    for task in live:
        holder = holders[task.conflict_key]
        assert (holder.created_at, holder.id) <= (task.created_at, task.id)


@given(boards_with_leftovers(), st.randoms(use_true_random=False))
def test_the_order_of_the_file_carries_no_meaning(tasks, chance):
    shuffled = list(tasks)
    chance.shuffle(shuffled)
    assert read(*shuffled, catalog=CATALOG) == read(*tasks, catalog=CATALOG)


def test_agents_are_named_once_each_and_become_ids():
    members = [{"handle": "epsilon", "role": "steward"}, {"handle": "alpha", "role": "member"}]
    board = decode_board(
        file_of(task_of(1, created_by="beta", holder="alpha", assigned_to="omega"), task_of(2), members=members)
    )
    assert handles_of(board) == ("alpha", "beta", "epsilon", IMPORTER, "omega")
    ids = {handle: f"agt_{handle}" for handle in handles_of(board)}
    first, second = with_agents(tasks_of(board, now=NOW), ids)
    assert (first.created_by, first.holder, first.assigned_to) == ("agt_beta", "agt_alpha", "agt_omega")
    assert (second.created_by, second.holder, second.assigned_to) == ("agt_import", None, None)


def planned(*tasks: dict[str, Any], **members: Any):
    board = decode_board(file_of(*tasks, **members))
    ids = {handle: f"agt_{handle}" for handle in handles_of(board)}
    return import_plan(board, with_agents(tasks_of(board, now=NOW), ids), ids, now=NOW, first_event=5)


def test_events_go_on_from_the_first_number_and_rebuild_tasks_and_notes():
    plan = planned(
        task_of(9, held=True, holder="alpha", window_id=str(UUID(int=7)), received_seq=3),
        task_of(4),
        notes=[{"id": 2, "task_id": 9, "body": "Sound", "created_by": "beta", "criterion_index": 1}],
    )
    assert [(event.number, event.task_id, event.type, event.actor, event.at) for event in plan.events] == [
        (5, 4, "task_imported", "agt_import", NOW),
        (6, 9, "task_imported", "agt_import", NOW),
        (7, 9, "note_imported", "agt_beta", NOW),
    ]
    tasks = [msgspec.json.decode(event.data, type=Task) for event in plan.events[:2]]
    assert tasks == [row.task for row in plan.tasks]
    assert msgspec.json.decode(plan.events[2].data, type=Note) == plan.notes[0].note


def test_a_posted_note_occupies_its_key_and_a_withdrawn_one_does_not():
    said = {"task_id": 1, "body": "Sound"}
    plan = planned(task_of(1, status="done"), notes=[{"id": 1, "status": "withdrawn", **said}, {"id": 2, **said}])
    assert [(row.after.task_id, row.after.note_id) for row in plan.occupancies] == [(1, 2)]


@pytest.mark.parametrize(
    ("notes", "pointer"),
    [
        ([{"id": 1, "task_id": 7, "body": "x"}], "/notes/0/task_id"),
        ([{"id": 1, "task_id": 1, "body": " "}], "/notes/0/body"),
        ([{"id": 1, "task_id": 1, "body": "x"}, {"id": 1, "task_id": 1, "body": "y"}], "/notes/1/id"),
        ([{"id": 1, "task_id": 1, "body": "x"}, {"id": 2, "task_id": 1, "body": " x\n"}], "/notes/1"),
        ([{"id": 1, "task_id": 1, "body": "x", "created_by": "Alpha"}], "/notes/0/created_by"),
    ],
)
def test_a_note_is_refused_at_its_first_fault(notes: list[dict[str, Any]], pointer: str):
    with pytest.raises(BoardError) as caught:
        planned(task_of(1), notes=notes)
    assert caught.value.pointer == pointer


def test_a_task_has_ended_when_the_file_says_or_overlaps_with_all_of_its_key_that_it_does_not_date():
    times = {"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-02-01T00:00:00Z"}
    same = {"work_item_id": "T1"}
    plan = planned(
        task_of(1, status="done", **times),
        task_of(2, status="done", **times, **same),
        task_of(3, **same),
        task_of(4, **times),
    )
    assert [row.ended_at for row in plan.tasks] == [datetime(2026, 2, 1, tzinfo=UTC), NOW, None, None]


def test_an_exported_task_has_the_members_of_an_answered_one_in_their_order():
    assert BoardTask.__struct_fields__ == Task.__struct_fields__


def test_a_file_is_indented_by_two_ends_in_a_newline_and_reads_back_the_same():
    board = decode_board(file_of(task_of(title="Zähle Fische"), catalog=CATALOG))
    document = encode_board(board)
    assert document.startswith(b'{\n  "space": "lab",\n  "visibility": "public",\n  "catalog": [\n    {\n')
    assert document.endswith(b'  "notes": []\n}\n')
    assert "Zähle Fische".encode() in document
    assert decode_board(document) == board
    assert encode_board(decode_board(document)) == document


class TestCatalogFile:
    def test_is_a_list_of_rows(self):
        (row,) = decode_catalog(json.dumps(CATALOG).encode())
        assert (row.work_item_id, row.canonical_title, row.aliases) == ("T1", "Map the reef", ("chart coral",))
        assert decode_catalog(b"[]") == ()

    @pytest.mark.parametrize(
        ("document", "pointer"),
        [
            (b'{"catalog":[]}', ""),
            (b'[{"work_item_id":"T1"}]', "/0"),
            (b'[{"work_item_id":"T1","canonical_title":7}]', "/0/canonical_title"),
            (json.dumps(CATALOG * 2).encode(), "/1/work_item_id"),
            (b'[{"work_item_id":"T1","canonical_title":"x","aliases":["","y"]}]', "/0/aliases/0"),
            (b'[{"work_item_id":"T1","canonical_title":"x","canonical_title":"y"}]', ""),
        ],
    )
    def test_is_refused_at_its_first_fault(self, document, pointer):
        with pytest.raises(BoardError) as caught:
            decode_catalog(document)
        assert caught.value.pointer == pointer

    def test_has_at_most_1000_rows_with_64_aliases(self):
        rows = [{"work_item_id": f"T{n}", "canonical_title": f"Work {n}", "aliases": ["x"] * 64} for n in range(1000)]
        assert len(decode_catalog(json.dumps(rows).encode())) == 1000
        with pytest.raises(BoardError, match="at most 1000 rows"):
            decode_catalog(json.dumps([*rows, {"work_item_id": "T1000", "canonical_title": "y"}]).encode())
        rows[7]["aliases"] = ["x"] * 65
        with pytest.raises(BoardError, match=r"^/7/aliases: a row has at most 64 aliases$"):
            decode_catalog(json.dumps(rows).encode())
