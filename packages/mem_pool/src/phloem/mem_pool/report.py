"""The audit of a pool: who owns each slot, and whether the rows say the same. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phloem.mem_pool.errors import shortened
from phloem.mem_pool.lease import Lease
from phloem.mem_pool.ownership import Ownership
from phloem.mem_pool.rows import RowTable
from phloem.mem_pool.slots import SlotAllocator, Slots
from phloem.mem_pool.tier_ports import HOST, TieredTree
from phloem.mem_pool.tree import PrefixTree


@dataclass(frozen=True, slots=True)
class HostReport:
    """Where the slots of the host are, in tokens; they add up to `capacity`."""

    free: int
    evictable: int
    protected: int
    copying: int
    """Being filled by copies in flight."""
    capacity: int
    quarantined: int = 0
    problems: tuple[str, ...] = ()
    suspects: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Where the slots are, in tokens; free, evictable, protected, leased and copying add up to
    `capacity`.
    """

    free: int
    evictable: int
    protected: int
    leased: int
    """Owned by open leases: their own pages, partial ones counted whole."""
    copying: int
    """On their way between tiers and nobody's else: none, copies pin what the tree has."""
    capacity: int
    quarantined: int = 0
    """Taken out of use because they were found in several hands, or in none; who holds one still
    counts it too.
    """
    problems: tuple[str, ...] = ()
    """What is wrong in any tier, as sentences; empty when all is well."""
    suspects: tuple[int, ...] = ()
    """The slots that it is about, as far as it is about slots."""
    host: HostReport | None = None


def audit(
    tree: PrefixTree,
    rows: RowTable,
    slots: SlotAllocator,
    leases: Sequence[Lease],
    host: HostReport | None = None,
) -> Report:
    """Count every slot by its owner; compare with what the allocator, the tree and the rows say."""
    owners = Ownership(slots)
    free = owners.claim("the free list", slots.free_slots())
    held = owners.claim("the tree", *tree.iter_values(), detail=tree.holder)
    problems: list[str] = []
    leased = 0
    for lease in leases:
        own, broken = _own_pages(lease, rows, slots.page_size)
        leased += owners.claim(f"the lease of row {lease.row}", own)
        problems += broken + _against_tree(lease, rows)
    owners.find_lost()
    sizes = tree.sizes
    if not held == sizes.total == sizes.evictable + sizes.protected:
        problems.append(
            f"the tree holds {held} slots but counts {sizes.evictable} evictable + "
            f"{sizes.protected} protected = {sizes.total}"
        )
    quarantined = len(slots.quarantined_slots())
    if not quarantined and free + sizes.total + leased != slots.capacity:
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
        quarantined=quarantined,
        problems=(*owners.problems, *problems, *(host.problems if host else ())),
        suspects=tuple(owners.suspected().tolist()),
        host=host,
    )


def audit_host(tree: TieredTree, slots: SlotAllocator, copying: Sequence[Slots]) -> HostReport:
    """Count every slot of the host by its owner."""
    owners = Ownership(slots)
    free = owners.claim("the host's free list", slots.free_slots())
    held = owners.claim(
        "the tree's host tier",
        *tree.iter_values(HOST),
        detail=lambda slot: tree.holder(slot, HOST),
    )
    on_the_way = owners.claim("a copy to the host in flight", *copying)
    owners.find_lost()
    sizes = tree.sizes.host
    problems = [*owners.problems]
    if held != sizes.total:
        problems.append(f"the host tier holds {held} slots but counts {sizes.total}")
    quarantined = len(slots.quarantined_slots())
    if not quarantined and free + held + on_the_way != slots.capacity:
        problems.append(
            f"on the host {free} free + {held} in the tree + {on_the_way} being copied is not the "
            f"capacity of {slots.capacity}"
        )
    return HostReport(
        free=free,
        evictable=sizes.evictable,
        protected=sizes.protected,
        copying=on_the_way,
        capacity=slots.capacity,
        quarantined=quarantined,
        problems=tuple(problems),
        suspects=tuple(owners.suspected().tolist()),
    )


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
