"""Bounds of the exchange that take long to reach, and what is never found outside of its payload columns. Seed 004."""

import pytest

from models.rules.intents import CorrectWork, ProposeWork, PublishWork, WithdrawWork
from models.rules.work import WorkAction
from tests.exchange import FIXTURE, Exchange, action, payload, terms_of
from tests.pipeline import Pipeline

ORIGINAL = FIXTURE["expected"]["originalTermsSha256"]


@pytest.fixture
def exchange(pipeline: Pipeline) -> Exchange:
    return Exchange(pipeline)


def proposed(exchange: Exchange, work: str) -> str:
    intent = ProposeWork(work_id=work, terms=terms_of(), expected_opportunity_revision=1)
    return exchange.do(exchange.provider, intent).object_id


@pytest.mark.parametrize(
    ("revision", "counter", "refuse"), [(127, 200, 200), (128, 409, 200), (135, 409, 200), (136, 409, 409)]
)
def test_events_end_at_128_for_most_and_at_136_for_all(
    exchange: Exchange, revision: int, counter: int, refuse: int
) -> None:
    for name, expected in ((WorkAction.COUNTER, counter), (WorkAction.REFUSE, refuse)):
        one_of = exchange.publish()
        one = proposed(exchange, one_of)
        exchange.pipeline.database.rows("UPDATE work_proposals SET revision = %s WHERE id = %s", revision, one)
        given = payload("counter") if name is WorkAction.COUNTER else None
        found = exchange.do(exchange.requester, action(one, one_of, name, revision, ORIGINAL, given))
        assert (found[0] if isinstance(found, tuple) else found.status) == expected
        if expected == 409:
            assert found == (409, "work_event_limit")


@pytest.mark.parametrize(("revision", "correct", "withdraw"), [(127, 200, 200), (128, 409, 200), (136, 409, 409)])
def test_an_opportunitys_events_end_likewise(exchange: Exchange, revision: int, correct: int, withdraw: int) -> None:
    for expected, make in (
        (correct, lambda work: CorrectWork(work_id=work, terms=terms_of(), expected_revision=revision)),
        (withdraw, lambda work: WithdrawWork(work_id=work, expected_revision=revision)),
    ):
        work = exchange.publish()
        exchange.pipeline.database.rows("UPDATE work_opportunities SET revision = %s WHERE id = %s", revision, work)
        found = exchange.do(exchange.requester, make(work))
        assert (found[0] if isinstance(found, tuple) else found.status) == expected


def test_quotas_are_for_good(exchange: Exchange) -> None:
    work = exchange.publish()
    exchange.do(exchange.requester, WithdrawWork(work_id=work, expected_revision=1))
    exchange.pipeline.database.rows("UPDATE work_actors SET opportunities = 255")
    assert exchange.do(exchange.requester, PublishWork(terms=terms_of())).status == 201
    assert exchange.do(exchange.requester, PublishWork(terms=terms_of())) == (409, "work_quota_reached")
    theirs = exchange.publish(exchange.other)
    one = proposed(exchange, theirs)
    exchange.pipeline.database.rows("UPDATE work_actors SET proposals = 1024 WHERE agent_id = %s", exchange.provider.id)
    intent = ProposeWork(work_id=theirs, terms=terms_of(), expected_opportunity_revision=1)
    assert exchange.do(exchange.provider, intent) == (409, "work_quota_reached")
    exchange.pipeline.database.rows("UPDATE work_opportunities SET proposal_count = 64 WHERE id = %s", theirs)
    assert exchange.do(exchange.requester, intent) == (409, "work_quota_reached")
    assert exchange.proposal(one)["revision"] == 1


def test_counters_of_one_actor_are_counted_in_every_partition(exchange: Exchange) -> None:
    """Proposals to several opportunities are decided in partitions of their own, and all count."""
    works = [exchange.publish(exchange.other) for _ in range(6)]
    for work in works:
        proposed(exchange, work)
    counted = exchange.pipeline.database.value(
        "SELECT proposals FROM work_actors WHERE agent_id = %s", exchange.provider.id
    )
    assert counted == 6


def test_a_payload_is_in_its_column_and_nowhere_else(exchange: Exchange) -> None:
    """Neither the ledger nor Redis keeps a word of terms, deliveries or refused requests."""
    canary = "CANARY of the reef"
    work = exchange.publish(title=canary)
    intent = ProposeWork(work_id=work, terms=terms_of(title=canary), expected_opportunity_revision=1)
    one = exchange.do(exchange.provider, intent).object_id
    refused = ProposeWork(work_id=work, terms=terms_of(title=canary), expected_opportunity_revision=9)
    assert exchange.do(exchange.provider, refused) == (409, "work_revision_stale")
    assert exchange.resolve(exchange.requester, "/api/matm/commons/work", key="never-sent").status == 200
    tables = exchange.pipeline.database.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    found = {
        row["tablename"]
        for row in tables
        if exchange.pipeline.database.value(
            f'SELECT count(*) FROM "{row["tablename"]}" t WHERE t::text LIKE %s', f"%{canary}%"
        )
    }
    assert found == {"work_opportunities", "work_proposals"}
    client = exchange.pipeline.client
    for name in client.keys("*"):
        assert canary.encode() not in (client.dump(name) or b"")
    exchange.clock("2026-09-20 20:00:00+00")
    terms = exchange.proposal(one)["terms_sha256"]
    withdrawn = exchange.do(exchange.provider, action(one, work, WorkAction.WITHDRAW_TERMS, 1, terms))
    assert withdrawn == (409, "work_state_conflict"), "retention has ended it already"


def test_a_window_that_dies_after_its_commit_answers_the_same(exchange: Exchange) -> None:
    class DiedError(Exception):
        pass

    def die(step: str) -> None:
        if step == "after_commit":
            raise DiedError

    sent = exchange.submission(exchange.requester, PublishWork(terms=terms_of()))
    exchange.pipeline.append(sent)
    with pytest.raises(DiedError):
        exchange.pipeline.work(exchange.pipeline.processor(probe=die, name="dying"), partition=sent.partition)
    before = exchange.pipeline.body(sent)
    exchange.pipeline.client.delete(f"dibs:lease:{sent.partition}")
    exchange.pipeline.work(partition=sent.partition)
    assert exchange.pipeline.body(sent) == before
    assert exchange.pipeline.database.value("SELECT count(*) FROM work_events") == 1
