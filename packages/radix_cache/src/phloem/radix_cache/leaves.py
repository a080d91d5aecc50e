"""The evictable leaves of one tier, sorted by policy rank and kept so incrementally.

Owns the order of eviction; the tier's ledger tells it which copies are unlocked leaves.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from .node import Copy
from .policy import EvictionPolicy, Rank

IndexEntry = tuple[Rank, int, Copy, Any]
"""Rank, age, copy, and the list that the entry stands in."""

_EXPIRIES_KEPT: Final = 64


class LeafIndex:
    """Two lists sorted by `(rank, age)`: leaves that are not retained, which go first, and those
    that are. Every operation is O(log leaves); an expiry is paid for by the insert that retained.

    Two leaves of a tier never have the same age: nodes that share one were split from one node, so
    they lie on one path, and only the lowest of a path is a leaf. Hence the order is total, and
    what follows in an entry is never compared.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._rank = policy.rank
        self._entries = SortedList()
        self._retained = SortedList()
        self._expiries: list[tuple[float, int, Copy]] = []
        self._expiring: set[Copy] = set()
        self._serial = count()

    def add(self, copy: Copy) -> None:
        """Put an unlocked leaf in."""
        node = copy.node
        home = self._entries
        if node.retained_until:
            home = self._retained
            if copy not in self._expiring:
                self._schedule(copy)
        copy.entry = entry = (self._rank(node), node.age, copy, home)
        home.add(entry)

    def discard(self, copy: Copy) -> None:
        """Take a copy out, if it is in."""
        if (entry := copy.entry) is not None:
            entry[3].remove(entry)
            copy.entry = None

    def refresh(self, copy: Copy) -> None:
        """Sort a copy in anew after the fields of its node changed, if it is in."""
        if (entry := copy.entry) is not None:
            node = copy.node
            listed = entry[3] is self._retained
            if entry[0] != self._rank(node) or listed != (node.retained_until > 0):
                entry[3].remove(entry)
                self.add(copy)

    def unretained(self, copy: Copy) -> None:
        """The retention of a copy's node has ended before its time."""
        # It may be retained anew, and for less long.
        self._expiring.discard(copy)
        self.refresh(copy)

    def first(self) -> Copy | None:
        """The leaf that goes first, of those that `expire` left where they are."""
        home = self._entries or self._retained
        if not home:
            return None
        entry: IndexEntry = home[0]
        return entry[2]

    def expire(self, now: float) -> None:
        """Move the leaves whose retention has ended by `now` to where their rank says."""
        while self._expiries and self._expiries[0][0] <= now:
            _, _, copy = heappop(self._expiries)
            self._expiring.discard(copy)
            node = copy.node
            if node.retained_until > now:  # Retained anew since it was scheduled.
                if copy.entry is not None:
                    self._schedule(copy)
                continue
            node.retained_until = 0.0
            if (entry := copy.entry) is not None:
                entry[3].remove(entry)
                self.add(copy)

    def copies(self) -> list[Copy]:
        """The leaves in the order of eviction."""
        return [entry[2] for home in (self._entries, self._retained) for entry in home]

    def __len__(self) -> int:
        return len(self._entries) + len(self._retained)

    def _schedule(self, copy: Copy) -> None:
        self._expiring.add(copy)
        heappush(self._expiries, (copy.node.retained_until, next(self._serial), copy))
        # What left the index stays in the heap until then; a cache that is emptied again and again
        # must not grow by it.
        if len(self._expiries) > 2 * len(self._retained) + _EXPIRIES_KEPT:
            kept = dict.fromkeys([*(entry[2] for entry in self._retained), copy])
            self._expiring = set(kept)
            self._expiries = [(each.node.retained_until, next(self._serial), each) for each in kept]
            heapify(self._expiries)
