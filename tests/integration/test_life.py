"""Every kind of write through the real pipeline: what the rules decide is what SQL holds. Contract 2.2 to 2.7."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from models.ids import uuid7
from models.rules import ids
from models.rules.board import decode_board
from models.rules.charter import CatalogRow
from models.rules.intents import (
    AssignTask,
    ClaimTask,
    CreateSpace,
    CreateTask,
    Decision,
    HoldTask,
    Intent,
    PostNote,
    Proposal,
    ReleaseTask,
    RemoveMember,
    ReopenTask,
    ReviewTask,
    SetCharter,
    SetMember,
    Submission,
    SubmitTask,
    SupersedeTask,
    UnholdTask,
    WithdrawNote,
    WithdrawTask,
    actor_partition,
)
from models.rules.spaces import Role
from models.store.boards import import_board
from models.store.database import admin_engine
from models.store.spaces import set_member
from models.store.verify import Verified, verify_space
from tests.pipeline import Pipeline, counted_statements
from tests.stack import Agent, Board

EVIDENCE = ("https://example.test/proof",)


class Table:
    """The board's agents around one pipeline: each call is a window of its own unless several are given."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.steward, self.alpha, self.beta, *_ = pipeline.board.members
        with admin_engine(pipeline.database.owner_url).begin() as connection:
            set_member(connection, pipeline.board.slug, self.steward.handle, Role.STEWARD)

    def submission(self, agent: Agent, intent: Intent, *, if_match: tuple[int, ...] | None = None) -> Submission:
        board = self.pipeline.board
        creation = isinstance(intent, CreateSpace)
        return Submission(
            id=ids.append_id(uuid7()),
            partition=actor_partition(agent.id) if creation else board.partition,
            space="new" if creation else board.slug,
            actor=agent.id,
            key_id=agent.key_id,
            proposals=(Proposal.of(intent),),
            if_match=if_match,
            reply_to="web",
        )

    def window(self, *sent: Submission) -> list[tuple[int, Any]]:
        """Run several as one window and return (status, body) of each."""
        self.pipeline.append(*sent)
        self.pipeline.work(partition=sent[0].partition)
        return [(self.pipeline.outcome(one)[0], self.pipeline.body(one)) for one in sent]

    def do(self, agent: Agent, intent: Intent, **options: Any) -> tuple[int, Any]:
        (answer,) = self.window(self.submission(agent, intent, **options))
        return answer

    def task(self, task_id: int) -> dict[str, Any]:
        return self.pipeline.database.rows("SELECT * FROM tasks WHERE id = %s", task_id)[0]

    def clock(self, shift: str) -> None:
        """Set the database's clock ahead."""
        self.pipeline.plant(
            "CREATE OR REPLACE FUNCTION dibs_now() RETURNS timestamptz LANGUAGE sql VOLATILE "
            f"AS $$SELECT clock_timestamp() {shift}$$"
        )

    def verify(self) -> Verified:
        with admin_engine(self.pipeline.database.service_url).connect() as connection:
            return verify_space(connection, self.pipeline.board.slug)

    def occupants(self) -> list[tuple[str, int, int | None]]:
        rows = self.pipeline.database.rows("SELECT target, task_id, note_id FROM occupancies ORDER BY task_id, note_id")
        return [(row["target"].rpartition(":")[2], row["task_id"], row["note_id"]) for row in rows]

    def events(self) -> list[str]:
        rows = self.pipeline.database.rows(
            "SELECT number, type FROM events WHERE space_id = %s ORDER BY number", self.pipeline.board.space_id
        )
        assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
        return [row["type"] for row in rows if row["type"] not in {"space_created", "member_set"}]


@pytest.fixture
def table(pipeline: Pipeline) -> Iterator[Table]:
    """After each test the feed must rebuild the board that it has made."""
    table = Table(pipeline)
    yield table
    assert table.verify().differences == ()


def test_a_task_goes_its_whole_way(table: Table) -> None:
    assert table.do(table.alpha, CreateTask(title="Count fish"))[0] == 201
    assert table.do(table.alpha, ClaimTask(task_id=1))[1]["holder"] == table.alpha.id
    assert table.do(table.beta, ClaimTask(task_id=1))[1]["code"] == "task_already_claimed"
    assert table.do(table.alpha, SubmitTask(task_id=1))[1]["code"] == "evidence_required"
    assert table.do(table.alpha, SubmitTask(task_id=1, evidence=EVIDENCE))[1]["status"] == "in_review"
    assert table.do(table.alpha, ReviewTask(task_id=1, decision=Decision.ACCEPT))[0] == 403
    status, body = table.do(table.beta, ReviewTask(task_id=1, decision=Decision.CHANGES_REQUESTED, note="More"))
    assert (status, body["status"], body["holder"]) == (200, "claimed", table.alpha.id)
    assert table.do(table.alpha, SubmitTask(task_id=1, evidence=EVIDENCE), if_match=(2,))[0] == 412
    assert table.do(table.alpha, SubmitTask(task_id=1, evidence=EVIDENCE), if_match=(4,))[0] == 200
    status, body = table.do(table.beta, ReviewTask(task_id=1, decision=Decision.ACCEPT))
    assert (status, body["status"], body["revision"]) == (200, "done", 6)
    assert table.occupants() == []
    assert table.task(1)["ended_at"] == table.task(1)["updated_at"]
    assert table.do(table.beta, ReopenTask(task_id=1))[1]["code"] == "steward_required"
    assert table.do(table.steward, ReopenTask(task_id=1))[1]["status"] == "open"
    assert (table.occupants(), table.task(1)["ended_at"]) == ([("count fish", 1, None)], None)
    assert table.do(table.steward, AssignTask(task_id=1, assignee=table.beta.id))[1]["holder"] == table.beta.id
    assert table.do(table.alpha, ClaimTask(task_id=1))[1]["code"] == "task_assigned"
    assert table.do(table.beta, ReleaseTask(task_id=1))[1]["status"] == "open"
    assert table.do(table.steward, HoldTask(task_id=1, reason="Wait"))[1]["held"] is True
    assert table.do(table.alpha, WithdrawTask(task_id=1, reason="Moot"))[1]["status"] == "withdrawn"
    status, body = table.do(table.beta, CreateTask(title="COUNT fish"))
    assert (status, body["held"], body["outcome"], body["winner"]["id"]) == (409, True, "idle", 1)
    assert table.do(table.steward, UnholdTask(task_id=1, reason="Go on"))[1]["held"] is False
    assert table.do(table.beta, CreateTask(title="COUNT fish"))[1]["id"] == 2
    assert table.events() == [
        "task_created", "task_claimed", "task_submitted", "task_reviewed", "task_submitted", "task_reviewed",
        "task_reopened", "task_assigned", "task_released", "task_held", "task_withdrawn", "task_unheld", "task_created",
    ]  # fmt: skip


def test_notes_have_keys_of_their_own(table: Table) -> None:
    table.do(table.alpha, CreateTask(title="Count fish"))
    first = table.do(table.beta, PostNote(task_id=1, body="Well done", criterion_index=1))
    assert (first[0], first[1]["id"], first[1]["status"]) == (201, 1, "posted")
    status, body = table.do(table.beta, PostNote(task_id=1, body=" Well  done", criterion_index=1))
    assert (status, body["code"]) == (409, "conflict_key_occupied")
    assert body["winner"] == {"type": "note", "id": 1, "status": "posted", "created_by": table.beta.id}
    two = [table.submission(table.beta, PostNote(task_id=1, body="Well done", criterion_index=2)) for _ in range(2)]
    assert [(status, body.get("code")) for status, body in table.window(*two)] == [
        (201, None),
        (409, "conflict_key_reserved"),
    ]
    assert [one[1:] for one in table.occupants()] == [(1, 1), (1, 2), (1, None)]
    assert table.do(table.alpha, WithdrawNote(note_id=1))[1]["code"] == "author_required"
    assert table.do(table.beta, WithdrawNote(note_id=1, task_id=2))[1]["code"] == "note_not_found"
    assert table.do(table.beta, WithdrawNote(note_id=1, task_id=1))[1]["status"] == "withdrawn"
    assert table.do(table.beta, PostNote(task_id=1, body="Well done", criterion_index=1))[1]["id"] == 3


def leave_leftovers(table: Table) -> None:
    """Three live tasks on one key, as an import leaves them, and one that is done."""
    alpha = table.alpha.handle
    tasks = [
        {"id": 1, "title": "Count fish", "status": "open"},
        {"id": 2, "title": "COUNT fish", "status": "open"},
        {"id": 3, "title": "Count  fish", "status": "claimed", "created_by": alpha, "holder": alpha},
        {"id": 4, "title": "count fish", "status": "done"},
    ]
    members = [
        {"handle": agent.handle, "role": "steward" if agent == table.steward else "member"}
        for agent in (table.steward, table.alpha, table.beta)
    ]
    board = decode_board(json.dumps({"space": "lab", "members": members, "tasks": tasks}).encode())
    with admin_engine(table.pipeline.database.owner_url).begin() as connection:
        import_board(connection, board)
    space_id = table.pipeline.database.value("SELECT id FROM spaces WHERE slug = 'lab'")
    table.pipeline.board = Board("lab", space_id, table.pipeline.board.members)


def close(task: int, survivor: int, reason: str = "allocation_duplicate") -> SupersedeTask:
    return SupersedeTask(task_id=task, surviving_task=survivor, reason=reason)


def test_a_key_is_handed_over_until_nothing_is_left_on_it(table: Table) -> None:
    leave_leftovers(table)
    assert table.do(table.beta, close(1, 4))[1] == {
        "id": 1,
        "status": "superseded",
        "superseded_by": 4,
        "reason": "allocation_duplicate",
        "attributed_to": table.beta.id,
        "history_preserved": True,
        "write_occurred": True,
        "event": "task_superseded",
    }
    assert table.occupants() == [("count fish", 2, None)]
    assert table.do(table.beta, close(2, 3))[0] == 200
    assert table.occupants() == [("count fish", 3, None)]
    status, body = table.do(table.beta, close(3, 4))
    assert (status, body["code"], body["error"]) == (403, "not_occupancy_duplicate", "not_authorized")
    assert table.do(table.steward, close(3, 4, "steward_close"))[0] == 200
    assert table.occupants() == []
    status, body = table.do(table.beta, ClaimTask(task_id=2))
    assert (status, body["error"], body["surviving_task"]) == (409, "task_superseded", 4)
    assert table.task(2)["superseded_by"] == 3
    audit = table.pipeline.database.rows("SELECT * FROM leftover_close_events ORDER BY number")
    assert [(row["event"], row["code"], row["leftover_task"], row["surviving_task"]) for row in audit] == [
        ("task_superseded", None, 1, 4),
        ("task_superseded", None, 2, 3),
        ("task_supersede_denied", "not_occupancy_duplicate", 3, 4),
        ("task_superseded", None, 3, 4),
    ]


@pytest.mark.parametrize(
    "statement", ["UPDATE leftover_close_events SET actor = actor", "DELETE FROM {}", "TRUNCATE {}"]
)
@pytest.mark.parametrize("owner", [False, True])
def test_the_audit_cannot_be_rewritten(table: Table, statement: str, owner: bool) -> None:
    table.do(table.beta, close(1, 4))
    url = table.pipeline.database.owner_url if owner else table.pipeline.database.service_url
    refusal = psycopg.errors.RestrictViolation if owner else psycopg.errors.InsufficientPrivilege
    with psycopg.connect(url) as connection, pytest.raises(refusal):
        connection.execute(statement.format("leftover_close_events"))  # type: ignore[arg-type]
    assert table.pipeline.database.value("SELECT count(*) FROM leftover_close_events") == 1


def test_what_comes_after_a_charter_in_its_window_is_bound_by_it(table: Table) -> None:
    table.do(table.alpha, CreateTask(title="Gauge the tides of the lagoon"))
    catalog = (CatalogRow("T7", "Gauge tides, lagoon"),)
    before, change, after = table.window(
        table.submission(table.alpha, CreateTask(title="Gauge the lagoon tides")),
        table.submission(table.steward, SetCharter(catalog=catalog)),
        table.submission(table.beta, CreateTask(title="The tides: gauge the lagoon")),
    )
    assert before[1]["bind"] == {
        "provenance": "title", "slot": None, "score": before[1]["bind"]["score"],
        "runner_up": before[1]["bind"]["runner_up"], "charter_revision": 1,
    }  # fmt: skip
    assert (change[0], change[1]["revision"]) == (200, 2)
    assert [(one["task"], one["new"]["target"].rpartition(":")[2]) for one in change[1]["rebinds"]] == [
        (1, "T7"),
        (2, "T7"),
    ]
    assert (after[0], after[1]["bind"]["slot"], after[1]["bind"]["charter_revision"]) == (201, "T7", 2)
    assert table.task(1)["bind"]["charter_revision"] == 1
    assert table.do(table.steward, SetCharter(catalog=()), if_match=(1,))[0] == 412
    assert table.pipeline.database.value("SELECT count(*) FROM charters") == 2
    assert table.pipeline.database.value("SELECT count(*) FROM windows") == 3


def test_a_role_that_is_taken_counts_for_what_comes_after_it_in_the_window(table: Table) -> None:
    epoch = table.pipeline.database.value("SELECT epoch FROM authority")
    allowed, removed, refused = table.window(
        table.submission(table.alpha, CreateTask(title="Count fish")),
        table.submission(table.steward, RemoveMember(agent=table.alpha.id)),
        table.submission(table.alpha, CreateTask(title="Count birds")),
    )
    assert (allowed[0], removed[0], refused[0], refused[1]["code"]) == (201, 200, 403, "not_a_member")
    assert table.pipeline.database.value("SELECT epoch FROM authority") > epoch
    assert table.do(table.steward, RemoveMember(agent=table.steward.id))[1]["code"] == "last_steward"
    assert table.do(table.steward, SetMember(agent=table.alpha.id, role=Role.STEWARD))[1]["role"] == "steward"
    assert table.do(table.steward, RemoveMember(agent=table.steward.id))[0] == 200
    assert table.do(table.alpha, SetMember(agent="agt_nobody", role=Role.MEMBER))[1]["code"] == "agent_not_found"


def test_a_space_is_made_once_with_its_steward(table: Table) -> None:
    made = table.do(table.alpha, CreateSpace(claim_ttl_seconds=60, catalog=(CatalogRow("T1", "Count fish"),)))
    assert (made[0], made[1]["slug"], made[1]["claim_ttl_seconds"]) == (201, "new", 60)
    assert table.do(table.beta, CreateSpace())[1]["code"] == "slug_taken"
    space = table.pipeline.database.value("SELECT id FROM spaces WHERE slug = 'new'")
    assert [
        (row["agent_id"], row["role"])
        for row in table.pipeline.database.rows("SELECT * FROM members WHERE space_id = %s", space)
    ] == [(table.alpha.id, "steward")]
    assert table.pipeline.database.value("SELECT count(*) FROM partitions WHERE name = 'space:new'") == 1
    assert table.pipeline.database.value("SELECT type FROM events WHERE space_id = %s", space) == "space_created"


def test_claims_end_at_the_next_window_and_without_one(table: Table) -> None:
    table.do(table.alpha, CreateSpace(claim_ttl_seconds=60))
    space_id = table.pipeline.database.value("SELECT id FROM spaces WHERE slug = 'new'")
    table.pipeline.board = Board("new", space_id, table.pipeline.board.members)
    table.do(table.alpha, SetMember(agent=table.beta.id, role=Role.MEMBER))
    for number in (1, 2):
        table.do(table.alpha, CreateTask(title=f"Work {number}"))
        table.do(table.alpha, ClaimTask(task_id=number))
    table.clock("+ interval '61 s'")
    assert table.do(table.beta, ClaimTask(task_id=1))[1]["holder"] == table.beta.id
    assert table.task(2)["status"] == "open"
    table.clock("+ interval '122 s'")
    table.pipeline.work()
    assert (table.task(1)["status"], table.task(1)["holder"]) == ("open", None)
    assert table.events()[-4:] == ["claim_expired", "claim_expired", "task_claimed", "claim_expired"]


def test_mixed_windows_take_a_constant_number_of_statements(table: Table) -> None:
    table.do(table.alpha, CreateTask(title="Warm up"))

    def sent(count: int) -> Sequence[Submission]:
        return [
            table.submission(agent, intent)
            for number in range(count)
            for agent, intent in (
                (table.alpha, CreateTask(title=f"Work {count} {number}")),
                (table.beta, ClaimTask(task_id=1)),
                (table.beta, PostNote(task_id=1, body=f"Note {count} {number}")),
                (table.beta, close(1, 2)),
            )
        ]

    counts = []
    for count in (1, 2, 40):
        table.pipeline.append(*sent(count))
        with counted_statements(table.pipeline.engine) as statements:
            table.pipeline.work()
        counts.append(len(statements))
    assert counts[0] == counts[1] == counts[2] <= 12 + 3
