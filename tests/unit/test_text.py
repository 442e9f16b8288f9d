# Look-alike letters of other scripts are what these tests are about.
# ruff: noqa: RUF001
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.rules.text import (
    TITLE_CHARACTERS_MAX,
    TitleFault,
    clean_title,
    collapse,
    fold_title,
    nfc,
    normalize_note_body,
    tokens,
)

# Letters whose folding changes their length or composition, marks of several combining classes, marks
# that are starters yet decompose into marks, Hangul in pieces, cased scripts that fold upwards.
TRICKY = (
    "aAeEiIsSθΣσςιΙαΑωΩßẞİıŉǰΐΰάᾳᾴᾷᾼῼſﬁﬃﬓẖẛỗḍ̇\u1e69\u0300\u0301\u0307\u0308\u0313\u0323\u0331\u0338"
    "\u0342\u0345\u05b4\u094d\u0f71\u0f72\u0f73\u0f81\u3099\u1100\u1161\u11a8가각\u13a0\uab70\u212b\u2126"
    "\u0958\u0ddd\U0001d15e\u200c\u200d \t\n\u00a0\u3000-_&1²①"
)
tricky_text = st.text(st.sampled_from(TRICKY) | st.characters(codec="utf-8"), max_size=24)
thorough = settings(deadline=None, max_examples=400)


def code_points_of(*categories: str) -> list[str]:
    return [c for c in map(chr, range(0x110000)) if unicodedata.category(c).startswith(categories)]


@pytest.fixture(scope="module")
def title_characters() -> list[str]:
    """Every character that a cleaned title can hold: nothing of category C but the joiners, and NFC."""
    candidates = [*code_points_of("L", "M", "N", "P", "S"), " ", "\u200c", "\u200d"]
    return [c for c in candidates if unicodedata.is_normalized("NFC", c)]


class TestNfc:
    @thorough
    @given(tricky_text)
    def test_short_text_is_composed_as_the_standard_library_does(self, text):
        assert nfc(text) == unicodedata.normalize("NFC", text)

    @thorough
    @given(tricky_text, st.integers(min_value=40, max_value=60))
    def test_long_text_is_composed_as_the_standard_library_does(self, text, times):
        assert nfc(text * times) == unicodedata.normalize("NFC", text * times)

    @pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0f73", "\u0f73\u0323", "e\u0301\u0323\u0345\u0331"])
    def test_a_long_run_of_unordered_marks_takes_no_quadratic_time(self, marks):
        began = time.process_time()
        nfc(marks * 60_000)
        spent = time.process_time() - began
        assert spent < 5, f"{spent:.1f} s of CPU; insertion takes ten and more"


class TestCleanTitle:
    @pytest.mark.parametrize(
        ("raw", "cleaned"),
        [
            ("  Survey  of\tpatterns \r\n", "Survey of patterns"),
            ("a\r\nb\rc\nd", "a b c d"),
            ("\u3000full\u00a0\u2003width\u2028lines\u2029\u1680\u202f\u205f", "full width lines"),
            ("a\u2000\u2001\u200ab", "a b"),
            ("STRASSE Straße", "STRASSE Straße"),
            ("e\u0301tude", "\u00e9tude"),
            ("नमस्ते", "नमस्ते"),
            ("می\u200cخواهم", "می\u200cخواهم"),
            ("👩\u200d💻 ❤\ufe0f", "👩\u200d💻 ❤\ufe0f"),
            ("\u0301", "\u0301"),
            ("x", "x"),
        ],
    )
    def test_cleans(self, raw, cleaned):
        assert clean_title(raw) == cleaned
        assert clean_title(cleaned) == cleaned

    @pytest.mark.parametrize(
        "raw",
        [
            *("", " ", "\t\r\n", "\u00a0\u3000\u2028", "\u200d", " \u200c \u200d ", "\ufe0f", "\u034f\u115f\u1160"),
            *("\u3164", "\uffa0", "\u2800 \u2800", "\u17b4\u180b", "\U000e0100"),
        ],
    )
    def test_nothing_to_see_is_empty(self, raw):
        assert clean_title(raw) is TitleFault.EMPTY

    @pytest.mark.parametrize(
        "bad",
        [
            *("\x00", "\x07", "\x0b", "\x0c", "\x1b", "\x1c", "\x1f", "\x7f", "\x85", "\x9f"),
            *("\u00ad", "\u061c", "\u180e", "\u200b", "\u200e", "\u200f", "\u202a", "\u202e", "\u2060"),
            *("\u2066", "\u2069", "\ufeff", "\ufff9", "\U000e0041", "\ud800", "\udfff", "\ue000"),
            *("\U0010fffd", "\u0378", "\ufdd0", "\uffff", "\U0010ffff"),
        ],
    )
    def test_what_hides_in_text_is_refused_wherever_it_stands(self, bad):
        for raw in (f"a{bad}b", f"{bad}ab", f"ab{bad}", f" {bad} ", bad, f"\u200d{bad}"):
            assert clean_title(raw) is TitleFault.INVALID, ascii(raw)

    def test_every_control_format_and_surrogate_but_five_is_refused(self):
        hidden = code_points_of("Cc", "Cf", "Cs")
        kept = [c for c in hidden if clean_title(f"a{c}b") is not TitleFault.INVALID]
        assert kept == ["\t", "\n", "\r", "\u200c", "\u200d"]

    def test_private_and_unassigned_are_refused(self):
        assert {clean_title(f"a{c}b") for c in code_points_of("Co", "Cn")[::97]} == {TitleFault.INVALID}

    def test_every_other_character_is_kept(self, title_characters):
        lost = [c for c in title_characters if clean_title(f"1{c}1") != f"1{c}1"]
        assert lost == []

    def test_a_title_may_read_like_a_fault(self):
        assert not isinstance(clean_title("title_empty"), TitleFault)

    @pytest.mark.parametrize("character", ["x", "e\u0301", "\u1100\u1161\u11a8", "\u03b1\u0313\u0300\u0345", "💻"])
    def test_300_characters_count_after_composition(self, character):
        assert clean_title(f"  {character * TITLE_CHARACTERS_MAX}  ") == nfc(character) * TITLE_CHARACTERS_MAX
        assert clean_title(character * (TITLE_CHARACTERS_MAX + 1)) is TitleFault.INVALID

    def test_300_characters_count_after_collapsing(self):
        assert clean_title(("word" + " " * 500) * 60) == "word " * 59 + "word"
        assert clean_title("word \n" * 61) is TitleFault.INVALID

    def test_what_grows_by_composition_counts_as_grown(self):
        assert clean_title("\u0958" * 150) == "\u0915\u093c" * 150
        assert clean_title("\u0958" * 151) is TitleFault.INVALID

    @thorough
    @given(tricky_text)
    def test_cleaning_is_idempotent_and_blind_to_composition(self, text):
        cleaned = clean_title(text)
        for form in ("NFC", "NFD"):
            assert clean_title(unicodedata.normalize(form, text)) == cleaned
        if not isinstance(cleaned, TitleFault):
            assert clean_title(cleaned) == cleaned
            assert "  " not in cleaned
            assert cleaned == cleaned.strip()

    @pytest.mark.parametrize("piece", [" ", "\t x", "\u0f73", "\u0301\u0323", "\u200d", "\u200d ", "\x00", "é"])
    def test_a_mebibyte_is_judged_in_linear_time(self, piece):
        began = time.process_time()
        clean_title(piece * (2**20 // len(piece.encode())))
        spent = time.process_time() - began
        assert spent < 3, f"{spent:.1f} s of CPU"


class TestFoldTitle:
    @pytest.mark.parametrize(
        "titles",
        [
            ("Straße", "STRASSE", "STRAẞE", "strasse"),
            ("ΟΔΥΣΣΕΥΣ", "Οδυσσευς", "οδυσσευσ"),
            ("É\u0323", "e\u0323\u0301", "\u1eb9\u0301"),
            ("ΐ", "Ϊ́", "\u03b9\u0308\u0301"),
            ("ᾼ", "ᾳ", "ΑΙ"),
            # Composed first: folding moves the iota from under the dot to behind it.
            ("\u1fb3\u0323", "\u03b1\u0323\u0345"),
            ("ǰ", "J\u030c"),
            ("ﬃ", "FFI"),
            ("İ", "i\u0307"),
            ("  Two   words ", "two\u00a0words", "TWO\nWORDS"),
            ("\uab70", "\u13a0"),
        ],
    )
    def test_same_identity(self, titles):
        assert len({fold_title(title) for title in titles}) == 1

    @pytest.mark.parametrize(
        "titles",
        [
            ("ısı", "isi", "İsi"),
            ("ＡＢＣ", "abc"),
            ("x²", "x2"),
            ("ﷺ", "صلى الله عليه وسلم"),
            ("e", "é"),
            ("a\u200db", "ab", "a\u200cb"),
            ("two words", "twowords", "two-words"),
            ("ば", "は", "ぱ"),
        ],
    )
    def test_other_identity(self, titles):
        assert len({fold_title(title) for title in titles}) == len(titles)

    def test_the_letter_that_folds_apart_is_put_together_again(self):
        assert fold_title("\u0390") == "\u0390"
        assert "\u0390".casefold() != "\u0390"

    @thorough
    @given(tricky_text)
    def test_folding_is_idempotent_composed_and_blind_to_composition(self, text):
        folded = fold_title(text)
        assert fold_title(folded) == folded
        assert unicodedata.is_normalized("NFC", folded)
        assert {fold_title(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")} == {folded}

    def test_folding_each_character_is_idempotent(self, title_characters):
        assert [c for c in title_characters if fold_title(fold_title(c)) != fold_title(c)] == []

    def test_the_longest_target_fits_an_index_entry(self, title_characters):
        """A bound for every string, not for samples.

        What folding leaves alone stays composed, so it counts as it is; what it changes counts fully
        decomposed, its worst spelling, since a composite is never longer than its two parts.
        """
        longer = [
            c
            for c in title_characters
            if (parts := unicodedata.decomposition(c)) and not parts.startswith("<")
            if len(c.encode()) > len("".join(chr(int(part, 16)) for part in parts.split()).encode())
        ]
        assert longer == []
        worst = max(
            len((c if c.casefold() == c else unicodedata.normalize("NFD", c.casefold())).encode())
            for c in title_characters
        )
        slug_characters_max = 63
        assert len("task::") + slug_characters_max + TITLE_CHARACTERS_MAX * worst < 2600

    @pytest.mark.parametrize("character", ["\u1fb7", "\u0ddd", "\u1ff7", "각", "\U00011938", "ﬃ"])
    def test_the_longest_folds_fit(self, character):
        cleaned = clean_title(character * TITLE_CHARACTERS_MAX)
        assert not isinstance(cleaned, TitleFault)
        assert len(fold_title(cleaned).encode()) <= 2400


class TestTokens:
    @pytest.mark.parametrize(
        ("title", "words"),
        [
            ("T1 — Comparative survey of multi-agent &  harnesses", "t1 comparative survey multi agent harnesses"),
            ("The art OF a thing, and an end to it for the win", "art thing end it win"),
            ("of The and", ""),
            ("— & …!", ""),
            ("snake_case kebab-case undertie‿joined", "snake_case kebab case undertie‿joined"),
            ("v2.1 (2026)", "v2 1 2026"),
            ("word word WORD Word", "word"),
            ("Straße STRASSE", "strasse"),
            ("ΣΊΣΥΦΟΣ σίσυφος", "σίσυφοσ"),
            ("Ϊ́ ΐ", "\u0390"),
            ("हिन्दी में सर्वेक्षण", "हिन्दी में सर्वेक्षण"),
            ("การสำรวจ รูปแบบ ที่ดี", "การสำรวจ รูปแบบ ที่ดี"),
            ("می\u200cخواهم برنامه", "می\u200cخواهم برنامه"),
            ("क\u094d\u200dष x", "क\u094d\u200dष x"),
            ("٣ ३ ３", "٣ ३ ３"),
            ("Ⅳ ⅳ", "ⅳ"),
            ("ⒶⒷ x²y ①", "ⓐⓑ x y"),
            ("🄰 🅐 🅰 x🇩🇪y", "🄰 🅐 🅰 x y"),
            ("调查 多智能体、编排", "调查 多智能体 编排"),
            ("tab\tand\u00a0space\u2028line", "tab space line"),
        ],
    )
    def test_splits_at_what_is_no_word_character(self, title, words):
        assert tokens(title) == frozenset(words.split())

    def test_stopwords_go_after_folding(self):
        assert tokens("ＴＨＥ THE Of tO fOr AND a AN") == {"ｔｈｅ"}

    @thorough
    @given(tricky_text)
    def test_blind_to_composition_and_folding(self, text):
        words = tokens(text)
        assert {tokens(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")} == {words}
        assert tokens(fold_title(text)) == words

    @given(st.lists(st.sampled_from(["Survey", "of", "σίσυφος", "हिन्दी", "&", "t1"])))
    def test_order_and_number_do_not_matter(self, words):
        assert tokens(" ".join(words)) == tokens(" ".join(sorted(words))) == tokens(" ".join(words * 2))


class TestNoteBody:
    @pytest.mark.parametrize(
        ("body", "normalized"),
        [
            ("\n  Looks\r\n\r\ngood \t to  me\r", "Looks good to me"),
            ("line\x0bbreak\x0cs\x85\u2028\u3000end", "line break s end"),
            ("Case STAYS", "Case STAYS"),
            ("e\u0301", "\u00e9"),
            ("unit\x1fseparators\x1cstay", "unit\x1fseparators\x1cstay"),
            ("zero\u200bwidth stays\ufeff", "zero\u200bwidth stays\ufeff"),
            (" \n ", ""),
        ],
    )
    def test_normalizes(self, body, normalized):
        assert normalize_note_body(body) == normalized

    @thorough
    @given(tricky_text)
    def test_idempotent_and_blind_to_composition_and_line_ends(self, text):
        normalized = normalize_note_body(text)
        assert normalize_note_body(normalized) == normalized
        assert normalize_note_body(unicodedata.normalize("NFD", text)) == normalized
        assert normalize_note_body(text.replace("\n", "\r\n")) == normalized


def test_white_space_is_that_of_unicode():
    white = {c for c in map(chr, range(0x110000)) if collapse(f"a{c}b") == "a b"}
    assert white == {c for c in map(chr, range(0x110000)) if c.isspace()} - set("\x1c\x1d\x1e\x1f")
