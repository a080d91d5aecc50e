"""`CacheManager`: the only one that moves slots between free, the prefix tree and leases.

It speaks of leases and tokens, never of requests, and it holds no tensor: any engine that keeps its
KV in slots can use it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from phloem.mem_pool.errors import IntegrityError
from phloem.mem_pool.expiry import Expiry
from phloem.mem_pool.lease import (
    Brought,
    Lease,
    Retention,
    Rows,
    Watermarks,
    check_all_open,
    check_none_open,
    check_open,
    counted,
)
from phloem.mem_pool.report import Report, audit
from phloem.mem_pool.room import Room
from phloem.mem_pool.rows import RowTable
from phloem.mem_pool.slots import SlotAllocator, Slots
from phloem.mem_pool.tiers import DeviceOnly, Tiers
from phloem.mem_pool.together import Together
from phloem.mem_pool.tree import Namespace, NoPrefixTree, PrefixTree, TokenIds, TreeHandle, TreeKey


class CacheManager:
    """Leases of KV slots over a prefix tree, a row table and a slot allocator.

    ::

        capacity = free + tree (evictable + protected) + leased          always

        open        lock what the tree has of the tokens; its slots stand in a fresh row
        extend      free (or evicted) slots -> reserved          extend_rows: of many leases at once
        commit      reserved -> valid                            commit_rows: likewise
        together    both, of the same leases in many steps
        checkpoint  valid -> the tree, locked; slots that the tree had already -> free
        trim        reserved -> free
        close       everything that is ours -> free (or the tree); unlock; the row -> free
        pump        copies between tiers; the tree -> free, where nothing was used for long

    One thread uses it at a time.

    Args:
        tree: shares prefixes.
        rows: where slots stand.
        slots: which are free.
        tiers: what holds KV below the device, over the same tree; None: nothing does.
        idle_ttl: seconds after which what was not used is forgotten; None: never.
        clock: seconds, the tree's.

    Attributes:
        marks: the watermarks of all leases, by row; to read.
        published: differs once more has been cached: until then `peek` says no more than it did.
    """

    def __init__(
        self,
        tree: PrefixTree,
        rows: RowTable,
        slots: SlotAllocator,
        *,
        tiers: Tiers | None = None,
        idle_ttl: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if tree.page_size != slots.page_size:
            raise ValueError(
                f"the tree has pages of {tree.page_size} tokens and the allocator of "
                f"{slots.page_size}: make both with the same page_size"
            )
        self.tree = tree
        self.rows = rows
        self.slots = slots
        self.tiers: Tiers = DeviceOnly(tree) if tiers is None else tiers
        self.marks = Watermarks(rows.max_rows)
        self.published = 0
        self._room = Room(tree, slots, self.tiers, self.marks.give_back)
        self._changes = 0
        self._page_size = slots.page_size
        self._expiry = None if idle_ttl is None else Expiry(idle_ttl, clock)
        self._open: dict[int, Lease] = {}
        self._is_open = np.zeros(rows.max_rows, np.bool_)
        # The same memory as one run: numpy reaches into it faster than into rows of it.
        self._table = rows.table.reshape(-1)

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self._page_size

    @property
    def capacity(self) -> int:
        """Tokens that the pool holds."""
        return self.slots.capacity

    @property
    def shares_prefixes(self) -> bool:
        """Whether anything is cached at all."""
        return not isinstance(self.tree, NoPrefixTree)

    @property
    def free_tokens(self) -> int:
        """Tokens in free pages."""
        return self.slots.available + self.marks.ahead

    @property
    def available(self) -> int:
        """Tokens that could be had now: free ones, and those that the tree would let go."""
        return self.free_tokens + self.tree.sizes.evictable

    @property
    def version(self) -> int:
        """Differs once what is cached has changed, so that who keeps what `peek` said knows when to
        ask again.
        """
        return self._changes + self._room.evictions

    def counts(self) -> dict[str, int]:
        """What was done since the start: tokens evicted to make room, and what the tiers below
        count, see `HostTier.counts`.
        """
        return {"evicted_tokens": self._room.evicted_tokens} | self.tiers.counts()

    @property
    def open_leases(self) -> tuple[Lease, ...]:
        """The leases that are open, ordered by row."""
        return tuple(self._open[row] for row in sorted(self._open))

    def peek(
        self, tokens: TokenIds, namespace: Namespace = (), *, keep_from: int | None = None
    ) -> int:
        """Tokens that `open` would find cached. Changes nothing, refreshes nothing."""
        return self.tiers.peek(self._reusable(tokens, namespace, keep_from))

    def open(
        self,
        tokens: TokenIds,
        namespace: Namespace = (),
        *,
        keep_from: int | None = None,
        priority: int = 0,
        retention: Retention | None = None,
    ) -> Lease | None:
        """Open a lease on a sequence and lock what the tree holds of it, having brought to the
        device what only the tiers below have.

        At most `min(len(tokens) - 1, keep_from)` tokens are reused, in whole pages: one token is
        left to compute, because its logits are wanted.

        Args:
            tokens: the token ids known so far.
            namespace: only sequences of an equal namespace share slots.
            keep_from: first position that must be computed anew (prompt logprobs), if any.
            priority: of what is published of it, for trees that keep the more important for longer.
            retention: of its beginning, whenever it is published.

        Returns:
            The lease, its three watermarks all at the number of tokens reused; None when no row is
            free.

        Raises:
            ValueError: the tokens do not fit into a row.
        """
        self.rows.check_length(len(tokens))
        if not self.rows.available:
            return None
        below = self.tiers.stats
        loaded, restored = below.loaded, below.restored
        handle = self._match(self._reusable(tokens, namespace, keep_from))
        length = handle.length
        lock = self.tree.lock(handle) if length else None
        row = self.rows.alloc()
        assert row is not None, "a row was free above"
        generation = int(self.rows.generation[row])
        lease = Lease(row, generation, namespace, self.marks.of(row), self.marks, lock)
        lease.priority = priority
        if below.loaded != loaded:
            brought = min(below.loaded - loaded, length)
            from_store = min(below.restored - restored, brought)
            lease.brought = Brought(brought - from_store, from_store)
        if retention is not None:
            lease.retained = len(tokens) if retention.tokens is None else retention.tokens
            lease.retain_for = retention.seconds
        lease.marks[:] = length
        if length:
            lease.prefix = handle
            self.rows.table[row, :length] = handle.values()
        self._open[row] = lease
        self._is_open[row] = True
        return lease

    def extend(self, lease: Lease, n: int) -> bool:
        """Reserve `n` more slots; they stand in the row at `[allocated, allocated + n)`.

        Evicts from the tree what is missing. All or nothing: False means that free and evictable
        slots together do not suffice, and that nothing was evicted.

        Raises:
            ValueError: the row is too short, or n is negative.
            OwnershipError: the lease is closed.
        """
        check_open(lease, self._open)
        self.marks.settle()
        start = lease.allocated
        self.rows.check_length(start + n)
        row = self.rows.table[lease.row]
        if not self._room.make(self.slots.pages_needed(start, n)):
            return False
        fresh = self.slots.alloc_extend(int(row[start - 1]) if start else -1, start, n)
        assert fresh is not None, "there was room above"
        row[start : start + n] = fresh
        lease.allocated = start + n
        return True

    def extend_rows(self, rows: Rows, n: int = 1) -> bool:
        """`extend` for many leases at once, each by `n` slots: for all of them, or for none.

        Evicts at most once. No Python runs for a single lease.

        Args:
            rows: intp [k], the rows of open leases, none of them twice.
            n: slots to reserve for each, at least 1.

        Raises:
            ValueError: a row is too short.
            OwnershipError: no lease is open on one of the rows.
        """
        if not len(rows):
            return True
        check_all_open(rows, self._is_open)
        self.marks.settle()
        starts = self.marks.allocated[rows]
        self.rows.check_length(max(starts.tolist()) + n)
        if not self._room.make(self.slots.pages_needed_by_all(starts, n)):
            return False
        first = rows * self.rows.max_len + starts
        # Where a sequence is empty this reads another one's slot; `slots` does not look at that,
        # nor at any in pages of one.
        last = self._table[first - 1] if self.page_size > 1 else starts
        fresh = self.slots.alloc_extend_all(last, starts, n)
        assert fresh is not None, "there was room above"
        if n == 1:
            self._table[first] = fresh[:, 0]
        else:
            self._table[first[:, None] + np.arange(n)] = fresh
        self.marks.allocated[rows] = starts + counted(n)
        return True

    def commit(self, lease: Lease, n: int) -> None:
        """The next `n` reserved slots hold valid KV from now on.

        Raises:
            ValueError: fewer are reserved, or n is negative.
            OwnershipError: the lease is closed.
        """
        check_open(lease, self._open)
        self.marks.settle()
        if not 0 <= n <= lease.allocated - lease.committed:
            raise ValueError(
                f"cannot commit {n} tokens of row {lease.row}: it has "
                f"{lease.allocated - lease.committed} reserved; extend the lease first"
            )
        lease.committed += n

    def commit_rows(self, rows: Rows, n: int = 1) -> None:
        """`commit` for many leases at once, `n` slots of each.

        Args:
            rows: intp [k], the rows of open leases, none of them twice.
            n: slots to commit of each.

        Raises:
            ValueError: one has fewer reserved; nothing is committed then.
            OwnershipError: no lease is open on one of the rows.
        """
        if not len(rows):
            return
        check_all_open(rows, self._is_open)
        self.marks.settle()
        committed = self.marks.committed[rows]
        reserved = (self.marks.allocated[rows] - committed).tolist()
        if (least := min(reserved)) < n:
            self.commit(self._open[int(rows[reserved.index(least)])], n)  # says what is wrong
        self.marks.committed[rows] = committed + counted(n)

    def together(self, rows: Rows) -> Together:
        """`extend_rows` and `commit_rows` of the same leases by one slot each, in one step after
        the other: as long as nothing else happens to any lease, most steps take no numpy at all.

        Args:
            rows: intp [k], at least one, the rows of leases, none of them twice; not to be changed.
        """
        return Together(rows, self.rows, self.slots, self._room, self.marks, self._is_open)

    def checkpoint(self, lease: Lease, tokens: TokenIds) -> None:
        """Publish the committed tokens to the tree, in whole pages, so that others can share them.

        Where the tree has the tokens already, it keeps its slots: ours are freed, and the row
        points at the tree's from then on. The lease's lock moves to the end of what was published.

        Args:
            lease: an open lease.
            tokens: the token ids at the row's positions, at least the committed ones.

        Raises:
            ValueError: fewer tokens than are committed.
            OwnershipError: the lease is closed.
        """
        check_open(lease, self._open)
        if len(tokens) < lease.committed:
            raise ValueError(
                f"row {lease.row} has {lease.committed} committed tokens but {len(tokens)} ids "
                "were given: give the ids of all committed tokens"
            )
        end = self._page_floor(lease.committed)
        row = self.rows.table[lease.row]
        ours = row[:end]
        before = self.tree.sizes.total
        if lease.retain_for is not None:
            self._retain(lease, tokens, ours)
        if end <= lease.protected:
            return
        key = self.tree.key(tokens[:end], lease.namespace)
        result = self.tree.insert(key, ours, lease.priority)
        if self.tree.sizes.total != before:
            self._changes += 1
            self.published += 1
        length = result.length
        if length <= lease.protected:
            return  # the tree took nothing
        # The new lock first: the old one's end must not be evictable for a moment.
        held, lease.lock, lease.prefix = lease.lock, self.tree.lock(result), result
        if held is not None:
            self.tree.unlock(held)
        theirs = result.values()
        with self.slots.free_group():
            for declined in result.declined:
                own = slice(max(declined.start, lease.protected), min(declined.stop, length))
                if own.start < own.stop:
                    self.slots.free(ours[own][ours[own] != theirs[own]])
        row[:length] = theirs
        lease.protected = length

    def trim(self, lease: Lease) -> None:
        """Give back the reserved slots that were not committed (rejected drafts).

        Raises:
            OwnershipError: the lease is closed.
        """
        check_open(lease, self._open)
        self.marks.settle()
        # The page of the last committed token stays ours whole, and is filled up next.
        self.slots.free(self._row_slots(lease, self._page_ceil(lease.committed)))
        lease.allocated = lease.committed

    def close(self, lease: Lease, tokens: TokenIds | None) -> None:
        """End a lease: publish its committed tokens if `tokens` is given, free the rest of its own.

        Raises:
            ValueError: fewer tokens than are committed; the lease stays open.
            OwnershipError: the lease is closed already.
        """
        check_open(lease, self._open)
        self.marks.settle()
        if tokens is not None:
            self.checkpoint(lease, tokens)
        self.slots.free(self._row_slots(lease, lease.protected))
        if lease.lock is not None:
            self.tree.unlock(lease.lock)
        self.rows.free(lease.row)
        del self._open[lease.row]
        self._is_open[lease.row] = False
        lease.marks = lease.marks.copy()
        lease.lock = lease.prefix = None
        lease.closed = True

    def drop(self, namespace: Namespace) -> int:
        """Forget what is cached in a namespace; returns the tokens freed.

        Raises:
            OwnershipError: a lease in that namespace is open.
        """
        check_none_open(x for x in self.open_leases if x.namespace == namespace)
        return self._room.free(self.tiers.forget(lambda: self.tree.drop(namespace)))

    def flush(self) -> int:
        """Forget everything that is cached in memory; returns the tokens freed. What a store below
        has on disk stays there.

        Raises:
            OwnershipError: a lease is open.
        """
        check_none_open(self.open_leases)
        return self._room.free(self.tiers.forget(self.tree.reset))

    def pump(self, wait: float = 0.0) -> None:
        """Go on with the copies between tiers, and forget what was not used for long. Call it after
        each step.

        Args:
            wait: seconds to wait for a copy, at most, for who has nothing else to do.
        """
        if self.tiers.pump(wait):
            self._changes += 1
        if self._expiry is not None and (before := self._expiry.due()) is not None:
            self._room.free(self.tiers.forget(lambda: self.tree.evict_idle(before)))

    def check(self, strict: bool = True) -> Report:
        """Verify that every slot of every tier has exactly one owner and stands in the right rows.

        With `strict` unset, what is wrong is put up with: slots in several hands, or in none, are
        taken out of use for good, and what is cached and not in use is forgotten, since some of it
        may be somebody else's. O(capacity).

        Raises:
            IntegrityError: something is wrong and `strict` is set; the message names slots and
                owners.
        """
        self.marks.settle()
        report = audit(self.tree, self.rows, self.slots, self.open_leases, self.tiers.check())
        if strict and report.problems:
            raise IntegrityError("; ".join(report.problems))
        if report.suspects or (report.host and report.host.suspects):
            self.slots.quarantine(np.array(report.suspects, np.int32))
            if report.host:
                self.tiers.quarantine(np.array(report.host.suspects, np.int32))
            self._room.free(self.tiers.forget(lambda: self.tree.evict_idle(math.inf)))
        return report

    def _retain(self, lease: Lease, tokens: TokenIds, ours: Slots) -> None:
        """Publish what is to be retained before the rest, so that the tree tells them apart.

        What it takes of `ours` it has by the time the rest is published, which settles the row.
        """
        end = min(lease.retained, len(ours))
        key = self.tree.key(tokens[:end], lease.namespace)
        self.tree.insert(key, ours[:end], lease.priority, lease.retain_for)

    def _reusable(self, tokens: TokenIds, namespace: Namespace, keep_from: int | None) -> TreeKey:
        cap = max(len(tokens) - 1, 0)
        if keep_from is not None:
            cap = min(cap, max(keep_from, 0))
        return self.tree.key(tokens[: self._page_floor(cap)], namespace)

    def _match(self, key: TreeKey) -> TreeHandle:
        """What the device holds of a key, once the tiers below have given what they have."""
        before = self.tree.sizes.total
        handle = self.tiers.match(key, self._room.take, self.slots.free)
        if self.tree.sizes.total != before:
            self._changes += 1
            self.published += 1
        return handle

    def _row_slots(self, lease: Lease, start: int) -> Slots:
        return self.rows.table[lease.row, start : lease.allocated]

    def _page_floor(self, n: int) -> int:
        return n & -self._page_size

    def _page_ceil(self, n: int) -> int:
        return -(-n & -self._page_size)
