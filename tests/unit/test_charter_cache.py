"""Charters in memory are bounded by their rows."""

from models.rules.charter import CompiledCharter
from models.rules.charter_cache import CharterCache


def charter(rows: int) -> CompiledCharter:
    return CompiledCharter(1, ("T",) * rows, (frozenset(),) * rows, {})


def test_the_latest_used_stay_as_far_as_their_rows_allow():
    cache: CharterCache[str] = CharterCache(rows=100)
    small, other = charter(20), charter(30)
    cache.put("small", small)
    cache.put("other", other)
    assert cache.get("small") is small
    cache.put("third", charter(21))
    assert (cache.get("small"), cache.get("other")) == (small, None)


def test_one_that_is_larger_than_all_is_held_alone():
    cache: CharterCache[str] = CharterCache(rows=100)
    large = charter(1000)
    cache.put("small", charter(1))
    cache.put("large", large)
    assert (cache.get("small"), cache.get("large")) == (None, large)


def test_a_key_that_is_put_again_counts_once():
    cache: CharterCache[str] = CharterCache(rows=100)
    first, again = charter(30), charter(30)
    cache.put("first", first)
    for _ in range(10):
        cache.put("again", again)
    assert (cache.get("first"), cache.get("again")) == (first, again)
