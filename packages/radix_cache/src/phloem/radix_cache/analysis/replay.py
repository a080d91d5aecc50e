"""The real cache under the traffic, at one size and with one policy.

Owns the protocol in which an engine uses the tree, reduced to one request at a time: match, lock
what was found, make room, insert, unlock. Keeps no values beyond their count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..key import Key
from ..policy import CostAware, EvictionPolicy, prefill_cost, resolve
from ..tree import RadixCache
from .units import PAGE_WORDS


class CountValues:
    """Values that are only counted: `n` stands for the values of `n` words."""

    def length(self, values: int) -> int:
        """The number itself."""
        return values

    def cut(self, values: int, start: int, stop: int) -> int:
        """The number of words in a part."""
        return stop - start

    def join(self, parts: Sequence[int]) -> int:
        """The number of words in all parts."""
        return sum(parts)


class Replay:
    """A `RadixCache` that never holds more than `pages` pages."""

    def __init__(self, pages: int, policy: EvictionPolicy, clock: Callable[[], float]) -> None:
        self._words = pages * PAGE_WORDS
        self._cache = RadixCache(PAGE_WORDS, policy, clock, CountValues(), ghosts=0)
        self.hits = 0

    def add(self, path: Key, cap: int) -> None:
        """Serve a request: `hits` grows by the pages found, at most `cap`; then `path` is cached.

        Of a path that is larger than the cache, the front is cached.
        """
        cache = self._cache
        found = cache.match(path)
        self.hits += min(found.length // PAGE_WORDS, cap)
        wanted = min(len(path), self._words)
        missing = wanted - found.length
        if missing <= 0:
            return
        room = self._words - cache.sizes.total
        if missing > room:
            with cache.lock(found):
                cache.evict(missing - room)
        cache.insert(path.head(wanted), wanted)


def policy_for_pages(name: str, page_tokens: float) -> EvictionPolicy:
    """The policy of that name for a tree of digested pages of `page_tokens` tokens each.

    Only "cost" looks at positions: they are scaled back to tokens. Raises `ValueError` for an
    unknown name.
    """
    if name != CostAware.name:
        return resolve(name)
    scale = page_tokens / PAGE_WORDS
    return CostAware(lambda start, end: prefill_cost(round(start * scale), round(end * scale)))
