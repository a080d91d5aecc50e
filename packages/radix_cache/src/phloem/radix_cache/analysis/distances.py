"""Stack distances: from one pass over the traffic, the hit rate of an LRU cache of every size.

Owns the recency order of all pages seen. Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques
for storage hierarchies" (1970): if a smaller cache always holds a subset of what a larger one
holds, a page is found by exactly the caches larger than its depth in the stack of pages by recency.
For the prefix tree that order is by the last request that used the page, and within one request the
page nearer to the root counts as more recent, because the tree evicts from the leaves. So the pages
that one request used last are a stretch of its path, and depths are found a stretch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from ..key import Key
from ..node import Node
from ..tree import RadixCache
from .units import PAGE_WORDS


class Visit:
    """One request, as long as it is the last one that used some page."""

    __slots__ = ("order", "pages")

    order: int
    pages: int

    def __init__(self, order: int) -> None:
        self.order = order
        self.pages = 0


class Span:
    """The value that the tree keeps for a node: its words, and who used them last."""

    __slots__ = ("visit", "words")

    visit: Visit
    words: int

    def __init__(self, words: int, visit: Visit) -> None:
        self.words = words
        self.visit = visit


class SpanValues:
    """Cuts spans, and joins them to the tuple of the tree's own spans along a path."""

    def length(self, values: Span) -> int:
        """Words covered."""
        return values.words

    def cut(self, values: Span, start: int, stop: int) -> Span:
        """A part of a span, used last by the same request."""
        return Span(stop - start, values.visit)

    def join(self, parts: Sequence[Span]) -> tuple[Span, ...]:
        """The spans themselves."""
        return tuple(parts)


class Counts:
    """Prefix sums under updates (Fenwick, 1994); both are O(log size)."""

    def __init__(self, initial: Sequence[int], size: int) -> None:
        sums = [0, *accumulate(initial), *[sum(initial)] * (size - len(initial))]
        self._tree = [sums[i] - sums[i - (i & -i)] for i in range(size + 1)]
        self.total = sums[-1]

    def __len__(self) -> int:
        return len(self._tree) - 1

    def add(self, at: int, amount: int) -> None:
        """Change the count at index `at`."""
        tree, i = self._tree, at + 1
        while i < len(tree):
            tree[i] += amount
            i += i & -i
        self.total += amount

    def after(self, at: int) -> int:
        """The sum of the counts at indices greater than `at`."""
        tree, i, below = self._tree, at + 1, 0
        while i:
            below += tree[i]
            i &= i - 1
        return self.total - below


class StackDistances:
    """The pages seen so far, in the order in which LRU would keep them.

    `remember` bounds the pages kept: those that LRU would keep at that size. Depths up to it stay
    exact; what lies deeper counts as new. A request costs O(nodes of its path x log pages).
    """

    def __init__(self, remember: int | None = None) -> None:
        self._now = 0
        self._tree = RadixCache(PAGE_WORDS, "lru", lambda: self._now, SpanValues(), ghosts=0)
        self._remember = remember
        self._visits: list[Visit] = []
        self._counts = Counts((), 1024)
        self.forgotten = 0

    @property
    def pages(self) -> int:
        """Pages remembered."""
        return self._tree.sizes.total // PAGE_WORDS

    @property
    def namespaces(self) -> int:
        """Namespaces of which anything is remembered."""
        return len(self._tree.namespaces)

    def add(self, path: Key, cap: int) -> tuple[list[tuple[int, int]], Node]:
        """Let a request use all pages of `path`.

        Returns where the first `cap` pages were found: stretches (depth of the page above the first
        one, pages) in path order; and the node where that prefix ends.
        """
        self._now += 1
        found = self._tree.match(path.head(cap * PAGE_WORDS))
        stretches = list(self._depths(found.values()))
        visit = self._open()
        words = len(path)
        moved: tuple[Span, ...] = self._tree.insert(path, Span(words, visit)).values()
        for span in moved:
            self._count(span.visit, -span.words // PAGE_WORDS)
            span.visit = visit
        # A span made by this insertion was counted under the visit already: once too little.
        self._counts.add(visit.order, words // PAGE_WORDS - visit.pages)
        visit.pages = words // PAGE_WORDS
        self._forget()
        return stretches, found.node

    def _depths(self, spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
        """Pages of one visit lie on one path, so those above a span are above it here, too."""
        visit, depth = None, 0
        for span in spans:
            if span.visit is not visit:
                visit = span.visit
                depth = self._counts.after(visit.order)
            pages = span.words // PAGE_WORDS
            yield depth, pages
            depth += pages

    def _count(self, visit: Visit, pages: int) -> None:
        visit.pages += pages
        self._counts.add(visit.order, pages)

    def _open(self) -> Visit:
        """A new visit, the most recent; drops the numbers of visits that no page remembers."""
        if len(self._visits) == len(self._counts):
            self._visits = [visit for visit in self._visits if visit.pages]
            for order, visit in enumerate(self._visits):
                visit.order = order
            pages = [visit.pages for visit in self._visits]
            self._counts = Counts(pages, 2 * len(pages) + 1024)
        visit = Visit(len(self._visits))
        self._visits.append(visit)
        return visit

    def _forget(self) -> None:
        if self._remember is None or self.pages <= self._remember:
            return
        for span in self._tree.evict((self.pages - self._remember) * PAGE_WORDS):
            self._count(span.visit, -span.words // PAGE_WORDS)
            self.forgotten += span.words // PAGE_WORDS
