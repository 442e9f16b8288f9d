"""Titles, note bodies and tokens (Seed 000, sections 2.1 and 2.2; Contract 2.1 and 2.3).

Every function takes time linear in its input (canonical reordering sorts, so n log n there): the
text comes from strangers and is handled on an event loop.
"""

import re
import unicodedata
from enum import StrEnum
from itertools import groupby
from typing import Final

TITLE_CHARACTERS_MAX: Final = 300

_STOPWORDS: Final = frozenset({"a", "an", "the", "of", "and", "to", "for"})

# Zero-width non-joiner and joiner: Persian, the Indic scripts and emoji cannot be spelled without them.
_JOIN_CONTROLS: Final = "\u200c\u200d"
_WITHOUT_JOIN_CONTROLS: Final = dict.fromkeys(map(ord, _JOIN_CONTROLS))

# White_Space of the Unicode Character Database. str.split() is no substitute: it also splits at the
# four information separators U+001C to U+001F.
_SPACE_SEPARATORS: Final = "\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WHITE_SPACE: Final = re.compile(f"[\t-\r\u0085{_SPACE_SEPARATORS}]+")
# The same without vertical tab, form feed and NEL, which a title may not hold: they stay in the text
# until the test for control characters meets them.
_TITLE_SPACE: Final = re.compile(f"[\t\n\r{_SPACE_SEPARATORS}]+")

# Characters that titles may hold and nobody sees: Default_Ignorable_Code_Point outside category C, the
# join controls, and the braille blank.
_INVISIBLE: Final = re.compile(
    f"[ {_JOIN_CONTROLS}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164"
    "\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]*"
)

# No character decomposes canonically into more than four, so NFC shortens a text at most fourfold.
_NFC_SHRINK_MAX: Final = 4

# Up to here the quadratic reordering inside unicodedata.normalize costs less than a detour around it.
_REORDER_CHARACTERS_CHEAP: Final = 300


class TitleFault(StrEnum):
    """Why a title is refused; each value is the code of the 422 answer."""

    EMPTY = "title_empty"
    INVALID = "title_invalid"


def nfc(text: str) -> str:
    """Compose canonically (Unicode NFC), also when the text is one long run of unordered marks.

    unicodedata.normalize orders marks by insertion: some ten thousand of them in descending order of
    combining class, a body that any client can send, would hold an event loop for a second. So a long
    text is decomposed and ordered here first, with a stable sort, which is what UAX #15 defines.
    """
    if len(text) <= _REORDER_CHARACTERS_CHEAP or unicodedata.is_normalized("NFC", text):
        return unicodedata.normalize("NFC", text)
    decomposed = "".join(unicodedata.normalize("NFD", character) for character in text)
    runs = groupby(decomposed, key=_is_reorderable)
    ordered = "".join(
        "".join(sorted(run, key=unicodedata.combining) if reorderable else run) for reorderable, run in runs
    )
    return unicodedata.normalize("NFC", ordered)


def _is_reorderable(character: str) -> bool:
    return unicodedata.combining(character) > 0


def collapse(text: str) -> str:
    """Trim White_Space and make each inner run of it one ASCII space."""
    return _WHITE_SPACE.sub(" ", text).strip(" ")


def clean_title(raw: str) -> str | TitleFault:
    """Make the title that is stored and shown: NFC, trimmed, each run of whitespace one ASCII space.

    Whitespace is White_Space without its controls, plus TAB, CR and LF. A title without one visible
    character is EMPTY. INVALID are more than 300 characters after cleaning, and any code point of
    category C (controls, formats such as bidi marks or the zero-width space, surrogates, private use,
    unassigned) except TAB, CR, LF, ZWJ and ZWNJ. Refusing the unassigned keeps stored keys valid:
    Unicode promises stable composition and folding for assigned characters only.

    Tell the two results apart with isinstance: a title may well read ``title_empty``.
    Contract 2.1.
    """
    spaced = _TITLE_SPACE.sub(" ", raw).strip(" ")
    if not spaced:
        return TitleFault.EMPTY
    # Too long whatever NFC makes of it. Said here so that the rest only ever sees short text.
    if len(spaced) > _NFC_SHRINK_MAX * TITLE_CHARACTERS_MAX:
        return TitleFault.INVALID
    # Only U+2000 and U+2001 compose into whitespace, and they are spaces by now: no second collapse.
    cleaned = nfc(spaced)
    if len(cleaned) > TITLE_CHARACTERS_MAX or not _is_free_of_controls(cleaned):
        return TitleFault.INVALID
    if _INVISIBLE.fullmatch(cleaned):
        return TitleFault.EMPTY
    return cleaned


def _is_free_of_controls(cleaned: str) -> bool:
    # isprintable() is false for category C and for separators other than the ASCII space. The latter
    # are collapsed by now, so it tests for category C alone, without a loop over the characters here.
    return cleaned.translate(_WITHOUT_JOIN_CONTROLS).isprintable()


def fold_title(title: str) -> str:
    """Fold a title to its identity: NFC, trim, collapse, default case fold, NFC.

    The last step is needed because folding takes some composed characters apart (U+0390, for one).
    With it the result is NFC and folding again changes nothing. A cleaned title folds to at most
    2400 bytes of UTF-8, so that a target fits an index entry of PostgreSQL (2704 bytes).
    Seed 000, section 2.1 (its ``normalize_title``).
    """
    return nfc(nfc(collapse(title)).casefold())


def tokens(title: str) -> frozenset[str]:
    r"""Split a title into its distinct words, without the seven stopwords.

    The title is folded as :func:`fold_title` does it, every character that is in no word becomes a space, and
    what stands between spaces is a word. Word characters are those of UTS #18 ``\w``.
    Seed 000, section 2.1; Contract 2.1.
    """
    return frozenset(fold_title(title).translate(_WORDS_ONLY).split()) - _STOPWORDS


def normalize_note_body(body: str) -> str:
    """Normalize a note for comparison: NFC, trim, each run of White_Space one ASCII space, case kept.

    CRLF and CR need no step of their own to become LF, since all three end as that space.
    Contract 2.3.
    """
    return collapse(nfc(body))


def _is_word_character(character: str) -> bool:
    category = unicodedata.category(character)
    return (
        category[0] in "LM"
        or category in ("Nd", "Nl", "Pc")
        or character in _JOIN_CONTROLS
        # The circled and squared letters: symbols by category, yet Alphabetic (Other_Alphabetic).
        or "\u24b6" <= character <= "\u24e9"
        or "\U0001f130" <= character <= "\U0001f149"
        or "\U0001f150" <= character <= "\U0001f169"
        or "\U0001f170" <= character <= "\U0001f189"
    )


class _WordsOnly(dict[int, int]):
    """Table for str.translate that sends non-word characters to the space.

    Filled as characters are met: going through all of Unicode would add 0.2 s to every start. The
    entries depend on nothing but their key, so threads that fill one twice write the same.
    """

    def __missing__(self, code_point: int) -> int:
        target = code_point if _is_word_character(chr(code_point)) else ord(" ")
        self[code_point] = target
        return target


_WORDS_ONLY: Final = _WordsOnly()
