"""The work exchange through the real pipeline: what the rules decide is what SQL holds. Seed 004."""

from typing import Any

import pytest

from models.rules.intents import CorrectWork, ProposeWork, PublishWork, WithdrawWork
from models.rules.work import WorkAction
from tests.exchange import FIXTURE, REQUESTS, Exchange, action, payload, terms_of
from tests.pipeline import Pipeline, counted_statements

ORIGINAL = FIXTURE["expected"]["originalTermsSha256"]
COUNTERED = FIXTURE["expected"]["counterTermsSha256"]
DELIVERED = FIXTURE["expected"]["deliveryEnvelopeSha256"]


@pytest.fixture
def exchange(pipeline: Pipeline) -> Exchange:
    return Exchange(pipeline)


def agreed(exchange: Exchange) -> tuple[str, str]:
    """Publish, propose, counter and accept; return the ids of both objects."""
    work = exchange.publish()
    made = exchange.do(exchange.provider, ProposeWork(work_id=work, terms=terms_of(), expected_opportunity_revision=1))
    one = made.object_id
    exchange.do(exchange.requester, action(one, work, WorkAction.COUNTER, 1, ORIGINAL, payload("counter")))
    accepted = exchange.do(exchange.provider, action(one, work, WorkAction.ACCEPT, 2, COUNTERED))
    assert accepted.operation_revision == 3
    return work, one


def test_the_main_flow_has_the_seeds_digests(exchange: Exchange) -> None:
    work, one = agreed(exchange)
    opportunity, proposal = exchange.opportunity(work), exchange.proposal(one)
    assert (opportunity["terms_sha256"], opportunity["own_state"], opportunity["revision"]) == (ORIGINAL, "assigned", 2)
    assert (opportunity["selected_proposal"], opportunity["proposal_count"]) == (one, 1)
    assert (proposal["terms_sha256"], proposal["own_state"]) == (COUNTERED, "accepted")
    delivered = exchange.do(exchange.provider, action(one, work, WorkAction.DELIVER, 3, COUNTERED, payload("deliver")))
    assert delivered.operation == "work-deliver"
    assert exchange.proposal(one)["delivery_sha256"] == DELIVERED
    decided = exchange.do(exchange.requester, action(one, work, WorkAction.DECIDE, 4, COUNTERED, payload("decide")))
    assert (decided.operation_revision, exchange.proposal(one)["own_state"]) == (5, "completed")
    assert exchange.proposal(one)["decision_sha256"] == REQUESTS["decide"]["digests"]["payloadSha256"]
    events = exchange.pipeline.database.rows(
        "SELECT operation FROM work_events WHERE object_id = %s ORDER BY revision", one
    )
    assert [row["operation"] for row in events] == [
        "work-propose", "work-counter", "work-accept", "work-deliver", "work-decide",
    ]  # fmt: skip


def test_of_two_accepts_one_is_bound_and_the_other_is_left_as_it_was(exchange: Exchange) -> None:
    work = exchange.publish()
    mine, theirs = (
        exchange.do(agent, ProposeWork(work_id=work, terms=terms_of(), expected_opportunity_revision=1)).object_id
        for agent in (exchange.provider, exchange.other)
    )
    before = exchange.proposal(theirs)
    won, lost = exchange.send(
        *(
            exchange.submission(exchange.requester, action(one, work, WorkAction.ACCEPT, 1, ORIGINAL))
            for one in (mine, theirs)
        )
    )
    assert won.status == 200
    assert lost == (409, "work_selection_conflict")
    assert exchange.proposal(theirs) == before
    row = exchange.pipeline.database.rows("SELECT body FROM outcomes WHERE code = 'work_selection_conflict'")[0]
    assert mine in row["body"]


def proposing(work: str, revision: int) -> ProposeWork:
    return ProposeWork(work_id=work, terms=terms_of(), expected_opportunity_revision=revision)


def countering(work: str, one: str, **changes: Any):
    return action(one, work, WorkAction.COUNTER, 1, ORIGINAL, {**payload("counter"), **changes})


def correcting(work: str, **changes: Any) -> CorrectWork:
    return CorrectWork(work_id=work, terms=terms_of(**changes), expected_revision=1)


LATER = {"retentionUntil": "2026-09-20T20:00:01Z"}
NOWHERE = WithdrawWork(work_id="commonswork-" + "0" * 24, expected_revision=1)
REFUSALS: list[tuple[str, Any, tuple[int, str]]] = [
    ("provider", lambda w, p: action(p, w, WorkAction.ACCEPT, 1, ORIGINAL), (403, "own_terms")),
    ("other", lambda w, p: action(p, w, WorkAction.REFUSE, 1, ORIGINAL), (403, "participant_required")),
    ("requester", lambda w, p: action(p, w, WorkAction.CANCEL, 1, ORIGINAL), (403, "participant_required")),
    ("requester", lambda w, p: action(p, w, WorkAction.ACCEPT, 2, ORIGINAL), (409, "work_revision_stale")),
    ("requester", lambda w, p: action(p, w, WorkAction.ACCEPT, 1, COUNTERED), (409, "work_terms_digest_stale")),
    (
        "provider",
        lambda w, p: action(p, w, WorkAction.DELIVER, 1, ORIGINAL, payload("deliver")),
        (409, "work_state_conflict"),
    ),
    ("provider", lambda w, p: action(p, w, WorkAction.WITHDRAW_DELIVERY, 1, ORIGINAL), (409, "work_state_conflict")),
    ("requester", lambda w, _: proposing(w, 1), (403, "own_opportunity")),
    ("other", lambda w, _: proposing(w, 2), (409, "work_revision_stale")),
    ("other", lambda w, _: correcting(w), (403, "participant_required")),
    ("requester", lambda w, _: correcting(w, **LATER), (409, "work_retention_increase")),
    ("requester", lambda w, p: countering(w, p, **LATER), (422, "work_retention_increase")),
    ("requester", lambda w, p: countering(w, p, publicationConsent=False), (422, "publication_consent_required")),
    ("requester", lambda *_: NOWHERE, (404, "work_not_found")),
]


@pytest.mark.parametrize(("who", "intent", "expected"), REFUSALS)
def test_what_is_refused_changes_nothing(exchange: Exchange, who: str, intent: Any, expected: tuple[int, str]) -> None:
    work = exchange.publish()
    one = exchange.do(
        exchange.provider, ProposeWork(work_id=work, terms=terms_of(), expected_opportunity_revision=1)
    ).object_id
    names = ("work_opportunities", "work_proposals", "work_events", "work_slots", "work_actors")
    read = lambda: [exchange.pipeline.database.rows(f"SELECT t::text FROM {name} t ORDER BY 1") for name in names]  # noqa: E731
    before = read()[:4]
    assert exchange.do(getattr(exchange, who), intent(work, one)) == expected
    assert read()[:4] == before
    assert exchange.pipeline.database.value("SELECT count(*) FROM outcomes WHERE payload IS NOT NULL") == 0


def test_a_key_is_kept_for_ever_and_brings_the_first_receipt_again(exchange: Exchange) -> None:
    intent = PublishWork(terms=terms_of())
    first = exchange.do(exchange.requester, intent, key="k")
    again = exchange.do(exchange.requester, intent, key="k")
    assert (again.receipt_id, again.object_id, again.replay) == (first.receipt_id, first.object_id, True)
    assert exchange.do(exchange.requester, intent, key="k", body="another") == (409, "idempotency_conflict")
    two = [exchange.submission(exchange.requester, intent, key="twin") for _ in range(2)]
    one, other = exchange.send(*two)
    assert (one.object_id, one.replay, other.replay) == (other.object_id, False, True)
    assert exchange.pipeline.database.value("SELECT count(*) FROM work_opportunities") == 2
    assert (
        exchange.pipeline.database.value(
            "SELECT opportunities FROM work_actors WHERE agent_id = %s", exchange.requester.id
        )
        == 2
    )


def test_what_is_resolved_is_applied_or_prevented_for_ever(exchange: Exchange) -> None:
    path = "/api/matm/commons/work"
    applied = exchange.do(exchange.requester, PublishWork(terms=terms_of()), key="sent")
    found = exchange.resolve(exchange.requester, path, key="sent")
    assert (found.operation, found.status) == ("work-intent-resolve", 200)
    assert exchange.resolve(exchange.requester, path, key="lost").status == 200
    rows = exchange.pipeline.database.rows("SELECT applied, original_status FROM work_resolutions ORDER BY id")
    assert sorted((row["applied"], row["original_status"]) for row in rows) == [(False, 410), (True, 201)]
    late = exchange.do(exchange.requester, PublishWork(terms=terms_of()), key="lost")
    assert late == (410, "work_operation_prevented")
    assert (
        exchange.do(exchange.requester, PublishWork(terms=terms_of()), key="lost", body="x")[1]
        == "idempotency_conflict"
    )
    assert exchange.resolve(exchange.requester, path, key="sent", body="x") == (409, "idempotency_conflict")
    exchange.pipeline.database.rows("UPDATE work_slots SET request = NULL WHERE object_id = %s", applied.object_id)
    legacy = exchange.resolve(exchange.requester, path, key="sent")
    assert legacy == (503, "work_resolution_legacy_reference_unbound")
    assert exchange.do(exchange.requester, PublishWork(terms=terms_of()), key="sent").replay is True


def test_fences_and_resolutions_are_scarce(exchange: Exchange) -> None:
    exchange.resolve(exchange.requester, "/p", key="first")
    exchange.pipeline.database.rows("UPDATE work_actors SET fences = 64")
    assert exchange.resolve(exchange.requester, "/p", key="second") == (429, "work_resolution_capacity")
    assert exchange.resolve(exchange.requester, "/p", key="first").status == 200
    exchange.pipeline.database.rows("UPDATE work_actors SET resolutions = 256")
    assert exchange.resolve(exchange.requester, "/p", key="first") == (429, "work_resolution_capacity")


def test_who_may_publish_and_be_proposed_to(exchange: Exchange) -> None:
    work = exchange.publish()
    exchange.pipeline.database.rows("UPDATE agents SET listed = false WHERE id = %s", exchange.requester.id)
    intent = ProposeWork(work_id=work, terms=terms_of(), expected_opportunity_revision=1)
    assert exchange.do(exchange.provider, intent) == (409, "counterparty_unavailable")
    assert exchange.do(exchange.requester, PublishWork(terms=terms_of())) == (403, "actor_not_listed")
    exchange.pipeline.database.rows("UPDATE agents SET active = false WHERE id = %s", exchange.provider.id)
    assert exchange.do(exchange.provider, intent) == (403, "actor_not_active")


def test_time_ends_steps_but_no_withdrawals(exchange: Exchange) -> None:
    work, one = agreed(exchange)
    exchange.clock("2026-09-13 20:00:00+00")
    deliver = action(one, work, WorkAction.DELIVER, 3, COUNTERED, payload("deliver"))
    assert exchange.do(exchange.provider, deliver) == (409, "work_expired")
    assert exchange.do(exchange.requester, action(one, work, WorkAction.WITHDRAW_TERMS, 3, COUNTERED)).status == 200
    assert exchange.do(exchange.requester, WithdrawWork(work_id=work, expected_revision=2)).status == 200
    row = exchange.opportunity(work)
    assert (row["terms"], row["own_state"], row["selected_proposal"]) == (None, "withdrawn", one)
    assert exchange.proposal(one)["terms"] is None


def test_a_window_of_the_exchange_takes_a_constant_number_of_statements(exchange: Exchange) -> None:
    exchange.publish()
    counts = []
    for size in (1, 2, 30):
        sent = [exchange.submission(exchange.requester, PublishWork(terms=terms_of())) for _ in range(size)]
        exchange.pipeline.append(*sent)
        with counted_statements(exchange.pipeline.engine) as statements:
            exchange.pipeline.work(partition=sent[0].partition)
        counts.append(len(statements))
    assert counts[0] == counts[1] == counts[2] <= 12 + 3
