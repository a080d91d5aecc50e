"""`HostTier`: a second place for the KV of the prefix tree, in host memory, and a store below that.

It owns the host slots and the copies in flight. The tree decides what is copied and let go,
a `Transfer` copies, a `Store` keeps; whatever of these fails, what they hold is a miss.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from phloem.mem_pool.health import Health
from phloem.mem_pool.report import HostReport, audit_host
from phloem.mem_pool.slots import SlotAllocator, Slots
from phloem.mem_pool.stored_blocks import StoredBlocks
from phloem.mem_pool.tier_ports import (
    HOST,
    Ticket,
    TieredKey,
    TieredMatch,
    TieredTree,
    Transfer,
    TreeTransfer,
)
from phloem.mem_pool.tiers import Give, Take, TierStats
from phloem.mem_pool.tree import TreeHandle

log = logging.getLogger(__name__)

BUDGET_TOKENS = 4096
"""Tokens that may be on their way to the host at once: they cannot be evicted meanwhile."""
PATIENCE_SECONDS = 10.0


@dataclass(slots=True)
class _Copying:
    """A copy to the host in flight."""

    host_slots: Slots
    ticket: Ticket
    since: float
    backup: TreeTransfer


class HostTier:
    """The host tier of a tree, kept up by copies and, with a store, filled from it.

    ::

        host capacity = free + tree (evictable + protected) + copying          always

        pump     what the tree names is copied to the host; what is copied is given to the tree and,
                 in whole blocks, to the store
        match    as the tree's, and what was found below is brought back to the device

    One thread uses it, the `CacheManager`'s, which is the one to call it.

    Args:
        tree: with a host tier.
        slots: numbers the host's slots; of the tree's page.
        transfer: copies.
        stored: what survives the process, if anything.
        budget: tokens that may be on their way to the host at once.
        clock: seconds.
    """

    def __init__(
        self,
        tree: TieredTree,
        slots: SlotAllocator,
        transfer: Transfer,
        stored: StoredBlocks | None = None,
        *,
        budget: int = BUDGET_TOKENS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if tree.page_size != slots.page_size:
            raise ValueError(
                f"the tree has pages of {tree.page_size} tokens and the host's allocator of "
                f"{slots.page_size}: make both with the same page_size"
            )
        self.tree = tree
        self.slots = slots
        self.stats = TierStats()
        self.health = Health("the host tier")
        self.stored = stored
        self._transfer = transfer
        self._budget = budget
        self._clock = clock
        self._copying: deque[_Copying] = deque()
        self._copying_tokens = 0
        self._evictions = 0

    @property
    def busy(self) -> bool:
        """Whether `pump` has something to wait for."""
        return bool(self._copying)

    def counts(self) -> dict[str, int]:
        """Tokens `backed_up`, `loaded`, `restored` and `given_up`; of the host, tokens used and its
        capacity, and failures; of the store, if there is one, what it counts in blocks.
        """
        counts = {f"{name}_tokens": count for name, count in asdict(self.stats).items()}
        counts |= {
            "host_used_tokens": self.slots.capacity - self.slots.available,
            "host_capacity_tokens": self.slots.capacity,
            "host_failures": self.health.failures + self.health.mistakes,
        }
        return counts if self.stored is None else counts | self.stored.counts()

    def peek(self, key: TieredKey) -> int:
        """Tokens that `match` would bring, the store aside. Changes nothing."""
        return self.tree.peek(key) if self.health.off else self.tree.peek(key, HOST)

    # Down: from the device to the host, from there to the store.

    def pump(self, wait: float = 0.0) -> bool:
        """Take in what was copied, and begin the next copies.

        Args:
            wait: seconds to wait at most for the copy that ends next, for who has nothing to do.

        Returns:
            Whether something was let go of meanwhile.
        """
        self._collect(wait)
        room = self._budget - self._copying_tokens
        if self.health.off or room <= 0:
            return False
        before = self._evictions
        for backup in self.tree.backups(room):
            self._begin(backup)
        return self._evictions != before

    def settle(self) -> None:
        """End what is in flight, whether it is copied or not, so that nothing is pinned by it."""
        self._collect(0.0)
        while self._copying:
            self._give_up(self._copying.popleft())

    def _begin(self, backup: TreeTransfer) -> None:
        host_slots = None if self.health.off else self._take(backup.length)
        if host_slots is None:
            self.tree.cancel(backup)
            return
        try:
            ticket = self._transfer.backup(backup.values(), host_slots)
        except Exception as error:  # whatever copies raise, only the copy may suffer
            self.slots.free(host_slots)
            self.tree.cancel(backup)
            self.health.failed(error)
            return
        self._copying.append(_Copying(host_slots, ticket, self._clock(), backup))
        self._copying_tokens += backup.length

    def _collect(self, wait: float) -> None:
        """Take in the copies that have ended: in the order in which they began, as they do."""
        while self._copying:
            first = self._copying[0]
            try:
                done = self._transfer.done(first.ticket, wait)
            except Exception as error:  # as above
                self._copying.popleft()
                self._copying_tokens -= first.backup.length
                self.slots.free(first.host_slots)
                self.tree.cancel(first.backup)
                self.health.failed(error)
                continue
            if not done:
                if self._clock() - first.since > PATIENCE_SECONDS:
                    self.health.failed(
                        f"a copy of {first.backup.length} tokens has not ended for "
                        f"{PATIENCE_SECONDS:g} s",
                        for_good=True,
                    )
                    while self._copying:
                        self._give_up(self._copying.popleft())
                return
            self._copying.popleft()
            self._finish(first)
            wait = 0.0

    def _finish(self, copied: _Copying) -> None:
        backup, slots = copied.backup, copied.host_slots
        self._copying_tokens -= backup.length
        key, start = backup.key(), backup.start
        declined = self.tree.backed_up(backup, slots)
        self._free(slots[each.start : each.stop] for each in declined)
        self.health.succeeded()
        self.stats.backed_up += len(slots) - sum(map(len, declined))
        if self.stored is not None and not self.stored.health.off and not declined:
            self.stored.save(key, start, self.tree.resident(key, HOST))

    def _give_up(self, copying: _Copying) -> None:
        """Its slots are free at once: who gets them has them filled after this copy, if at all."""
        self._copying_tokens -= copying.backup.length
        self.stats.given_up += copying.backup.length
        self.tree.cancel(copying.backup)
        self.slots.free(copying.host_slots)

    # Up: from the store to the host, from there to the device.

    def match(
        self,
        key: TieredKey,
        take: Take,
        give: Give,
    ) -> TreeHandle:
        """The longest prefix of `key` that is cached anywhere, brought to the device.

        Args:
            key: the tokens.
            take: fresh device slots, evicting if need be; None: there is no room.
            give: takes device slots back.

        Returns:
            What the device has now: less than was found where there is no room or a copy fails.
        """
        if self.stored is not None and not (self.health.off or self.stored.health.off):
            self._restore(self.stored, key)
        match = self.tree.match(key)
        if not match.host_length or self.health.off:
            return match
        return self._load(match, take, give)

    def _load(
        self,
        match: TieredMatch,
        take: Take,
        give: Give,
    ) -> TreeHandle:
        load = self.tree.load(match)  # from here on, `take` cannot evict what was found
        slots = take(load.length)
        if slots is None:
            self.tree.cancel(load)
            return match
        try:
            self._transfer.load(load.values(), slots)
        except Exception as error:  # as above
            give(slots)
            self.tree.cancel(load)
            self.health.failed(error)
            return match
        self.health.succeeded()
        brought = self.tree.loaded(load, slots)
        for declined in brought.declined:
            give(slots[declined.start : declined.stop])
        self.stats.loaded += len(slots)
        return brought

    def _restore(self, stored: StoredBlocks, key: TieredKey) -> None:
        """Bring into the host tier what the store has beyond what the tree holds, if it may be a
        block or more.
        """
        known = self.tree.peek(key, HOST)
        if len(key) - known < min(stored.block, len(key)):
            return
        held = len(self.tree.resident(key, HOST))
        # The prefix that this goes on from stays: `held` tokens of what could be evicted.
        room = max(self.slots.available + self.tree.sizes.host.evictable, held)
        end = min(stored.find(key, held), room // self.slots.page_size * self.slots.page_size)
        fresh = self._take(end - held) if end > known else None
        if fresh is None:
            return
        # A tree that chooses the form of its values by the first one may give an empty tuple here.
        resident = np.asarray(self.tree.resident(key, HOST), np.int32)
        slots = np.concatenate((resident, fresh))
        # If it was not used for longest of all, making room has cost a part of it.
        reached = stored.read(key, held, slots) if len(slots) == end else held
        self.slots.free(fresh[reached - held :])
        if reached > held:
            added = self.tree.insert(key.head(reached), slots[:reached], tier=HOST)
            self._free(slots[max(each.start, held) : each.stop] for each in added.declined)
            self.stats.restored += reached - held

    # The slots of the host.

    def forget(self, forget: Callable[[], Iterable[Slots]]) -> Iterable[Slots]:
        """Have the tree let go of something in both tiers, and free the slots of the host.

        Args:
            forget: a method of the tree that lets go.

        Returns:
            The slots of the device.
        """
        self.settle()
        gone: Any = forget()
        self._free(gone.host)
        return cast("Iterable[Slots]", gone)

    def check(self) -> HostReport:
        """Who has the slots of the host."""
        return audit_host(self.tree, self.slots, [each.host_slots for each in self._copying])

    def quarantine(self, slots: Slots) -> None:
        """Take slots of the host out of use."""
        self.slots.quarantine(slots)

    def keep(self) -> None:
        """Have written what was given to the store, which takes no more. From any thread."""
        if self.stored is not None:
            self.stored.close()

    def close(self) -> None:
        """Copy what is due, keep it in the store, and end the copying and the store."""
        deadline = self._clock() + PATIENCE_SECONDS
        self.pump()
        while self._copying and self._clock() < deadline:
            self.pump(wait=0.1)
        self.settle()
        self._transfer.close()
        self.keep()

    def _take(self, n: int) -> Slots | None:
        """Fresh host slots, evicting if need be."""
        missing = n - self.slots.available
        if missing > self.tree.sizes.host.evictable:
            return None
        if missing > 0:
            self._evictions += 1
            self._free(self.tree.evict(missing, HOST))
        return self.slots.alloc_extend(-1, 0, n)

    def _free(self, segments: Iterable[Slots]) -> None:
        with self.slots.free_group():
            for segment in segments:
                self.slots.free(np.asarray(segment, np.int32))
