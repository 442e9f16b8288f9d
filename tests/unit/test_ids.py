import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.ids import uuid7
from models.rules.ids import (
    MAX_BATCH,
    MalformedIdError,
    append_id,
    format_proposal,
    item_id,
    moment,
    parse_proposal,
    split,
)
from tests.builders import uuid7_at

FRESH = UUID("019f1d8c-e200-7abc-9def-0123456789ff")
APPEND = UUID("019f1d8c-e200-7abc-9def-012345678900")


def milliseconds(fresh):
    """Whole milliseconds since 1970."""
    return (moment(fresh) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


fresh_ids = st.builds(
    lambda at, rest: UUID(int=(at << 80 | rest) & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62),
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**80 - 1),
)


class TestFresh:
    def test_is_a_version_7_uuid_of_this_millisecond(self):
        before = time.time_ns() // 1_000_000
        made = [uuid7() for _ in range(200)]
        after = time.time_ns() // 1_000_000
        assert len(set(made)) == 200
        for one in made:
            assert (one.version, one.variant) == (7, "specified in RFC 4122")
            assert before <= milliseconds(one) <= after

    def test_has_random_bits_everywhere_else(self):
        seen_set = seen_clear = 0
        for _ in range(200):
            value = uuid7().int & ((1 << 80) - 1)
            seen_set |= value
            seen_clear |= ~value
        random_bits = ((1 << 80) - 1) & ~(0xF << 76) & ~(0x3 << 62)
        assert seen_set & random_bits == random_bits
        assert seen_clear & random_bits == random_bits


class TestAppendId:
    def test_ends_in_zero_and_keeps_the_rest(self):
        assert append_id(FRESH) == APPEND
        assert append_id(APPEND) == APPEND

    def test_of_one_proposal_is_its_id(self):
        assert item_id(APPEND, 0, batch=False) == APPEND
        assert split(APPEND) == (APPEND, None)

    def test_of_a_batch_counts_its_items_from_one(self):
        assert str(item_id(APPEND, 0, batch=True)) == "019f1d8c-e200-7abc-9def-012345678901"
        assert str(item_id(APPEND, 99, batch=True)) == "019f1d8c-e200-7abc-9def-012345678964"

    @given(fresh_ids, st.integers(0, MAX_BATCH - 1))
    def test_is_found_from_any_of_its_items(self, fresh, position):
        append = append_id(fresh)
        item = item_id(append, position, batch=True)
        assert split(item) == (append, position)
        assert parse_proposal(format_proposal(item)) == item
        assert item.version == 7
        assert milliseconds(item) == milliseconds(fresh)


def test_milliseconds_are_the_first_six_bytes():
    assert milliseconds(FRESH) == 0x019F1D8CE200
    assert milliseconds(uuid7_at(number=3)) == 1_782_907_200_000


def test_a_proposal_id_is_32_digits_behind_its_prefix():
    assert format_proposal(APPEND) == "prp_019f1d8ce2007abc9def012345678900"
    assert parse_proposal("prp_019f1d8ce2007abc9def012345678900") == APPEND


@pytest.mark.parametrize(
    "text",
    [
        "",
        "prp_",
        "019f1d8ce2007abc9def012345678900",
        "prp_019f1d8ce2007abc9def01234567890",
        "prp_019f1d8ce2007abc9def0123456789000",
        "prp_019f1d8c-e200-7abc-9def-012345678900",
        "prp_019F1D8CE2007ABC9DEF012345678900",
        "PRP_019f1d8ce2007abc9def012345678900",
        " prp_019f1d8ce2007abc9def012345678900",
        "prp_019f1d8ce2007abc9def012345678900\n",
        "prp_019f1d8ce2007abc9def01234567890g",
        "prp_019f1d8ce2007abc9def01234567890٣",
        "prp_019f1d8ce2004abc9def012345678900",
        "prp_019f1d8ce2007abc1def012345678900",
        "prp_019f1d8ce2007abc9def012345678965",
        "prp_019f1d8ce2007abc9def0123456789ff",
    ],
    ids=[
        "empty", "prefix", "no prefix", "short", "long", "hyphens", "capitals", "capital prefix", "space", "newline",
        "no digit", "arabic digit", "version 4", "other variant", "position 101", "position 255",
    ],
)  # fmt: skip
def test_another_shape_is_no_proposal_id(text):
    with pytest.raises(MalformedIdError):
        parse_proposal(text)
