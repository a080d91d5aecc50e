"""Random operation of a `CacheManager` over the radix tree, against what the slots would hold."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from phloem.mem_pool import CacheManager, NoPrefixTree, OwnershipError, PageAllocator, RowTable
from phloem.radix_cache import RadixCache

GARBAGE = -1
MAX_LEN = 72
NAMESPACES = ((), ("a",), ("a", "b"))


def history(namespace, tokens):
    """What a slot holds in the model: for each position, a hash of all that its KV depends on."""
    state, states = hash(namespace), []
    for token in tokens:
        state = hash((state, token))
        states.append(state)
    return np.array(states, np.int64)


class ManagerMachine(RuleBasedStateMachine):
    """A slot's content names its namespace and tokens; a lease must read its own history."""

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        tokens=st.integers(32, 160),
        rows=st.integers(1, 5),
        cached=st.sampled_from([True, True, True, False]),
    )
    def create(self, page_size, tokens, rows, cached):
        self.page = page_size
        tree = RadixCache(page_size=page_size) if cached else NoPrefixTree(page_size)
        slots = PageAllocator(tokens, page_size)
        self.cache = CacheManager(tree, RowTable(rows, MAX_LEN), slots)
        self.content = np.full(slots.num_slots, GARBAGE, np.int64)
        self.tokens = {}  # lease -> the ids of its positions, as far as they are known

    def lease(self, index):
        leases = self.cache.open_leases
        return leases[index % len(leases)]

    def has_lease(self):
        return bool(self.cache.open_leases)

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        shared=st.integers(0, 48),
        suffix=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        keep_from=st.none() | st.integers(0, 60),
    )
    def open(self, namespace, shared, suffix, keep_from):
        tokens = list(range(10, 10 + shared)) + suffix
        found = self.cache.peek(tokens, namespace, keep_from=keep_from)
        free_rows = self.cache.rows.available
        lease = self.cache.open(tokens, namespace, keep_from=keep_from)
        if not free_rows:
            assert lease is None
            return
        assert lease.protected == lease.committed == lease.allocated == found
        assert found % self.page == 0
        assert found <= min(len(tokens) - 1, len(tokens) if keep_from is None else keep_from)
        self.tokens[lease] = tokens

    @precondition(has_lease)
    @rule(index=st.integers(0, 4), n=st.integers(0, 40))
    def extend(self, index, n):
        lease, cache = self.lease(index), self.cache
        if lease.allocated + n > MAX_LEN:
            with pytest.raises(ValueError, match="does not fit into a row"):
                cache.extend(lease, n)
            return
        before = cache.check()
        fits = cache.slots.pages_needed(lease.allocated, n) * self.page <= cache.available
        start = lease.allocated
        assert cache.extend(lease, n) == fits
        if not fits:
            assert cache.check() == before
            return
        # A step in flight, a rejected draft: whatever stands in the new slots is not valid yet.
        self.content[cache.rows.table[lease.row, start : start + n]] = GARBAGE

    @precondition(has_lease)
    @rule(index=st.integers(0, 4), n=st.integers(0, 40), token=st.integers(0, 1))
    def commit(self, index, n, token):
        lease = self.lease(index)
        n = min(n, lease.allocated - lease.committed)
        start, end = lease.committed, lease.committed + n
        tokens = self.tokens[lease]
        tokens.extend([token] * (end - len(tokens)))
        slots = self.cache.rows.table[lease.row, start:end]
        self.content[slots] = history(lease.namespace, tokens[:end])[start:]
        self.cache.commit(lease, n)

    @precondition(has_lease)
    @rule(index=st.integers(0, 4))
    def checkpoint(self, index):
        lease = self.lease(index)
        self.cache.checkpoint(lease, self.tokens[lease])
        if isinstance(self.cache.tree, RadixCache):
            assert lease.protected == lease.committed // self.page * self.page

    @precondition(has_lease)
    @rule(index=st.integers(0, 4))
    def trim(self, index):
        lease = self.lease(index)
        self.cache.trim(lease)
        assert lease.allocated == lease.committed

    @precondition(has_lease)
    @rule(index=st.integers(0, 4), publish=st.booleans())
    def close(self, index, publish):
        lease = self.lease(index)
        tokens = self.tokens.pop(lease)
        self.cache.close(lease, tokens if publish else None)
        with pytest.raises(OwnershipError):
            self.cache.close(lease, None)

    @rule(namespace=st.sampled_from(NAMESPACES))
    def drop(self, namespace):
        if any(lease.namespace == namespace for lease in self.cache.open_leases):
            with pytest.raises(OwnershipError):
                self.cache.drop(namespace)
        else:
            self.cache.drop(namespace)
            assert self.cache.peek(range(10, 60), namespace) == 0

    @invariant()
    def every_slot_has_one_owner(self):
        report = self.cache.check()
        assert report.free + report.evictable == self.cache.available
        holdings = [
            -(-lease.allocated // self.page) * self.page - lease.protected
            for lease in self.cache.open_leases
        ]
        assert report.leased == sum(holdings)

    @invariant()
    def every_lease_reads_its_own_history(self):
        for lease in self.cache.open_leases:
            slots = self.cache.rows.table[lease.row, : lease.committed]
            expected = history(lease.namespace, self.tokens[lease][: lease.committed])
            assert np.array_equal(self.content[slots], expected)

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        for lease in self.cache.open_leases:
            self.cache.close(lease, self.tokens[lease])
        assert self.cache.available == self.cache.capacity
        self.cache.flush()
        assert self.cache.check().free == self.cache.capacity


ManagerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestManagerMachine = ManagerMachine.TestCase
