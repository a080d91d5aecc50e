"""Room on the device: slots that are free, or are made free by letting the tree go of some."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from phloem.mem_pool.errors import IntegrityError
from phloem.mem_pool.slots import SlotAllocator, Slots
from phloem.mem_pool.tiers import Tiers
from phloem.mem_pool.tree import PrefixTree


class Room:
    """Makes room by eviction, all or nothing.

    `give_back` frees what was taken and is nobody's yet, and says whether there was any: that goes
    before anything is evicted.

    Attributes:
        evictions: how often the tree has let go of something.
        evicted_tokens: tokens that it let go of because others needed the room.
    """

    def __init__(
        self,
        tree: PrefixTree,
        slots: SlotAllocator,
        tiers: Tiers,
        give_back: Callable[[], bool],
    ) -> None:
        self.evictions = 0
        self.evicted_tokens = 0
        self._tree = tree
        self._slots = slots
        self._tiers = tiers
        self._give_back = give_back
        self._page_size = slots.page_size

    def make(self, pages: int) -> bool:
        """Have so many pages free, evicting what is missing.

        Returns:
            False: not enough can be evicted, and nothing was.
        """
        while (missing := pages * self._page_size - self._slots.available) > 0:
            if self._give_back():
                continue
            if missing > self._tree.sizes.evictable:
                self._tiers.settle()  # what is being copied cannot be evicted
            evictable = self._tree.sizes.evictable
            if missing > evictable:
                return False
            # Once, but that what is in quarantine is not free when it is evicted.
            self.evicted_tokens += self.free(self._tree.evict(missing))
            if self._tree.sizes.evictable == evictable:
                raise IntegrityError(
                    f"the tree counts {evictable} tokens as evictable but lets go of none"
                )
        return True

    def take(self, n: int) -> Slots | None:
        """int32 [n], fresh slots in whole pages; None if there is no room."""
        if not self.make(self._slots.pages_needed(0, n)):
            return None
        return self._slots.alloc_extend(-1, 0, n)

    def free(self, segments: Iterable[Slots]) -> int:
        """Free what the tree let go of; returns how many slots became free."""
        self.evictions += 1
        before = self._slots.available
        with self._slots.free_group():
            for segment in segments:
                self._slots.free(np.asarray(segment, np.int32))
        return self._slots.available - before
