import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.rules.codes import Code
from models.rules.conflict import DeliveryMode
from models.rules.intents import CreateTask, Proposal, Sequenced, Submission, ValidationPolicy
from models.rules.outcomes import Answer
from models.window.codec import (
    CorruptEntryError,
    Reply,
    UnknownFormatError,
    decode_entry,
    decode_replies,
    encode_replies,
    encode_submission,
)
from tests.builders import create, slot, submission, uuid7_at

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
intents = st.builds(
    CreateTask,
    title=texts,
    body=texts,
    work_item_id=st.none() | texts,
    delivery_mode=st.sampled_from(DeliveryMode),
    validation_policy=st.sampled_from(ValidationPolicy),
)
digests = st.binary(min_size=32, max_size=32)
submissions = st.builds(
    Submission,
    id=st.builds(lambda number: uuid7_at(number=number), st.integers(0, 2**40)),
    partition=texts,
    space=texts,
    actor=texts,
    key_id=texts,
    batch=st.booleans(),
    proposals=st.lists(st.builds(Proposal.of, intents), min_size=1, max_size=3).map(tuple),
    slots=st.just(()) | st.builds(lambda one, two: (slot(key=one), slot(key=two, secret="s2")), texts, texts),
    reply_to=texts,
)
answers = st.builds(
    Answer,
    status=st.integers(100, 599),
    body=texts,
    code=st.none() | st.sampled_from(Code),
    task_id=st.none() | st.integers(1, 2**53),
    replay_of=st.none() | st.builds(lambda number: uuid7_at(number=number), st.integers(0, 9)),
)


def entry(sent, *, seq=b"12", count=b"1"):
    return seq + b" " + count + b" " + encode_submission(sent)


@given(submissions, st.integers(1, 2**53))
def test_a_submission_comes_back_as_it_was(sent, seq):
    assert decode_entry(entry(sent, seq=b"%d" % seq, count=b"3")) == Sequenced(seq, sent)


def test_bytes_that_look_like_separators_pass():
    sent = submission(proposals=[create(title="1 2 \x01 3"), create(title="\x00")])
    assert decode_entry(entry(sent)) == Sequenced(12, sent)


@given(st.lists(st.builds(Reply, st.just(uuid7_at(number=1)), st.lists(answers, max_size=3).map(tuple)), max_size=3))
def test_replies_come_back_as_they_were(replies):
    assert decode_replies(encode_replies(replies)) == tuple(replies)


@pytest.mark.parametrize("first", [b"\x00", b"\x03", b"\xff", b"\x81"])
def test_another_versions_entry_is_told_apart_from_a_damaged_one(first):
    payload = encode_submission(submission())
    with pytest.raises(UnknownFormatError):
        decode_entry(b"1 1 " + first + payload[1:])


def test_an_entry_without_a_payload_has_no_format_that_is_known():
    with pytest.raises(UnknownFormatError):
        decode_entry(b"1 1 ")


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"12",
        b"12 1",
        b"x 1 " + encode_submission(submission()),
        b" 1 " + encode_submission(submission()),
        b"12 1 " + encode_submission(submission())[:-1],
        b"12 1 " + encode_submission(submission())[:2],
        b"12 1 \x01",
        b"12 1 \x01" + msgspec.msgpack.encode(["no", "submission"]),
        b"12 1 \x01" + msgspec.msgpack.encode({"id": "019f1d8c-e200-7abc-9def-012345678900"}),
        b"12 1 " + encode_submission(submission()).replace(b"create_task", b"create_tusk"),
        b"12 1 " + encode_submission(submission()) + b"\x00",
    ],
    ids=[
        "empty", "number alone", "no payload", "no number", "empty number", "cut", "cut early", "empty map", "a list",
        "fields missing", "another kind", "trailing bytes",
    ],
)  # fmt: skip
def test_a_damaged_entry_is_said_to_be_damaged(damaged):
    with pytest.raises(CorruptEntryError):
        decode_entry(damaged)


def test_an_encoded_submission_is_opaque_to_who_reads_numbers():
    """The Lua side reads the two numbers up to the second space; the format byte is neither digit nor space."""
    assert encode_submission(submission())[:1] == b"\x02"
