"""The charter: a space's catalog of work items, and how a title binds to one of them.

Seed 000, section 2.1; Contract 2.1. Scores are compared as integers and fractions, never as floats,
so that 3/5 against 13/25 leads by exactly 2/25 and binds.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Final

import msgspec

from models.rules.text import TitleFault, clean_title, collapse, tokens

ROWS_MAX: Final = 1000
ALIASES_PER_ROW_MAX: Final = 64
WORK_ITEM_DIGITS_MAX: Final = 18
FIRST_REVISION: Final = 1
"""Revision of the charter that a new space begins with."""

BIND_SCORE_MIN: Final = Fraction(7, 20)
BIND_LEAD_MIN: Final = Fraction(2, 25)

_WORK_ITEM_ID: Final = re.compile(r"[Tt]([0-9]+)")

# Two different fractions s/u differ by at least 1 / (u1 * u2). Scaled by 2**64 that is more than 1 for
# all bags below 2**32 tokens, so the floors of scaled scores order exactly as the fractions do.
_SCALE_BITS: Final = 64


class CatalogRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One work item as its steward wrote it: id, title, and phrases that mean the same work."""

    work_item_id: str
    canonical_title: str
    aliases: tuple[str, ...] = ()


class Charter(msgspec.Struct, frozen=True):
    """One revision of a space's catalog; the order of rows and aliases carries no meaning."""

    revision: int
    rows: tuple[CatalogRow, ...] = ()


class CharterFaultCode(StrEnum):
    """Why a catalog is refused."""

    ROWS_TOO_MANY = "catalog_too_large"
    ALIASES_TOO_MANY = "aliases_too_many"
    WORK_ITEM_ID_INVALID = "work_item_id_invalid"
    WORK_ITEM_ID_REPEATED = "work_item_id_repeated"
    TITLE_EMPTY = "title_empty"
    TITLE_INVALID = "title_invalid"


class CharterFault(msgspec.Struct, frozen=True):
    """The first fault of a catalog, with a JSON pointer (RFC 6901) into the list of rows."""

    code: CharterFaultCode
    pointer: str


class CompiledCharter(msgspec.Struct, frozen=True):
    """A charter ready to score titles: its rows in order of id, and an index from token to rows.

    ``bags[n]`` belongs to ``work_item_ids[n]``; ``postings`` holds such n, ascending, for each token.
    """

    revision: int
    work_item_ids: tuple[str, ...]
    bags: tuple[frozenset[str], ...]
    postings: dict[str, tuple[int, ...]]


class Score(msgspec.Struct, frozen=True):
    """How near a title is to a row: the sizes of intersection and union of their tokens."""

    work_item_id: str
    shared: int
    union: int

    @property
    def jaccard(self) -> Fraction:
        """Exact, 0 to 1; 0 when neither side has a token."""
        return Fraction(self.shared, self.union) if self.union else Fraction(0)


class Provenance(StrEnum):
    """Where a task's identity comes from."""

    REQUEST = "request"
    CHARTER = "charter"
    TITLE = "title"


class Bind(msgspec.Struct, frozen=True):
    """How a task was bound. Shown with the task, so it says why as well.

    ``slot`` is None when the title itself is the identity. ``score`` and ``runner_up`` are the two best
    rows, bound or not; None when the request named its slot or the catalog has no such row.
    """

    provenance: Provenance
    slot: str | None
    score: Score | None
    runner_up: Score | None
    charter_revision: int


def normalize_work_item_id(raw: str) -> str | None:
    """Bring a work item id to its one spelling (`` t01 `` becomes ``T1``); None is a wrong shape.

    The shape is T or t and ASCII digits, at most 18 of them once leading zeros are dropped.
    Contract 2.1.
    """
    match = _WORK_ITEM_ID.fullmatch(collapse(raw))
    if match is None:
        return None
    digits = match[1].lstrip("0") or "0"
    return f"T{digits}" if len(digits) <= WORK_ITEM_DIGITS_MAX else None


def validate_catalog(rows: Sequence[CatalogRow]) -> CharterFault | None:
    """Find the first fault of a catalog, in the order of the document; None when it is sound.

    At most 1000 rows with at most 64 aliases each. Ids are distinct once normalized. Canonical titles
    and aliases obey the rules of task titles, 300 characters included.
    """
    if len(rows) > ROWS_MAX:
        return CharterFault(code=CharterFaultCode.ROWS_TOO_MANY, pointer="")
    seen: set[str] = set()
    for index, row in enumerate(rows):
        work_item_id = normalize_work_item_id(row.work_item_id)
        if work_item_id is None:
            return CharterFault(code=CharterFaultCode.WORK_ITEM_ID_INVALID, pointer=f"/{index}/work_item_id")
        if work_item_id in seen:
            return CharterFault(code=CharterFaultCode.WORK_ITEM_ID_REPEATED, pointer=f"/{index}/work_item_id")
        seen.add(work_item_id)
        fault = _phrase_fault(row=row, pointer=f"/{index}")
        if fault is not None:
            return fault
    return None


def _phrase_fault(*, row: CatalogRow, pointer: str) -> CharterFault | None:
    if len(row.aliases) > ALIASES_PER_ROW_MAX:
        return CharterFault(code=CharterFaultCode.ALIASES_TOO_MANY, pointer=f"{pointer}/aliases")
    phrases = [(row.canonical_title, f"{pointer}/canonical_title")]
    phrases += [(alias, f"{pointer}/aliases/{index}") for index, alias in enumerate(row.aliases)]
    for phrase, phrase_pointer in phrases:
        cleaned = clean_title(phrase)
        if isinstance(cleaned, TitleFault):
            return CharterFault(code=CharterFaultCode(cleaned.value), pointer=phrase_pointer)
    return None


def compile_charter(charter: Charter) -> CompiledCharter:
    """Tokenize a charter once for all the titles it will score.

    Takes what `validate_catalog` passed. Raises ValueError for a work item id that is repeated or has not
    the shape: the rows of one id would depend on their order.
    """
    bags: dict[str, frozenset[str]] = {}
    for row in charter.rows:
        work_item_id = normalize_work_item_id(row.work_item_id)
        if work_item_id is None or work_item_id in bags:
            raise ValueError("a work item id is malformed or repeated: validate the catalog first")
        bags[work_item_id] = tokens(row.canonical_title).union(*map(tokens, row.aliases))
    # Numeric order, as ids have no leading zeros: T2 comes before T10.
    work_item_ids = tuple(sorted(bags, key=lambda work_item_id: (len(work_item_id), work_item_id)))
    postings: dict[str, list[int]] = {}
    for position, work_item_id in enumerate(work_item_ids):
        for token in bags[work_item_id]:
            postings.setdefault(token, []).append(position)
    return CompiledCharter(
        revision=charter.revision,
        work_item_ids=work_item_ids,
        bags=tuple(bags[work_item_id] for work_item_id in work_item_ids),
        postings={token: tuple(positions) for token, positions in postings.items()},
    )


def score(title_tokens: frozenset[str], compiled: CompiledCharter) -> tuple[Score, ...]:
    """Score every row, best first; rows that tie come in order of work item id."""
    return tuple(
        _scores(
            positions=range(len(compiled.work_item_ids)),
            shared=_count_shared(title_tokens, compiled),
            title_size=len(title_tokens),
            compiled=compiled,
        )
    )


def bind(title: str, requested: str | None, compiled: CompiledCharter) -> Bind:
    """Find the slot of a cleaned title.

    A requested id, already normalized, is taken as it is, in the charter or not. Otherwise the best row
    is bound if its Jaccard index is at least 0.35 and leads the next row's by at least 0.08 (the next
    counts 0 where there is none). Failing that the title stands for itself: a false bind would cost
    more than a missed duplicate.
    Seed 000, section 2.1.
    """
    if requested is not None:
        return Bind(
            provenance=Provenance.REQUEST,
            slot=requested,
            score=None,
            runner_up=None,
            charter_revision=compiled.revision,
        )
    best, runner_up = _best_two(tokens(title), compiled)
    slot = best.work_item_id if best is not None and _is_clear(best=best, runner_up=runner_up) else None
    return Bind(
        provenance=Provenance.TITLE if slot is None else Provenance.CHARTER,
        slot=slot,
        score=best,
        runner_up=runner_up,
        charter_revision=compiled.revision,
    )


def _best_two(title_tokens: frozenset[str], compiled: CompiledCharter) -> tuple[Score | None, Score | None]:
    shared = _count_shared(title_tokens, compiled)
    # A row that shares a token beats all that share none, and of those the first two by id are next in
    # line: so a title costs what it shares with the catalog, not what the catalog holds.
    contenders = shared.keys() | set(range(min(2, len(compiled.work_item_ids))))
    scores = _scores(positions=sorted(contenders), shared=shared, title_size=len(title_tokens), compiled=compiled)
    return (scores[0] if scores else None, scores[1] if len(scores) > 1 else None)


def _count_shared(title_tokens: frozenset[str], compiled: CompiledCharter) -> Counter[int]:
    shared: Counter[int] = Counter()
    for token in title_tokens:
        shared.update(compiled.postings.get(token, ()))
    return shared


def _scores(
    *, positions: Iterable[int], shared: Counter[int], title_size: int, compiled: CompiledCharter
) -> list[Score]:
    """Score the rows at ascending positions, best first. The stable sort leaves ties in order of id."""
    scores = [
        Score(
            work_item_id=compiled.work_item_ids[position],
            shared=shared[position],
            union=title_size + len(compiled.bags[position]) - shared[position],
        )
        for position in positions
    ]
    scores.sort(key=_scaled, reverse=True)
    return scores


def _scaled(row_score: Score) -> int:
    return (row_score.shared << _SCALE_BITS) // row_score.union if row_score.union else 0


def _is_clear(*, best: Score, runner_up: Score | None) -> bool:
    second = runner_up.jaccard if runner_up is not None else Fraction(0)
    return best.jaccard >= BIND_SCORE_MIN and best.jaccard - second >= BIND_LEAD_MIN
