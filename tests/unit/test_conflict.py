import hashlib
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.rules.conflict import ConflictKey, DeliveryMode, Kind, note_key, task_key

RESULT = DeliveryMode.RESULT
CHANGE = DeliveryMode.REPOSITORY_CHANGE


def note(**changes):
    fields = {
        "space_slug": "mar",
        "task_id": 95,
        "criterion_index": 1,
        "principal": "agt_1",
        "body": "Looks good.",
        "delivery_mode": RESULT,
    }
    return note_key(**(fields | changes))


class TestTaskKey:
    def test_a_bound_task_is_named_by_its_slot(self):
        key = task_key("multi-agent-research", "Any title", "T1", RESULT)
        assert key == ConflictKey(Kind.CREATE_TASK, "task:multi-agent-research:slot:T1", RESULT)
        assert key == task_key("multi-agent-research", "Another", "T1", RESULT)

    def test_an_unbound_task_is_named_by_its_folded_title(self):
        assert task_key("mar", "Straße  NACH Σ", None, RESULT).target == "task:mar:strasse nach \u03c3"

    @pytest.mark.parametrize(
        ("one", "two"),
        [
            ("Étude", unicodedata.normalize("NFD", "étude")),
            ("STRASSE", "straße"),
            ("ΤΕΛΟΣ", "τελος"),
            ("ΐ", "Ϊ́"),
        ],
    )
    def test_spellings_of_one_title_collide(self, one, two):
        assert task_key("mar", one, None, RESULT) == task_key("mar", two, None, RESULT)

    @pytest.mark.parametrize(
        "changes",
        [{"space_slug": "mars"}, {"cleaned_title": "Survey 2"}, {"delivery_mode": CHANGE}, {"bind_slot": "T1"}],
    )
    def test_any_other_field_is_another_key(self, changes):
        fields = {
            "space_slug": "mar",
            "cleaned_title": "Survey",
            "bind_slot": None,
            "delivery_mode": RESULT,
        }
        assert task_key(**fields) != task_key(**(fields | changes))

    @pytest.mark.parametrize("title", ["slot:T1", "SLOT:t1", "Slot:T1"])
    def test_no_title_passes_for_a_slot(self, title):
        assert task_key("mar", title, None, RESULT) != task_key("mar", "x", "T1", RESULT)

    @given(st.text(st.characters(codec="utf-8"), max_size=20))
    def test_a_title_target_never_holds_an_ascii_capital(self, title):
        target = task_key("mar", title, None, RESULT).target
        assert not any("A" <= character <= "Z" for character in target)


class TestNoteKey:
    def test_the_target_is_the_seeds(self):
        digest = hashlib.sha256(b"Looks good.").hexdigest()[:16]
        assert note() == ConflictKey(
            Kind.POST_REVIEW_NOTE,
            f"note:mar:task:95:criterion:1:principal:agt_1:body:{digest}",
            RESULT,
        )

    def test_a_note_on_no_criterion_says_so(self):
        assert ":criterion:none:" in note(criterion_index=None).target
        assert ":criterion:0:" in note(criterion_index=0).target

    @pytest.mark.parametrize("body", [" Looks good.\n", "Looks \r\n good.", "Looks\u00a0good."])
    def test_layout_makes_no_other_note(self, body):
        assert note(body=body) == note()

    @pytest.mark.parametrize(
        "changes",
        [
            {"space_slug": "mars"},
            {"task_id": 96},
            {"criterion_index": 2},
            {"criterion_index": None},
            {"principal": "agt_2"},
            {"body": "looks good."},
            {"delivery_mode": CHANGE},
        ],
    )
    def test_any_other_field_is_another_key(self, changes):
        assert note(**changes) != note()

    def test_a_lone_surrogate_has_no_digest(self):
        with pytest.raises(ValueError, match="surrogates not allowed"):
            note(body="\ud800")


class TestConflictKey:
    def test_keys_are_hashable_ordered_and_frozen(self):
        keys = [
            ConflictKey(Kind.POST_REVIEW_NOTE, "a", RESULT),
            ConflictKey(Kind.CREATE_TASK, "b", RESULT),
            ConflictKey(Kind.CREATE_TASK, "b", CHANGE),
            ConflictKey(Kind.CREATE_TASK, "a", RESULT),
        ]
        assert sorted(keys) == [keys[3], keys[2], keys[1], keys[0]]
        assert len({*keys, ConflictKey(Kind.CREATE_TASK, "a", RESULT)}) == 4
        with pytest.raises(AttributeError):
            keys[0].target = "c"

    def test_on_the_wire_it_is_the_seeds_object(self):
        key = task_key("multi-agent-research", "x", "T1", RESULT)
        wire = {
            "kind": "create_task",
            "target": "task:multi-agent-research:slot:T1",
            "delivery_mode": "result",
        }
        assert msgspec.to_builtins(key) == wire
        assert msgspec.convert(wire, ConflictKey) == key
