"""`PrefixStats`: how much prefix caching saves on a stream of requests, seen once.

Owns the counters and the report. The parts know nothing of each other: stack distances and curves,
shared prefixes, and the sample in which polluted prefixes are looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..key import Namespace, TokenId
from .curves import DEFAULT_SIZES, ReplayedCurve, curve_of, whole_pages
from .lru_pass import LruPass
from .pollution import find_pollution
from .report import Curve, PrefixReport
from .sample import Request, Sample
from .shared import SharedPrefixes
from .units import TOKENS, Unit

Prompt = Sequence[TokenId] | str | bytes


class PrefixStats:
    """Feed it every request once, in the order of arrival; ask for a report at any time.

    Requests are served one after another: each is cached, prompt and output, before the next
    arrives. As in an engine, only whole pages are found, and a prompt's last unit never is, since
    something has to be computed. A request uses its whole path, what it found and what it brought;
    pages leave from the ends of paths; of a path larger than the cache, the front is kept. Within
    this the LRU curve is what `RadixCache` finds at each size, exactly, so it never falls.

    A real engine differs where requests overlap: those that run at once lock their paths, share
    what the first of them has computed only once it is cached, and for a moment hold duplicates.

    Args:
        page_size: units of a page.
        sizes: cache sizes of the curves, in units, rounded down to whole pages.
        policies: eviction policies. "lru" is exact at every size from one pass of stack distances;
            any other name simulates a `RadixCache` at every size, which takes time and memory in
            proportion to the number of sizes.
        unit: what prompts are counted in: `TOKENS`, `BYTES` of texts, or a `Unit` that knows how to
            decode ids, so that reports show text.
        remember: units of unique content to remember; None remembers everything, which takes about
            half a byte a unit at page_size 16, plus about 1 KiB for each node of the tree. For live
            traffic give a bound: all sizes up to it stay exact.
        sample: units of the most recent requests kept for the search for polluted prefixes; 0 keeps
            none. A report takes some seconds for the default of 16 Mi token ids.

    One thread adds; a report reads the same state, so make it in that thread.
    """

    def __init__(
        self,
        page_size: int = 16,
        sizes: Iterable[int] = DEFAULT_SIZES,
        policies: Iterable[str] = ("lru",),
        *,
        unit: Unit = TOKENS,
        remember: int | None = None,
        sample: int = 2**24,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size {page_size} is less than 1: give the units of a page")
        self._page_size = page_size
        self._unit = unit
        self._sizes = whole_pages(sizes, page_size)
        largest = self._sizes[-1] * page_size if self._sizes else 0
        if remember is not None and remember < max(largest, page_size):
            raise ValueError(
                f"remember {remember} is less than the largest size {largest}, whose hit rate it "
                "would spoil: remember at least as much, or leave the size out"
            )
        self._lru = LruPass(
            unit, page_size, self._sizes, None if remember is None else remember // page_size
        )
        self._policies = tuple(dict.fromkeys(policies))
        self._replayed = {
            name: ReplayedCurve(self._sizes, name, page_size / unit.per_token)
            for name in self._policies
            if name != "lru"
        }
        self._shared = SharedPrefixes()
        self._sample = Sample(sample * unit.width)
        self._requests = self._with_hit = self._output = 0

    def add(self, tokens: Prompt, namespace: Namespace = (), output: Prompt = ()) -> int:
        """Count one request; returns the units of its prompt that an unbounded cache had.

        Requests of different namespaces share nothing. `output` is what was generated: it is cached
        after the prompt, so that a next turn finds it. Raises what `Key` and `Unit.pack` raise,
        before anything is counted.
        """
        unit = self._unit
        request = Request(unit.pack(tokens), namespace, unit.pack(output) if output else b"")
        served = self._lru.add(request)
        for curve in self._replayed.values():
            curve.add(served.path, served.cap)
        found = served.found * self._page_size
        self._shared.add(served.node, request.prompt, found * unit.width, namespace)
        self._sample.add(request)
        self._requests += 1
        self._with_hit += found > 0
        self._output += len(request.output) // unit.width
        return found

    def curve(self, policy: str) -> Curve:
        """Hit rate by size under one of the policies."""
        if policy == "lru":
            return self._lru.curve()
        hits = self._replayed[policy].hits()
        return curve_of(policy, self._sizes, hits, self._page_size, self._lru.prompt)

    def report(self, shared: int = 10) -> PrefixReport:
        """Everything known so far, with the `shared` largest shared prefixes.

        Costs some passes over the sample, and O(nodes) otherwise.
        """
        unit, distances = self._unit, self._lru.distances
        return PrefixReport(
            unit=unit.name,
            units_per_token=unit.per_token,
            page_size=self._page_size,
            requests=self._requests,
            namespaces=distances.namespaces,
            prompt=self._lru.prompt,
            output=self._output,
            reusable=self._lru.found,
            requests_with_hit=self._with_hit,
            unique=distances.pages * self._page_size,
            complete=not distances.forgotten,
            curves=tuple(map(self.curve, self._policies)),
            shared=self._shared.largest(shared, self._page_size, unit),
            pollution=find_pollution(self._sample.requests(), unit, self._page_size, self._sizes),
        )
