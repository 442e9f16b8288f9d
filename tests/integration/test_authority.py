"""Mode, keys, agents and members are asked again inside the window's transaction."""

import threading

import psycopg
import pytest
from sqlalchemy import text

from models.store import agents as store_agents
from models.store.database import admin_engine
from tests.pipeline import Pipeline, propose
from tests.stack import TITLES, Agent, Board, add_agents
from tests.waiting import wait_for


def change(pipeline: Pipeline, what: str, agent: Agent, board: Board) -> None:
    """Change what an agent may do, as an operator does."""
    with admin_engine(pipeline.database.owner_url).begin() as connection:
        match what:
            case "key revoked":
                store_agents.revoke_keys(connection, [agent.key_id])
            case "key expired":
                store_agents.change_authority(connection)
                connection.execute(
                    text("UPDATE keys SET expires_at = dibs_now() WHERE id = :key"), {"key": agent.key_id}
                )
            case "agent deactivated":
                store_agents.set_agent(connection, agent.handle, active=False)
            case "member removed":
                store_agents.change_authority(connection)
                connection.execute(text("DELETE FROM members WHERE agent_id = :agent"), {"agent": agent.id})
            case "space closed to others":
                store_agents.change_authority(connection)
                connection.execute(text("UPDATE spaces SET visibility = 'members'"))
                connection.execute(text("DELETE FROM members WHERE agent_id = :agent"), {"agent": agent.id})
            case "drain":
                connection.execute(text("UPDATE work_mode SET mode = 'drain', epoch = epoch + 1"))
            case _:
                raise AssertionError(what)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("what", "status", "code"),
    [
        ("key revoked", 401, "credential_invalid"),
        ("key expired", 401, "credential_invalid"),
        ("agent deactivated", 403, "actor_not_active"),
        ("member removed", 403, "not_a_member"),
        ("space closed to others", 404, "space_not_found"),
        ("drain", 503, "work_drain_active"),
    ],
)
def test_what_changed_while_the_intent_waited(
    pipeline: Pipeline, what: str, status: int, code: str, batch: bool
) -> None:
    agent, other = pipeline.board.members[:2]
    titles = (TITLES[91], TITLES[95]) if batch else (TITLES[91],)
    waiting = propose(pipeline.board, agent, *titles, batch=batch, key="k")
    behind = propose(pipeline.board, other, TITLES[91])
    pipeline.append(waiting, behind)
    change(pipeline, what, agent, pipeline.board)
    assert pipeline.work() == 1
    assert pipeline.outcomes(waiting) == [(status, code)] * len(titles)
    assert pipeline.database.value("SELECT count(*) FROM tasks WHERE created_by = %s", agent.id) == 0
    assert pipeline.database.value("SELECT count(*) FROM events WHERE actor = %s", agent.id) == 0
    assert pipeline.database.value("SELECT count(*) FROM idempotency") == 0
    if what == "drain":
        assert pipeline.outcome(behind) == (503, "work_drain_active")
        assert pipeline.database.value("SELECT count(*) FROM tasks") == 0
        assert pipeline.database.value("SELECT count(*) FROM windows") == 1
        assert pipeline.database.value("SELECT count(payload) FROM outcomes") == 0
    else:
        # The next in order takes the place of the one that may not.
        assert pipeline.outcome(behind) == (201, None)
    assert pipeline.reservations() == []


def test_a_replay_needs_the_key_to_be_in_force(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    first, again = (propose(pipeline.board, agent, TITLES[91], key="k") for _ in range(2))
    pipeline.append(first)
    pipeline.work()
    change(pipeline, "key revoked", agent, pipeline.board)
    pipeline.append(again)
    pipeline.work()
    assert pipeline.outcome(again) == (401, "credential_invalid")


def test_a_replay_goes_on_in_drain(pipeline: Pipeline) -> None:
    agent = pipeline.board.members[0]
    first, again = (propose(pipeline.board, agent, TITLES[91], key="k") for _ in range(2))
    pipeline.append(first)
    pipeline.work()
    change(pipeline, "drain", agent, pipeline.board)
    pipeline.append(again)
    pipeline.work()
    assert pipeline.outcome(again) == (201, None)
    assert pipeline.body(again) == pipeline.body(first)


def test_another_agents_key_id_is_worth_nothing(pipeline: Pipeline) -> None:
    """An entry in Redis that names one agent and another one's key."""
    mine, theirs = pipeline.board.members[:2]
    forged = propose(pipeline.board, Agent(theirs.id, theirs.handle, mine.key_id, ""), TITLES[91])
    pipeline.append(forged)
    pipeline.work()
    assert pipeline.outcome(forged) == (401, "credential_invalid")


def test_an_agent_of_no_space_writes_nowhere(pipeline: Pipeline) -> None:
    (stranger,) = add_agents(pipeline.database, ["stranger"])
    one = propose(pipeline.board, stranger, TITLES[91])
    pipeline.append(one)
    pipeline.work()
    assert pipeline.outcome(one) == (403, "not_a_member")


def test_a_space_that_is_not_there(pipeline: Pipeline) -> None:
    nowhere = Board("nowhere", 0, pipeline.board.members)
    one = propose(nowhere, pipeline.board.members[0], TITLES[91])
    pipeline.append(one)
    assert pipeline.processor().process(nowhere.partition) == 1
    assert pipeline.client.hlen("dibs:proposals") == 0
    assert pipeline.client.llen("dibs:reply:web") == 1
    assert pipeline.database.value("SELECT count(*) FROM outcomes") == 0


def test_a_revocation_returns_when_no_window_can_still_use_the_key(pipeline: Pipeline) -> None:
    """One that began before is waited for; whatever begins after sees the change."""
    agent = pipeline.board.members[0]
    reached, go_on = threading.Event(), threading.Event()

    def probe(step: str) -> None:
        if step == "before_commit":
            reached.set()
            assert go_on.wait(20), "nobody let the window go on"

    before = propose(pipeline.board, agent, TITLES[91])
    pipeline.append(before)
    processor = pipeline.processor(probe=probe, lease_ms=60_000)
    worker = threading.Thread(target=pipeline.work, args=(processor,))
    worker.start()
    assert reached.wait(20), "the window did not reach its commit"
    revoked = threading.Event()

    def revoke() -> None:
        change(pipeline, "key revoked", agent, pipeline.board)
        revoked.set()

    operator = threading.Thread(target=revoke)
    operator.start()
    with psycopg.connect(pipeline.database.owner_url, autocommit=True) as connection:
        wait_for(
            "the revocation to wait for the window",
            lambda: connection.execute(
                "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
                "WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()"
            ).fetchone(),
        )
    assert not revoked.is_set()
    assert pipeline.outcomes(before) == []
    go_on.set()
    worker.join(20)
    operator.join(20)
    assert revoked.is_set()
    assert pipeline.outcome(before) == (201, None)
    after = propose(pipeline.board, agent, TITLES[95])
    pipeline.append(after)
    pipeline.work()
    assert pipeline.outcome(after) == (401, "credential_invalid")
