"""Hit rate by cache size: the counters behind one curve for each eviction policy.

Owns what a size means (whole pages) and how depths in the stack become hits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from ..key import Key
from .replay import Replay, policy_for_pages
from .report import Curve, Point

DEFAULT_SIZES: Final = tuple(2**power for power in range(12, 25))
"""Tokens: 4 Ki to 16 Mi, in powers of two."""


def whole_pages(sizes: Iterable[int], page_size: int) -> list[int]:
    """The sizes in pages, rounded down, ascending, each once.

    Raises `ValueError` for a size that holds no page.
    """
    ordered = sorted(set(sizes))
    if ordered and ordered[0] < page_size:
        raise ValueError(
            f"a cache of {ordered[0]} holds no page of {page_size}: give sizes of a page or more"
        )
    return sorted({size // page_size for size in ordered})


class LruCurve:
    """Pages found by an LRU cache of each size, from stack distances."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._whole = [0] * (len(sizes) + 1)
        self._part = [0] * len(sizes)

    def add(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Count stretches of (pages above, pages): a cache finds what lies within its size."""
        sizes = self._sizes
        for above, pages in stretches:
            first = bisect_left(sizes, above + pages)
            self._whole[first] += pages
            for i in range(bisect_right(sizes, above, 0, first), first):
                self._part[i] += sizes[i] - above

    def hits(self) -> list[int]:
        """Pages found, by size."""
        return [whole + part for whole, part in zip(accumulate(self._whole), self._part)]


class ReplayedCurve:
    """Pages found by the real cache of each size with one policy, side by side."""

    def __init__(self, sizes: Sequence[int], policy: str, page_tokens: float) -> None:
        self._now = 0
        self._caches = [
            Replay(size, policy_for_pages(policy, page_tokens), lambda: self._now) for size in sizes
        ]

    def add(self, path: Key, cap: int) -> None:
        """Serve one request from all caches."""
        self._now += 1
        for cache in self._caches:
            cache.add(path, cap)

    def hits(self) -> list[int]:
        """Pages found, by size."""
        return [cache.hits for cache in self._caches]


def curve_of(
    policy: str, sizes: Sequence[int], hits: Sequence[int], page_size: int, prompt: int
) -> Curve:
    """The curve, in units, of pages found by caches of `sizes` pages in `prompt` units."""
    return Curve(
        policy,
        tuple(
            Point(
                size * page_size, found * page_size, found * page_size / prompt if prompt else 0.0
            )
            for size, found in zip(sizes, hits)
        ),
    )
