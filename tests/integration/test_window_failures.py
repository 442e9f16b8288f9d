"""Windows whose transaction fails: who is failed, who is tried again, and that nothing is left behind."""

import psycopg
import pytest

from tests.pipeline import Pipeline, propose
from tests.stack import TITLES

T1 = TITLES[91]
REFUSE_TITLE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN IF NEW.title LIKE 'poison%%' THEN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION refuse();
"""


class AbortError(Exception):
    """Raised by a probe: the process gives the window up."""


# A window that does not come to its end


@pytest.mark.parametrize("step", ["reserved", "before_transaction", "in_transaction", "before_commit"])
def test_a_window_aborted_before_its_commit_leaves_nothing(pipeline: Pipeline, step: str) -> None:
    armed: list[str] = []

    def probe(reached: str) -> None:
        if reached == step and armed:
            armed.pop()
            raise AbortError

    processor = pipeline.processor(probe=probe)
    pipeline.append(propose(pipeline.board, pipeline.board.members[0], "warm the charter"))
    pipeline.work(processor)
    before = pipeline.ledger()
    # Twice inside the transaction: what failed once is tried once more before it is given up.
    armed.extend([step] * (2 if step in {"in_transaction", "before_commit"} else 1))
    first = propose(pipeline.board, pipeline.board.members[0], T1)
    pipeline.append(first)
    if step in {"in_transaction", "before_commit"}:
        # Inside the transaction an unknown failure is the window's: it is tried without its effects.
        assert pipeline.work(processor) == 1
        assert pipeline.outcome(first) == (500, "intent_failed")
        assert pipeline.titles() == ["warm the charter"]
    else:
        with pytest.raises(AbortError):
            pipeline.work(processor)
        assert pipeline.ledger() == before
        assert len(pipeline.reservations()) == 1, "the reservation stands until its owner is done"
        assert pipeline.work() == 1, "another worker takes the window over"
        assert pipeline.outcome(first) == (201, None)
    assert pipeline.reservations() == []
    later = propose(pipeline.board, pipeline.board.members[1], T1)
    pipeline.append(later)
    pipeline.work(processor)
    expected = (201, None) if step in {"in_transaction", "before_commit"} else (409, "conflict_key_occupied")
    assert pipeline.outcome(later) == expected


@pytest.mark.parametrize("state", ["23514", "22P02", "P0001", "57014"])
def test_an_intent_that_breaks_the_transaction_fails_alone(pipeline: Pipeline, state: str) -> None:
    pipeline.plant(REFUSE_TITLE.format(state=state))
    several = [
        propose(pipeline.board, agent, title)
        for agent, title in zip(
            pipeline.board.members, ("one", "poison a", "two", "three", "poison b", "two", "four"), strict=False
        )
    ]
    pipeline.append(*several)
    assert pipeline.work() == 1
    failed, reserved = (500, "intent_failed"), (409, "conflict_key_reserved")
    codes = [pipeline.outcome(one) for one in several]
    # The loser's winner may have been committed with another half of the window.
    assert codes[5] in {reserved, (409, "conflict_key_occupied")}
    codes[5] = reserved
    assert codes == [(201, None), failed, (201, None), (201, None), failed, reserved, (201, None)]
    assert pipeline.titles() == ["one", "two", "three", "four"]
    assert pipeline.database.value("SELECT count(*) FROM windows") == 1
    assert pipeline.body(several[1])["proposal_id"] == f"prp_{several[1].id.hex}"
    places = pipeline.database.rows("SELECT place FROM outcomes ORDER BY received_seq")
    assert [row["place"] for row in places] == list(range(7)), "one order, in however many parts it was committed"


def test_the_next_in_order_wins_where_the_winner_cannot(pipeline: Pipeline) -> None:
    pipeline.plant(
        f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.created_by = '{pipeline.board.members[0].id}' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION refuse();
        """,
    )
    first, second, third = (propose(pipeline.board, agent, T1) for agent in pipeline.board.members[:3])
    pipeline.append(first, second, third)
    assert pipeline.work() == 1
    assert pipeline.outcome(first) == (500, "intent_failed")
    assert pipeline.outcome(second) == (201, None)
    assert pipeline.outcome(third) in {(409, "conflict_key_reserved"), (409, "conflict_key_occupied")}
    assert pipeline.body(third)["winner"]["created_by"] == pipeline.board.members[1].id
    assert pipeline.reservations() == []


def test_a_batch_is_failed_only_where_it_fails(pipeline: Pipeline) -> None:
    pipeline.plant(REFUSE_TITLE.format(state="23514"))
    agent = pipeline.board.members[0]
    batch = propose(pipeline.board, agent, "one", "poison a", "two", "poison b", batch=True)
    neighbour = propose(pipeline.board, agent, "three")
    pipeline.append(batch, neighbour)
    assert pipeline.work() == 1
    failed = (500, "intent_failed")
    assert pipeline.outcomes(batch) == [(201, None), failed, (201, None), failed]
    assert pipeline.outcome(neighbour) == (201, None)
    assert sorted(pipeline.titles()) == ["one", "three", "two"]


def test_a_window_that_takes_too_long_is_halved(pipeline: Pipeline) -> None:
    pipeline.plant(
        """
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF (SELECT count(*) FROM made) > 4 THEN PERFORM pg_sleep(10); END IF; RETURN NULL; END $$;
        CREATE TRIGGER slow AFTER INSERT ON tasks REFERENCING NEW TABLE AS made
        FOR EACH STATEMENT EXECUTE FUNCTION slow();
        """,
    )
    several = [propose(pipeline.board, pipeline.board.members[0], f"task {number}") for number in range(8)]
    pipeline.append(*several)
    assert pipeline.work(pipeline.processor(lease_ms=600)) == 1
    assert [pipeline.outcome(one) for one in several] == [(201, None)] * 8
    assert pipeline.database.value("SELECT count(*) FROM windows") == 1


def test_a_server_that_was_slow_once_fails_nobody(pipeline: Pipeline) -> None:
    """A single intent is not the culprit of the first timeout: it is failed when it fails again."""
    pipeline.plant(
        """
        CREATE SEQUENCE stalls;
        GRANT USAGE ON SEQUENCE stalls TO PUBLIC;
        CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF nextval('stalls') = 1 THEN PERFORM pg_sleep(10); END IF; RETURN NULL; END $$;
        CREATE TRIGGER stall AFTER INSERT ON tasks FOR EACH STATEMENT EXECUTE FUNCTION stall();
        """,
    )
    one = propose(pipeline.board, pipeline.board.members[0], T1)
    pipeline.append(one)
    assert pipeline.work(pipeline.processor(lease_ms=600)) == 1
    assert pipeline.outcome(one) == (201, None)


@pytest.mark.parametrize(
    "holder",
    ["SELECT pg_advisory_xact_lock(1684628083, 2)", "SELECT 1 FROM partitions WHERE name LIKE 'space:%' FOR UPDATE"],
    ids=["authority", "partition"],
)
def test_a_wait_for_a_lock_is_no_fault_of_the_intents(pipeline: Pipeline, holder: str) -> None:
    """An import or a revocation may hold a lock for longer than one statement may wait."""
    one = propose(pipeline.board, pipeline.board.members[0], T1)
    pipeline.append(one)
    with psycopg.connect(pipeline.database.owner_url) as blocker:

        def probe(reached: str) -> None:
            if reached == "before_transaction":
                blocker.execute(holder)

        # Ends its turn when it has waited too long, and has not failed the intent.
        pipeline.work(pipeline.processor(probe=probe, lease_ms=500))
        assert pipeline.outcomes(one) == []
        blocker.rollback()
    assert pipeline.work() == 1
    assert pipeline.outcome(one) == (201, None)


SERIALIZATION = """
CREATE SEQUENCE failures;
GRANT USAGE ON SEQUENCE failures TO PUBLIC;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN IF nextval('failures') <= {times} THEN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END IF;
RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON tasks DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION fail();
"""


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_conflict_at_commit_is_tried_again(pipeline: Pipeline, state: str) -> None:
    pipeline.plant(SERIALIZATION.format(times=3, state=state))
    one = propose(pipeline.board, pipeline.board.members[0], T1)
    pipeline.append(one)
    assert pipeline.work() == 1
    assert pipeline.outcome(one) == (201, None)
    assert pipeline.titles() == [T1]
    assert pipeline.database.value("SELECT last_value FROM failures") == 4


def test_the_attempts_have_an_end(pipeline: Pipeline) -> None:
    pipeline.plant(SERIALIZATION.format(times=1_000_000, state="40001"))
    one = propose(pipeline.board, pipeline.board.members[0], T1)
    pipeline.append(one)
    assert pipeline.work() == 1
    assert pipeline.outcome(one) == (500, "intent_failed")
    assert pipeline.titles() == []
    assert pipeline.database.value("SELECT last_value FROM failures") < 20


# Below the reservations


def occupy(pipeline: Pipeline, *, task: int, title: str, target: str) -> None:
    """Write a task and its occupancy past the pipeline, as a person at the database might."""
    pipeline.plant(
        f"""
        INSERT INTO tasks (space_id, id, title, body, bind, kind, target, delivery_mode, validation_policy, status,
          created_by, held, revision, created_at, updated_at)
        VALUES ({pipeline.board.space_id}, {task}, '{title}', '', '{{}}', 'create_task', '{target}', 'result',
          'evidence', 'open', '{pipeline.board.members[7].id}', false, 1, now(), now());
        INSERT INTO occupancies VALUES ({pipeline.board.space_id}, 'create_task', '{target}', 'result', {task});
        """,
    )


def test_a_key_taken_below_the_lock_is_a_conflict(pipeline: Pipeline) -> None:
    done: list[str] = []

    def probe(reached: str) -> None:
        if reached == "in_transaction" and not done:
            done.append(reached)
            occupy(pipeline, task=9000, title=T1, target=f"task:{pipeline.board.slug}:slot:T1")

    lost, other = (propose(pipeline.board, pipeline.board.members[0], title) for title in (T1, TITLES[95]))
    pipeline.append(lost, other)
    assert pipeline.work(pipeline.processor(probe=probe)) == 1
    assert pipeline.outcome(lost) == (409, "conflict_key_occupied")
    assert pipeline.body(lost)["winner"]["id"] == 9000
    assert pipeline.outcome(other) == (201, None)


def test_another_constraint_is_no_conflict(pipeline: Pipeline) -> None:
    pipeline.plant("CREATE UNIQUE INDEX no_twins ON tasks (created_by)")
    several = [propose(pipeline.board, pipeline.board.members[0], title) for title in ("one", "two")]
    pipeline.append(*several)
    pipeline.work()
    assert [pipeline.outcome(one) for one in several] == [(201, None), (500, "intent_failed")]
