"""What a window owes to those before it: keys used before, reruns, age; and what it depends on at all."""

from datetime import timedelta

import msgspec
import pytest

from models.rules.charter import CatalogRow, Charter, compile_charter
from models.rules.codes import Code
from models.rules.intents import Sequenced
from models.rules.spaces import Mode
from models.rules.window import MEMORY, bind_window, decide
from tests.builders import (
    ALPHA,
    BETA,
    NOW,
    Board,
    answers,
    authority,
    body,
    create,
    of,
    only,
    proposal_id,
    slot,
    submission,
    task_key_of,
    window,
    window_id,
)

REEF_KEY = task_key_of(name="map the reef")


class TestIdempotencyKey:
    def test_with_the_same_body_twice_in_a_window_makes_one_task_and_both_get_it(self):
        first, second = submission(number=1, slots=(slot(),)), submission(number=2, slots=(slot(),))
        plan = Board().run(*window(first, second))
        assert len(plan.tasks) == len(plan.events) == 1
        assert (of(plan, second).status, of(plan, second).body) == (201, of(plan, first).body)
        assert (of(plan, first).replay_of, of(plan, second).replay_of) == (None, first.id)
        assert [(row.append_id, row.digest) for row in plan.slots] == [(first.id, slot())]

    def test_with_the_same_body_in_a_later_window_brings_the_first_answer(self):
        board = Board()
        first = submission(number=1, slots=(slot(),))
        answered = of(board.run(*window(first)), first)
        board.end(REEF_KEY)  # The memory outlives the task's end.
        second = submission(number=2, slots=(slot(),))
        plan = board.run(*window(second, first_seq=2))
        assert of(plan, second) == msgspec.structs.replace(answered, replay_of=first.id)
        assert (plan.tasks, plan.slots) == ((), ())

    def test_refused_once_is_evaluated_again(self):
        board = Board()
        board.occupy(key=REEF_KEY, task_id=90)
        refused = board.run(*window(submission(number=1, slots=(slot(),))))
        assert (only(refused).status, refused.slots) == (409, ())
        board.end(REEF_KEY)
        plan = board.run(*window(submission(number=2, slots=(slot(),)), first_seq=2))
        assert (only(plan).status, only(plan).replay_of) == (201, None)

    def test_refused_and_sent_again_in_one_window_gets_its_own_refusal(self):
        board = Board()
        board.occupy(key=REEF_KEY, task_id=90)
        first, second = submission(number=1, slots=(slot(),)), submission(number=2, slots=(slot(),))
        plan = board.run(*window(first, second))
        assert (of(plan, second).status, of(plan, second).replay_of) == (409, None)
        assert body(of(plan, second))["proposal_id"] == proposal_id(second)

    @pytest.mark.parametrize("together", [True, False])
    @pytest.mark.parametrize("lost", [True, False])
    def test_with_another_body_is_refused_but_after_a_refusal_of_before(self, together, lost):
        board = Board()
        if lost:
            board.occupy(key=REEF_KEY, task_id=90)
        first = submission(number=1, slots=(slot(),))
        other = submission(number=2, title="Shoal", slots=(slot(body="Shoal"),))
        if together:
            plan = board.run(*window(first, other))
        else:
            board.run(*window(first))
            plan = board.run(*window(other, first_seq=2))
        answer = of(plan, other)
        if lost and not together:
            # Only a success is remembered: nothing binds the key to the refused body any more.
            assert answer.status == 201
        else:
            assert (answer.status, answer.code) == (422, Code.IDEMPOTENCY_KEY_REUSED)
            assert body(answer)["write_occurred"] is False

    def test_of_a_third_request_counts_whether_the_second_was_a_mistake_or_not(self):
        board = Board()
        board.occupy(key=REEF_KEY, task_id=90)
        first, mistaken, third = (
            submission(number=1, slots=(slot(),)),
            submission(number=2, title="Shoal", slots=(slot(body="Shoal"),)),
            submission(number=3, slots=(slot(),)),
        )
        plan = board.run(*window(first, mistaken, third))
        assert [of(plan, sent).code for sent in (first, mistaken, third)] == [
            Code.CONFLICT_KEY_OCCUPIED,
            Code.IDEMPOTENCY_KEY_REUSED,
            Code.CONFLICT_KEY_OCCUPIED,
        ]

    def test_of_two_actors_is_two_keys(self):
        alpha = submission(number=1, slots=(slot(),))
        beta = submission(number=2, actor=BETA, title="Shoal", slots=(slot(actor=BETA, body="Shoal"),))
        assert [answer.status for answer in answers(Board().run(*window(alpha, beta))).values()] == [201, 201]

    def test_is_found_under_the_secret_that_signed_before(self):
        board = Board()
        old, new = slot(secret="s1"), slot(secret="s2")
        first = submission(number=1, slots=(old,))
        board.run(*window(first))
        second = submission(number=2, slots=(new, old))
        assert of(board.run(*window(second, first_seq=2)), second).replay_of == first.id

    @pytest.mark.parametrize("rotated_first", [True, False])
    def test_is_found_in_the_window_while_a_rotation_is_under_way(self, rotated_first):
        old, new = slot(secret="s1"), slot(secret="s2")
        digests = [(new, old), (old,)] if rotated_first else [(old,), (new, old)]
        first, second = (submission(number=number, slots=slots) for number, slots in enumerate(digests, start=1))
        plan = Board().run(*window(first, second))
        assert of(plan, second).replay_of == first.id
        assert [row.digest for row in plan.slots] == [digests[0][0]]

    def test_of_another_secrets_id_is_none_of_ours(self):
        """Two secrets never make the same digest; if one did, its request digests could not be compared."""
        board = Board()
        board.run(*window(submission(number=1, slots=(slot(),))))
        twin = msgspec.structs.replace(slot(body="Shoal"), secret_id="s2")
        plan = board.decide(window(submission(number=2, title="Shoal", slots=(twin,)), first_seq=2))
        assert only(plan).status == 201

    @pytest.mark.parametrize(
        "key", [authority(agent=ALPHA, revoked=True), authority(agent=ALPHA, active=False)], ids=["revoked", "inactive"]
    )
    def test_replays_nothing_to_who_may_not_ask(self, key):
        board = Board()
        board.run(*window(submission(number=1, slots=(slot(),))))
        board.authorities["key_agt_alpha"] = key
        answer = only(board.run(*window(submission(number=2, slots=(slot(),)), first_seq=2)))
        assert answer.code in {Code.CREDENTIAL_INVALID, Code.ACTOR_NOT_ACTIVE}

    def test_without_one_nothing_is_remembered(self):
        assert Board().decide(window(submission())).slots == ()


class TestRerun:
    def test_of_a_committed_window_only_answers(self):
        board = Board()
        entries = window(
            submission(number=1, slots=(slot(),)), submission(number=2), submission(number=3, proposals=[create()] * 2)
        )
        first = board.run(*entries)
        again = board.decide(entries)
        assert (again.tasks, again.events, again.slots, again.fresh) == ((), (), (), ())
        assert answers(again) == answers(first)

    def test_answers_what_was_decided_and_executes_the_rest(self):
        board = Board()
        decided, late = submission(number=1), submission(number=2, actor=BETA)
        first = board.run(*window(decided))
        plan = board.run(*window(decided, late))
        assert list(plan.known) == list(first.fresh)
        assert [(outcome.append_id, outcome.place) for outcome in plan.fresh] == [(late.id, 1)]
        assert of(plan, late).code is Code.CONFLICT_KEY_OCCUPIED

    def test_answers_though_the_key_was_revoked_since(self):
        board = Board()
        sent = submission()
        first = board.run(*window(sent))
        board.authorities.clear()
        assert only(board.decide(window(sent))) == only(first)

    def test_takes_a_submission_that_stands_twice_in_a_window_once(self):
        sent = submission(proposals=[create(title="A"), create(title="B")])
        plan = Board().decide([Sequenced(1, sent), Sequenced(2, sent)])
        assert len(plan.tasks) == len(plan.fresh) == 2
        assert {outcome.received_seq for outcome in plan.fresh} == {1}

    def test_needs_no_binding_for_what_was_decided(self):
        board = Board()
        decided, late = submission(number=1), submission(number=2, title="Shoal")
        board.run(*window(decided))
        entries = window(decided, late)
        plan = decide(
            entries,
            bind_window(entries[1:], board.charter),
            board.snapshot(),
            now=NOW,
            mode=Mode.ACTIVE,
            window_id=window_id(number=9),
        )
        assert of(plan, late).status == 201


class TestAge:
    def test_of_thirty_days_is_the_last_to_be_executed(self):
        assert timedelta(days=30) == MEMORY
        sent = submission(at=NOW - MEMORY)
        assert only(Board().decide(window(sent))).status == 201

    def test_beyond_thirty_days_drops_a_submission_without_a_trace(self):
        old, next_one = submission(number=1, at=NOW - MEMORY - timedelta(milliseconds=1)), submission(number=2)
        plan = Board().decide(window(old, next_one))
        assert list(answers(plan)) == [(next_one.id, 0)]
        assert of(plan, next_one).status == 201

    def test_beyond_thirty_days_still_answers_what_was_decided(self):
        board = Board()
        sent = submission()
        first = board.run(*window(sent))
        assert only(board.decide(window(sent), now=NOW + MEMORY * 2)) == only(first)


def test_deciding_changes_nothing_that_it_was_given():
    board = Board(authorities=[authority(agent=BETA, revoked=True)])
    board.run(*window(submission(number=1, slots=(slot(),))))
    entries = window(
        submission(number=2, slots=(slot(),)),
        submission(number=3, actor=BETA),
        submission(number=4, proposals=[create(title="A"), create(title="a")]),
        first_seq=2,
    )
    bindings, snapshot = bind_window(entries, board.charter), board.snapshot()
    before = repr((entries, bindings, snapshot))
    circumstances = {"now": NOW, "mode": Mode.ACTIVE, "window_id": window_id(number=2)}
    first = decide(entries, bindings, snapshot, **circumstances)
    assert decide(entries, bindings, snapshot, **circumstances) == first
    assert repr((entries, bindings, snapshot)) == before


def test_an_empty_window_writes_nothing():
    plan = Board().decide([])
    assert (plan.tasks, plan.events, plan.slots, plan.fresh, plan.known) == ((), (), (), (), ())


def test_the_order_of_the_catalog_is_nothing_to_a_window():
    rows = (CatalogRow("T1", "Reef map", ("Map of reefs",)), CatalogRow("T2", "Tide tables"), CatalogRow("T3", "Reef"))
    entries = window(*(submission(number=n, title=title) for n, title in enumerate(["Reef map", "Tides", "The reef"])))
    plans = [
        Board(compiled=compile_charter(Charter(revision=1, rows=order))).decide(entries)
        for order in (rows, rows[::-1], (rows[1], rows[2], rows[0]))
    ]
    assert plans[0] == plans[1] == plans[2]
