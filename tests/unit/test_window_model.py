"""The allocator against the plainest thing that says the same: a dict, filled in order."""

import json
from typing import NamedTuple

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from models.rules import ids
from models.rules.codes import Code
from models.rules.conflict import DeliveryMode
from models.rules.intents import Sequenced
from models.rules.window import bind_window, leaders
from tests.builders import (
    ALPHA,
    BETA,
    EPSILON,
    Board,
    ProposalAt,
    answers,
    authority,
    body,
    charter,
    create,
    slot,
    submission,
    written,
)

OUTSIDER = "agt_outsider"
CATALOG = charter(
    rows={"T1": ("Survey of orchestration harnesses",), "T3": ("Stopping rules and re-entry", "Loop exits")}
)
WORK = {
    "Survey of orchestration harnesses": "T1",
    "A survey: harnesses for orchestration": "T1",
    "Orchestration survey, harnesses": "T1",
    "Loop exits, re-entry and stopping rules": "T3",
    "Stopping rules, loop exits, re-entry": "T3",
    "Straße zum Riff": "strasse",
    "STRASSE ZUM RIFF": "strasse",
    "Map the reef": "reef",
}
"""Titles and, said by hand, the work that each of them is."""


class Wanted(NamedTuple):
    title: str
    mode: DeliveryMode
    poisoned: bool

    @property
    def work(self):
        return WORK[self.title], self.mode


class Request(NamedTuple):
    actor: str
    wanted: list[Wanted]
    window: int
    seq_step: int


a_proposal = st.builds(
    Wanted, st.sampled_from(sorted(WORK)), st.sampled_from(DeliveryMode), st.sampled_from([False] * 7 + [True])
)
a_request = st.builds(
    Request,
    st.sampled_from([ALPHA, BETA, EPSILON, OUTSIDER]),
    st.one_of(st.lists(a_proposal, min_size=1, max_size=1), st.lists(a_proposal, min_size=2, max_size=5)),
    st.integers(0, 2),
    st.sampled_from([1, 1, 1, 40]),
)


def sequential(entries, wanted):
    """The model: each key's winner is the first in order that may write at all."""
    winners = {}
    order = [
        (entry.received_seq, proposal.payload_sha256, position, entry.submission)
        for entry in entries
        for position, proposal in enumerate(entry.submission.proposals)
    ]
    for _, _, position, sent in sorted(order, key=lambda place: place[:3]):
        asked = wanted[sent.id, position]
        if sent.actor != OUTSIDER and not asked.poisoned:
            winners.setdefault(asked.work, (sent.id, position))
    return winners


def split(entries, cuts):
    """Consecutive windows: each entry opens ``cuts`` new ones, so some windows are empty."""
    windows = [[]]
    for entry, cut in zip(entries, cuts, strict=True):
        windows += [[] for _ in range(cut)]
        windows[-1].append(entry)
    return windows


@settings(max_examples=150, deadline=None)
@given(requests=st.lists(a_request, min_size=1, max_size=9), data=st.data())
def test_any_arrival_in_any_windows_and_batches_has_the_winners_of_the_sequence(requests, data):
    entries, wanted, seq = [], {}, 0
    for number, request in enumerate(requests, start=1):
        seq += request.seq_step
        sent = submission(
            number=number,
            actor=request.actor,
            proposals=[create(title=one.title, mode=one.mode) for one in request.wanted],
        )
        entries.append(Sequenced(seq, sent))
        wanted |= {(sent.id, position): one for position, one in enumerate(request.wanted)}
    poison = {place for place, one in wanted.items() if one.poisoned}
    winners = sequential(entries, wanted)
    board = Board(compiled=CATALOG, authorities=[authority(agent=OUTSIDER, revoked=True)])
    board.next_task, board.next_event = 92, 41
    tasks, events, answered, of_window = [], [], {}, {}
    for index, ordered in enumerate(split(entries, [request.window for request in requests])):
        arrived = data.draw(st.permutations(ordered), label=f"arrival in window {index}")
        # A window that its worker died on comes again, entries of a decided one too: they change nothing.
        before = entries[: len(of_window)]
        again = data.draw(st.permutations(before).map(lambda mixed: mixed[:2]), label="again")
        plan = board.decide([*arrived, *again, *arrived], poison=poison)
        assert plan == board.decide([*again, *ordered], poison=poison)
        places = [outcome.place for outcome in plan.fresh]
        assert places == sorted(set(places))
        board.commit(plan)
        tasks += written(plan)
        events += plan.events
        repeated = {place: answer for place, answer in answers(plan).items() if place in answered}
        assert repeated == {place: answered[place] for place in repeated}
        assert {place[0] for place in repeated} == {entry.submission.id for entry in again}
        fresh = {(outcome.append_id, outcome.position): outcome.answer for outcome in plan.fresh}
        assert not fresh.keys() & answered.keys()
        answered |= fresh
        of_window |= {entry.submission.id: index for entry in ordered}
    assert answered.keys() == wanted.keys()
    assert [task.id for task in tasks] == list(range(92, 92 + len(winners)))
    assert [one.number for one in events] == list(range(41, 41 + len(winners)))
    assert [(one.task_id, one.actor) for one in events] == [(task.id, task.created_by) for task in tasks]
    assert [json.loads(one.data) for one in events] == [msgspec.to_builtins(task) for task in tasks]
    by_id = {task.id: task for task in tasks}
    actors = {entry.submission.id: entry.submission.actor for entry in entries}
    assert {place for place, answer in answered.items() if answer.status == 201} == set(winners.values())
    for place, answer in answered.items():
        check_answer(place, answer, wanted, winners, by_id, answered, of_window, actors, board)


def check_answer(place, answer, wanted, winners, by_id, answered, of_window, actors, board):
    said = body(answer)
    if actors[place[0]] == OUTSIDER:
        assert answer.code is Code.CREDENTIAL_INVALID
        return
    if wanted[place].poisoned:
        assert answer.code is Code.INTENT_FAILED
        return
    winner = winners[wanted[place].work]
    task = by_id[answered[winner].task_id]
    assert answer.task_id == task.id
    if place == winner:
        assert said == msgspec.to_builtins(task)
        return
    assert answer.status == 409
    assert said["conflict_key"] == msgspec.to_builtins(task.conflict_key)
    assert said["winner"]["created_by"] == task.created_by == actors[winner[0]]
    assert said.get("yours", False) == (actors[place[0]] == task.created_by)
    assert said["proposal_id"] == proposal_id(place, board)
    earlier = of_window[winner[0]] < of_window[place[0]]
    event("occupied" if earlier else "reserved")
    if earlier:
        assert said["code"] == "conflict_key_occupied"
        assert (said["winner"]["type"], said["winner"]["id"]) == ("task", task.id)
    else:
        assert said["code"] == "conflict_key_reserved"
        assert said["reserved_proposal_id"] == said["winner"]["id"] == proposal_id(winner, board)
        assert said["winner"]["task_id"] == task.id


def proposal_id(place: ProposalAt, board: Board):
    append_id, position = place
    batch = board.decided[append_id][0].batch
    return ids.format_proposal(ids.item_id(append_id, position, batch=batch))


@settings(max_examples=100, deadline=None)
@given(
    sent=st.lists(st.lists(st.sampled_from(sorted(WORK)), min_size=1, max_size=3), min_size=1, max_size=6),
    data=st.data(),
)
def test_reservations_go_to_whom_the_window_makes_winners(sent, data):
    """Where every proposal is eligible, the leaders bound beforehand are those the decision finds."""
    entries = [
        Sequenced(number, submission(number=number, proposals=[create(title=title) for title in titles]))
        for number, titles in enumerate(sent, start=1)
    ]
    board = Board(compiled=CATALOG)
    plan = board.decide(entries)
    arrived = data.draw(st.permutations(entries))
    first = leaders(arrived, bind_window(arrived, CATALOG))
    won = {place for place, answer in answers(plan).items() if answer.status == 201}
    assert set(first.values()) == won
    assert {task.conflict_key for task in written(plan)} == first.keys()


class Keyed(NamedTuple):
    actor: str
    key: str
    title: str
    window: int


@settings(max_examples=150, deadline=None)
@given(
    sent=st.lists(
        st.builds(
            Keyed,
            st.sampled_from([ALPHA, BETA]),
            st.sampled_from(["k1", "k2"]),
            st.sampled_from(["Map the reef", "Chart the shoal", "Sound the strait"]),
            st.integers(0, 1),
        ),
        min_size=2,
        max_size=8,
    )
)
def test_a_key_stands_for_one_success_and_for_its_first_body(sent):
    entries = [
        Sequenced(
            number,
            submission(
                number=number,
                actor=one.actor,
                title=one.title,
                slots=(slot(key=one.key, body=one.title, actor=one.actor),),
            ),
        )
        for number, one in enumerate(sent, start=1)
    ]
    board = Board()
    answered = {}
    for entries_of_window in split(entries, [one.window for one in sent]):
        answered |= {append_id: answer for (append_id, _), answer in answers(board.run(*entries_of_window)).items()}
    # Said without windows: a key that has once succeeded answers its body with the same bytes and any other with 422.
    succeeded = {}
    for entry, one in zip(entries, sent, strict=True):
        answer = answered[entry.submission.id]
        scope = one.actor, one.key
        if scope in succeeded:
            title, first = succeeded[scope]
            if one.title == title:
                assert (answer.status, answer.body, answer.replay_of) == (201, first[1].body, first[0])
            else:
                assert answer.code is Code.IDEMPOTENCY_KEY_REUSED
        elif answer.status == 201:
            assert answer.replay_of is None
            succeeded[scope] = one.title, (entry.submission.id, answer)
        else:
            assert answer.code in {
                Code.CONFLICT_KEY_OCCUPIED,
                Code.CONFLICT_KEY_RESERVED,
                Code.IDEMPOTENCY_KEY_REUSED,
            }
    assert len(board.remembered) == len(succeeded) == len(board.occupants)
