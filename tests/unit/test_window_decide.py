"""Who wins a window, what a loser is told, and who is refused."""

from datetime import timedelta

import msgspec
import pytest

from models.rules import ids
from models.rules.codes import Code
from models.rules.conflict import DeliveryMode
from models.rules.intents import CreateTask, Proposal, Sequenced
from models.rules.outcomes import WHOLE
from models.rules.spaces import Mode, Role, Visibility
from models.rules.tasks import Status
from tests.builders import (
    ALPHA,
    BETA,
    EPSILON,
    NOW,
    REEF,
    Board,
    answers,
    authority,
    body,
    charter,
    create,
    of,
    only,
    proposal_id,
    slot,
    submission,
    task_key_of,
    window,
    window_id,
    written,
)

REEF_KEY = task_key_of(name="map the reef")
MISSING = object()


class TestWinner:
    def test_is_the_task_with_all_its_members(self):
        board = Board(compiled=charter(revision=3, rows={"T1": ["Reef map"], "T2": ["Tide tables"]}))
        board.next_task, board.next_event = 92, 17
        sent = submission(
            actor=BETA,
            proposals=[
                Proposal.of(
                    CreateTask(title=REEF, body="East side.", delivery_mode=DeliveryMode.REPOSITORY_CHANGE),
                )
            ],
        )
        plan = board.decide([Sequenced(5, sent)])
        answer = only(plan)
        assert (answer.status, answer.code, answer.task_id, answer.replay_of) == (201, None, 92, None)
        assert body(answer) == {
            "id": 92,
            "space": "lab",
            "title": "Map the reef",
            "body": "East side.",
            "work_item_id": "T1",
            "bind": {
                "provenance": "charter",
                "slot": "T1",
                "score": 1.0,
                "runner_up": 0.0,
                "charter_revision": 3,
            },
            "delivery_mode": "repository_change",
            "validation_policy": "evidence",
            "status": "open",
            "conflict_key": {
                "kind": "create_task",
                "target": "task:lab:slot:T1",
                "delivery_mode": "repository_change",
            },
            "created_by": BETA,
            "holder": None,
            "assigned_to": None,
            "claimed_at": None,
            "superseded_by": None,
            "held": False,
            "revision": 1,
            "received_seq": 5,
            "window_id": str(window_id(number=1)),
            "created_at": "2026-07-01T12:00:00Z",
            "updated_at": "2026-07-01T12:00:00Z",
        }
        (event,) = plan.events
        assert (event.number, event.type, event.at, event.actor, event.task_id) == (17, "task_created", NOW, BETA, 92)
        assert event.data == answer.body
        (outcome,) = plan.fresh
        assert (outcome.append_id, outcome.position, outcome.batch, outcome.place) == (sent.id, 0, False, 0)
        assert (outcome.received_seq, outcome.kind, outcome.actor) == (5, "create_task", BETA)
        assert outcome.key == written(plan)[0].conflict_key
        assert outcome.payload is None

    def test_of_a_title_that_binds_to_nothing_is_known_by_its_title(self):
        plan = Board().decide(window(submission(title="Straße zum Riff")))
        assert written(plan)[0].conflict_key == task_key_of(name="strasse zum riff")
        assert written(plan)[0].work_item_id is None

    def test_of_a_requested_slot_meets_the_one_bound_by_the_charter(self):
        board = Board(compiled=charter(rows={"T1": ["Reef map"]}))
        bound, asked = submission(number=1), submission(number=2, proposals=[create(title="X", work_item_id="T1")])
        plan = board.decide(window(bound, asked))
        assert of(plan, bound).status == 201
        assert body(of(plan, asked))["reserved_proposal_id"] == proposal_id(bound)

    def test_in_each_delivery_mode_there_is_one(self):
        both = [submission(number=number, proposals=[create(mode=mode)]) for number, mode in enumerate(DeliveryMode)]
        assert [answer.status for answer in answers(Board().decide(window(*both))).values()] == [201, 201]

    def test_goes_by_the_number_and_not_by_the_arrival(self):
        late, early = submission(number=1), submission(number=2, actor=BETA)
        plan = Board().decide([Sequenced(9, late), Sequenced(4, early)])
        assert of(plan, early).status == 201
        assert of(plan, late).code is Code.CONFLICT_KEY_RESERVED
        assert [outcome.append_id for outcome in plan.fresh] == [early.id, late.id]


class TestLoser:
    def test_to_a_task_of_before_is_sent_there(self):
        board = Board()
        board.occupy(key=REEF_KEY, task_id=41, status=Status.IN_REVIEW, created_by=BETA)
        sent = submission(number=3)
        answer = only(board.decide(window(sent)))
        assert (answer.status, answer.code, answer.task_id) == (409, Code.CONFLICT_KEY_OCCUPIED, 41)
        said = body(answer)
        assert said.pop("detail")
        assert said == {
            "type": "urn:dibs:problem:conflict_key_occupied",
            "title": "This work already has its task",
            "status": 409,
            "error": "allocation_conflict",
            "code": "conflict_key_occupied",
            "retryable": False,
            "conflict_key": {"kind": "create_task", "target": "task:lab:map the reef", "delivery_mode": "result"},
            "outcome": "redirect",
            "winner": {"type": "task", "id": 41, "status": "in_review", "created_by": BETA},
            "proposal_id": proposal_id(sent),
            "write_occurred": False,
        }

    def test_of_the_same_window_is_told_who_was_first(self):
        first, second = submission(number=1, actor=BETA), submission(number=2)
        answer = of(Board().decide(window(first, second)), second)
        assert (answer.status, answer.code, answer.task_id) == (409, Code.CONFLICT_KEY_RESERVED, 1)
        said = body(answer)
        assert said.pop("detail")
        assert said == {
            "type": "urn:dibs:problem:conflict_key_reserved",
            "title": "Another proposal of the same window was first",
            "status": 409,
            "error": "allocation_conflict",
            "code": "conflict_key_reserved",
            "retryable": True,
            "conflict_key": {"kind": "create_task", "target": "task:lab:map the reef", "delivery_mode": "result"},
            "outcome": "idle",
            "winner": {"type": "reserved_intent", "id": proposal_id(first), "task_id": 1, "created_by": BETA},
            "reserved_proposal_id": proposal_id(first),
            "retry_after_ms": 200,
            "proposal_id": proposal_id(second),
            "write_occurred": False,
        }

    @pytest.mark.parametrize("occupied", [True, False])
    def test_of_ones_own_is_told_so_and_that_there_is_nothing_to_look_for(self, occupied):
        board = Board()
        if occupied:
            board.run(*window(submission(number=1)))
        mine, other = submission(number=2), submission(number=3, actor=BETA)
        plan = board.decide(window(*([] if occupied else [submission(number=1)]), mine, other))
        assert body(of(plan, mine))["yours"] is True
        assert "yours" not in body(of(plan, other))

    def test_keeps_its_payload_for_its_author(self):
        plan = Board().decide(window(submission(number=1), submission(number=2, title="MAP THE REEF")))
        loser = plan.fresh[1]
        assert msgspec.json.decode(loser.payload, type=CreateTask) == CreateTask(title="MAP THE REEF")
        assert loser.key == REEF_KEY

    def test_finds_the_key_free_once_its_task_has_ended(self):
        board = Board()
        board.run(*window(submission(number=1)))
        assert only(board.decide(window(submission(number=2)))).code is Code.CONFLICT_KEY_OCCUPIED
        board.end(REEF_KEY)
        assert only(board.run(*window(submission(number=3)))).status == 201


class TestAuthority:
    @pytest.mark.parametrize(
        ("key", "code"),
        [
            (authority(agent=ALPHA, revoked=True), Code.CREDENTIAL_INVALID),
            (authority(agent=ALPHA, expires_at=NOW), Code.CREDENTIAL_INVALID),
            (authority(agent=ALPHA, expires_at=NOW - timedelta(days=1)), Code.CREDENTIAL_INVALID),
            (authority(agent=BETA), Code.CREDENTIAL_INVALID),
            (MISSING, Code.CREDENTIAL_INVALID),
            (authority(agent=ALPHA, active=False), Code.ACTOR_NOT_ACTIVE),
            (authority(agent=ALPHA, active=False, revoked=True), Code.CREDENTIAL_INVALID),
            (authority(agent=ALPHA, role=None), Code.NOT_A_MEMBER),
        ],
        ids=["revoked", "expires now", "expired", "of another", "unknown", "inactive", "both", "no member"],
    )
    def test_is_looked_at_again_and_the_next_in_order_wins(self, key, code):
        board = Board()
        board.authorities["key_x"] = key
        if key is MISSING:
            del board.authorities["key_x"]
        waited, next_one = submission(number=1, key_id="key_x"), submission(number=2, actor=BETA)
        plan = board.run(*window(waited, next_one))
        assert of(plan, waited).code is code
        assert body(of(plan, waited))["write_occurred"] is False
        assert of(plan, next_one).status == 201

    @pytest.mark.parametrize("role", Role)
    def test_of_a_key_that_expires_later_stands(self, role):
        key = authority(agent=ALPHA, expires_at=NOW + timedelta(milliseconds=1), role=role)
        assert only(Board(authorities=[key]).decide(window(submission()))).status == 201

    @pytest.mark.parametrize("exists", [True, False])
    def test_without_membership_a_hidden_space_is_as_absent_as_none(self, exists):
        key = authority(agent=ALPHA, role=None)
        hidden = Board(authorities=[key], visibility=Visibility.MEMBERS, exists=exists)
        answer = only(hidden.decide(window(submission())))
        assert (answer.status, answer.code) == (404, Code.SPACE_NOT_FOUND)
        assert answer == only(Board(authorities=[key], exists=False).decide(window(submission())))

    def test_of_a_member_of_a_hidden_space_stands(self):
        assert only(Board(visibility=Visibility.MEMBERS).decide(window(submission()))).status == 201


class TestDrain:
    def test_refuses_without_keeping_what_was_asked(self):
        plan = Board().decide(window(submission()), mode=Mode.DRAIN)
        answer = only(plan)
        assert (answer.status, answer.code) == (503, Code.WORK_DRAIN_ACTIVE)
        assert body(answer)["write_occurred"] is False
        assert (plan.tasks, plan.events, plan.slots) == ((), (), ())
        assert plan.fresh[0].payload is None

    def test_still_replays(self):
        board = Board()
        sent = submission(number=1, slots=(slot(),))
        board.run(*window(sent))
        plan = board.run(*window(submission(number=2, slots=(slot(),)), first_seq=2), mode=Mode.DRAIN)
        assert (only(plan).status, only(plan).replay_of) == (201, sent.id)

    def test_still_says_that_a_key_belongs_to_another_body(self):
        board = Board()
        board.run(*window(submission(number=1, slots=(slot(),))))
        other = submission(number=2, slots=(slot(body="Shoal"),))
        assert only(board.run(*window(other, first_seq=2), mode=Mode.DRAIN)).code is Code.IDEMPOTENCY_KEY_REUSED

    def test_refusal_is_final_for_the_submission_and_none_for_its_key(self):
        board = Board()
        sent, again = submission(number=1, slots=(slot(),)), submission(number=2, slots=(slot(),))
        refused = only(board.run(*window(sent), mode=Mode.DRAIN))
        plan = board.run(*window(sent, again))
        assert of(plan, sent) == refused
        assert of(plan, again).status == 201


class TestPoison:
    def test_is_answered_alone_and_the_next_in_order_wins(self):
        poisoned, next_one, third = (submission(number=number, actor=BETA) for number in (1, 2, 3))
        plan = Board().decide(window(poisoned, next_one, third), poison=[(poisoned.id, 0)])
        answer = of(plan, poisoned)
        assert (answer.status, answer.code, answer.task_id) == (500, Code.INTENT_FAILED, None)
        assert body(answer)["proposal_id"] == proposal_id(poisoned)
        assert body(answer)["write_occurred"] is False
        assert of(plan, next_one).task_id == 1
        assert body(of(plan, third))["reserved_proposal_id"] == proposal_id(next_one)

    def test_in_a_batch_leaves_its_neighbours(self):
        batch = submission(proposals=[create(title="A reef"), create(title="B shoal"), create(title="C strait")])
        plan = Board().decide(window(batch), poison=[(batch.id, 1)])
        assert [of(plan, batch, position).status for position in range(3)] == [201, 500, 201]
        assert sorted(task.id for task in written(plan)) == [1, 2]

    def test_does_not_use_up_the_key(self):
        board = Board()
        first, again = submission(number=1, slots=(slot(),)), submission(number=2, slots=(slot(),))
        plan = board.run(*window(first, again), poison=[(first.id, 0)])
        assert (of(plan, again).status, of(plan, again).replay_of) == (201, None)
        assert [row.append_id for row in plan.slots] == [again.id]


class TestBatch:
    def test_shares_its_number_and_is_taken_by_digest_and_then_by_position(self):
        titles = ["Reef", "REEF", "Shoal", "reef", "Reef"]
        batch = submission(proposals=[create(title=title) for title in titles])
        plan = Board().decide([Sequenced(7, batch)])
        order = sorted(range(5), key=lambda position: (batch.proposals[position].payload_sha256, position))
        assert [outcome.position for outcome in plan.fresh] == order
        assert [outcome.place for outcome in plan.fresh] == [0, 1, 2, 3, 4]
        assert {outcome.received_seq for outcome in plan.fresh} == {7}
        assert [task.received_seq for task in written(plan)] == [7, 7]
        first = next(position for position in order if titles[position] != "Shoal")
        reserved = {
            position: body(of(plan, batch, position))["reserved_proposal_id"]
            for position in (0, 1, 3, 4)
            if position != first
        }
        assert reserved == dict.fromkeys(reserved, proposal_id(batch, first))

    def test_of_the_same_bytes_twice_gives_the_first_position_the_task(self):
        batch = submission(proposals=[create(), create()])
        plan = Board().decide(window(batch))
        assert [of(plan, batch, position).status for position in (0, 1)] == [201, 409]

    def test_of_one_is_a_batch(self):
        batch = submission(batch=True)
        plan = Board().decide(window(batch, submission(number=2)))
        assert plan.fresh[0].batch
        assert (
            body(plan.fresh[1].answer)["reserved_proposal_id"] == proposal_id(batch, 0) != ids.format_proposal(batch.id)
        )

    @pytest.mark.parametrize(
        ("code", "circumstances"),
        [
            (Code.CREDENTIAL_INVALID, {"authorities": [authority(agent=ALPHA, revoked=True)]}),
            (Code.ACTOR_NOT_ACTIVE, {"authorities": [authority(agent=ALPHA, active=False)]}),
            (Code.NOT_A_MEMBER, {"authorities": [authority(agent=ALPHA, role=None)]}),
            (Code.SPACE_NOT_FOUND, {"exists": False}),
            (Code.WORK_DRAIN_ACTIVE, {"mode": Mode.DRAIN}),
            (Code.IDEMPOTENCY_KEY_REUSED, {"reused": True}),
        ],
    )
    def test_is_refused_as_a_whole_with_one_answer(self, code, circumstances):
        given = dict(circumstances)
        mode, reused = given.pop("mode", Mode.ACTIVE), given.pop("reused", False)
        board = Board(**given)
        if reused:
            board.run(*window(submission(number=1, slots=(slot(body="other"),))))
        batch = submission(number=2, proposals=[create(title="B"), create(title="A")], slots=(slot(),))
        plan = board.run(*window(batch, first_seq=2), mode=mode)
        assert {answer.code for answer in answers(plan).values()} == {code}
        assert len(set(answers(plan).values())) == 1
        assert sorted(answers(plan)) == [(batch.id, 0), (batch.id, 1)]
        assert (plan.tasks, plan.slots) == ((), ())
        assert code in WHOLE

    def test_has_no_other_refusal_as_a_whole(self):
        """What stands in WHOLE is what the door shows as the batch's own answer; each is met in the test above."""
        assert {
            Code.CREDENTIAL_INVALID,
            Code.ACTOR_NOT_ACTIVE,
            Code.NOT_A_MEMBER,
            Code.SPACE_NOT_FOUND,
            Code.WORK_DRAIN_ACTIVE,
            Code.IDEMPOTENCY_KEY_REUSED,
        } == WHOLE

    def test_is_remembered_and_replayed_whole_with_its_losers(self):
        board = Board()
        board.occupy(key=task_key_of(name="shoal"), task_id=90, created_by=EPSILON)
        proposals = [create(title="Shoal"), create(title="Reef"), create(title="REEF")]
        batch = submission(number=1, proposals=proposals, slots=(slot(),))
        first = board.run(*window(batch))
        again = submission(number=2, proposals=proposals, slots=(slot(),))
        plan = board.run(*window(again, first_seq=2))
        assert (plan.tasks, plan.events, plan.slots) == ((), (), ())
        assert sorted(of(first, batch, position).status for position in range(3)) == [201, 409, 409]
        for position in range(3):
            assert of(plan, again, position) == msgspec.structs.replace(of(first, batch, position), replay_of=batch.id)

    def test_is_remembered_when_all_of_it_lost(self):
        board = Board()
        board.occupy(key=REEF_KEY, task_id=90)
        batch = submission(number=1, proposals=[create(), create()], slots=(slot(),))
        board.run(*window(batch))
        plan = board.run(*window(submission(number=2, proposals=[create(), create()], slots=(slot(),)), first_seq=2))
        assert {answer.replay_of for answer in answers(plan).values()} == {batch.id}
