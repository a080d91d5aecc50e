"""One pass of requests through an LRU cache of every size at once.

Owns how a request becomes a path of pages and which of them can be found; used for the traffic
itself, and for a sample of it with parts of the prompts moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..key import Key
from ..node import Node
from .curves import LruCurve, curve_of
from .distances import StackDistances
from .report import Curve
from .sample import Request
from .units import Unit, digest


@dataclass(frozen=True, slots=True)
class Served:
    """A request's digested pages, how many of them can be found (`cap`), and how many were.

    The pages found end at `node`.
    """

    path: Key
    cap: int
    found: int
    node: Node


class LruPass:
    """Counts what LRU caches of `sizes` pages, and one without bound, find of each prompt."""

    def __init__(
        self, unit: Unit, page_size: int, sizes: Sequence[int], remember: int | None = None
    ) -> None:
        self.distances = StackDistances(remember)
        self.prompt = 0
        self.found = 0
        self._unit = unit
        self._page_size = page_size
        self._sizes = sizes
        self._hits = LruCurve(sizes)

    def add(self, request: Request) -> Served:
        """Serve one request. A prompt's last unit is never found: something has to be computed."""
        width = self._unit.width
        page_bytes = self._page_size * width
        path = digest(request.prompt + request.output, page_bytes, request.namespace)
        cap = max(0, len(request.prompt) - width) // page_bytes
        stretches, node = self.distances.add(path, cap)
        self._hits.add(stretches)
        found = sum(pages for _, pages in stretches)
        self.prompt += len(request.prompt) // width
        self.found += found * self._page_size
        return Served(path, cap, found, node)

    @property
    def rate(self) -> float:
        """The share of prompts that a cache without bound finds."""
        return self.found / self.prompt if self.prompt else 0.0

    def curve(self) -> Curve:
        """Hit rate by size."""
        return curve_of("lru", self._sizes, self._hits.hits(), self._page_size, self.prompt)
