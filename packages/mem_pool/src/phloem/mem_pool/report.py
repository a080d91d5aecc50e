"""The audit of a pool: who owns each slot, and whether the rows say the same. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phloem.mem_pool.errors import shortened
from phloem.mem_pool.lease import Lease
from phloem.mem_pool.rows import RowTable
from phloem.mem_pool.slots import SlotAllocator, Slots
from phloem.mem_pool.tree import PrefixTree


@dataclass(frozen=True, slots=True)
class Report:
    """Where the slots are, in tokens; all but `problems` add up to `capacity`."""

    free: int
    evictable: int
    protected: int
    leased: int
    """Owned by open leases: their own pages, partial ones counted whole."""
    copying: int
    """On their way between tiers; 0 for a tree with one tier."""
    capacity: int
    problems: tuple[str, ...] = ()
    """What is wrong, as sentences; empty when all is well."""


def audit(
    tree: PrefixTree, rows: RowTable, slots: SlotAllocator, leases: Sequence[Lease]
) -> Report:
    """Count every slot by its owner; compare with what the allocator, the tree and the rows say."""
    ledger = _Ledger(slots)
    free = ledger.claim("the free list", slots.free_slots())
    held = ledger.claim("the tree", *tree.iter_values())
    problems: list[str] = []
    leased = 0
    for lease in leases:
        own, broken = _own_pages(lease, rows, slots.page_size)
        leased += ledger.claim(f"the lease of row {lease.row}", own)
        problems += broken + _against_tree(lease, rows)
    sizes = tree.sizes
    if not held == sizes.total == sizes.evictable + sizes.protected:
        problems.append(
            f"the tree holds {held} slots but counts {sizes.evictable} evictable + "
            f"{sizes.protected} protected = {sizes.total}"
        )
    if free + sizes.total + leased != slots.capacity:
        problems.append(
            f"{free} free + {sizes.total} in the tree + {leased} leased is not the capacity of "
            f"{slots.capacity}"
        )
    return Report(
        free=free,
        evictable=sizes.evictable,
        protected=sizes.protected,
        leased=leased,
        copying=0,
        capacity=slots.capacity,
        problems=(*ledger.problems, *ledger.lost(), *problems),
    )


class _Ledger:
    """One owner's name for every slot; remembers each slot that a second owner claims."""

    def __init__(self, slots: SlotAllocator) -> None:
        self.problems: list[str] = []
        self._names = ["nobody", "the padding page"]
        self._owner = np.zeros(slots.num_slots, np.int32)
        self._owner[: slots.page_size] = 1

    def claim(self, name: str, *segments: Slots) -> int:
        """Enter an owner of some slots; returns how many were claimed."""
        code = len(self._names)
        self._names.append(name)
        claimed = np.concatenate(segments) if segments else np.empty(0, np.int32)
        inside = (claimed >= 0) & (claimed < len(self._owner))
        if not inside.all():
            self.problems.append(
                f"{name} owns slots {shortened(claimed[~inside])}, which the pool does not have"
            )
        ids, counts = np.unique(claimed[inside], return_counts=True)
        if (counts > 1).any():
            self.problems.append(f"{name} owns slots {shortened(ids[counts > 1])} more than once")
        before = self._owner[ids]
        for other in np.unique(before[before > 0]):
            shared = ids[before == other]
            self.problems.append(
                f"slots {shortened(shared)} are owned by both {self._names[other]} and {name}"
            )
        self._owner[ids] = code
        return len(claimed)

    def lost(self) -> list[str]:
        """A sentence about the slots that nobody claimed, if any."""
        orphans = np.flatnonzero(self._owner == 0)
        return [f"slots {shortened(orphans)} are owned by nobody"] if len(orphans) else []


def _own_pages(lease: Lease, rows: RowTable, page_size: int) -> tuple[Slots, list[str]]:
    """The slots of the lease's own pages, whole, and what is wrong with the lease itself."""
    problems: list[str] = []
    marks = (lease.protected, lease.committed, lease.allocated)
    if not 0 <= marks[0] <= marks[1] <= marks[2] <= rows.max_len or lease.protected % page_size:
        problems.append(
            f"the lease of row {lease.row} has watermarks {marks}: they must rise, fit into the "
            f"row, and the first be a multiple of the page of {page_size}"
        )
    if lease.closed or lease.generation != rows.generation[lease.row]:
        problems.append(
            f"the lease of row {lease.row} is of generation {lease.generation}, "
            f"closed={lease.closed}, but the row is at generation {rows.generation[lease.row]}"
        )
    mine = rows.table[lease.row, lease.protected : lease.allocated]
    offsets = np.arange(page_size, dtype=np.int32)
    pages: Slots = np.add.outer(mine[::page_size], offsets).reshape(-1)
    if not np.array_equal(pages[: len(mine)], mine) or (mine[::page_size] % page_size).any():
        problems.append(f"row {lease.row} does not hold whole pages from {lease.protected} on")
    return pages, problems


def _against_tree(lease: Lease, rows: RowTable) -> list[str]:
    """Whether the row points at the tree's slots wherever the lease says so."""
    prefix = lease.prefix
    theirs = np.empty(0, np.int32) if prefix is None else prefix.values()
    row = rows.table[lease.row, : lease.protected]
    if len(row) != len(theirs):
        return [
            f"the lease of row {lease.row} has {len(row)} protected tokens but holds a prefix of "
            f"{len(theirs)} in the tree"
        ]
    wrong = row[row != theirs]
    if not len(wrong):
        return []
    return [f"row {lease.row} points at slots {shortened(wrong)} where the tree has others"]
