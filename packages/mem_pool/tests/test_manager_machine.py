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

from phloem.mem_pool import (
    CacheManager,
    NoPrefixTree,
    OwnershipError,
    PageAllocator,
    Retention,
    RowTable,
)
from phloem.radix_cache import RadixCache

GARBAGE = -1
MAX_LEN = 72
NAMESPACES = ((), ("a",))
PROMPTS = st.builds(
    lambda shared, suffix: [*range(10, 10 + shared), *suffix],
    st.sampled_from([0, 3, 16, 17, 33, 48]),
    st.lists(st.integers(0, 1), min_size=1, max_size=6),
)
KEEP_FROM = st.none() | st.integers(0, 50)
RETENTION = st.none() | st.builds(
    Retention, st.sampled_from([0.01, 3600.0]), st.none() | st.integers(0, 60)
)


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
        tokens=st.integers(48, 144),
        rows=st.integers(2, 5),
        cached=st.sampled_from([True, True, True, False]),
    )
    def create(self, page_size, tokens, rows, cached):
        self.page = page_size
        bound = {"most_retained": tokens // 2, "most_retained_each": tokens // 4}
        tree = RadixCache(page_size=page_size, **bound) if cached else NoPrefixTree(page_size)
        slots = PageAllocator(tokens, page_size)
        self.cache = CacheManager(tree, RowTable(rows, MAX_LEN), slots)
        self.content = np.full(slots.num_slots, GARBAGE, np.int64)
        self.since_drop = 0
        self.tokens = {}  # lease -> the ids of its positions, as far as they are known

    def lease(self, index):
        leases = self.cache.open_leases
        return leases[index % len(leases)]

    def has_lease(self):
        return bool(self.cache.open_leases)

    @rule(
        prompt=PROMPTS,
        namespace=st.sampled_from(NAMESPACES),
        keep_from=KEEP_FROM,
        retention=RETENTION,
    )
    def open(self, prompt, namespace, keep_from, retention):
        self.opened(prompt, namespace, keep_from, retention)

    def opened(self, prompt, namespace, keep_from=None, retention=None):
        found = self.cache.peek(prompt, namespace, keep_from=keep_from)
        free_rows = self.cache.rows.available
        lease = self.cache.open(prompt, namespace, keep_from=keep_from, retention=retention)
        if not free_rows:
            assert lease is None
            return None
        assert lease.protected == lease.committed == lease.allocated == found
        assert found % self.page == 0
        assert found <= min(len(prompt) - 1, len(prompt) if keep_from is None else keep_from)
        self.tokens[lease] = list(prompt)
        return lease

    @rule(
        prompts=st.lists(PROMPTS, min_size=2, max_size=3),
        twins=st.booleans(),
        namespace=st.sampled_from(NAMESPACES),
        order=st.randoms(use_true_random=False),
    )
    def prefill_a_batch(self, prompts, twins, namespace, order):
        """Open all, compute all, then publish all: nobody sees what the others compute."""
        batch = [self.opened(prompts[0] if twins else p, namespace) for p in prompts]
        batch = [lease for lease in batch if lease is not None]
        for lease in batch:
            self.compute(lease)
        order.shuffle(batch)
        for lease in batch:
            self.cache.checkpoint(lease, self.tokens[lease])
            self.cache.check()

    @rule(prompt=PROMPTS, namespace=st.sampled_from(NAMESPACES))
    def serve(self, prompt, namespace):
        """A request from start to end; what it leaves in the tree makes memory short for others."""
        lease = self.opened(prompt, namespace)
        if lease is not None:
            self.compute(lease)
            self.cache.close(lease, self.tokens.pop(lease))

    def compute(self, lease):
        n = len(self.tokens[lease]) - lease.allocated
        if self.cache.extend(lease, n):
            self.write(lease, n)

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
    @rule(chosen=st.lists(st.integers(0, 4), min_size=1, unique=True), n=st.integers(1, 20))
    def extend_many(self, chosen, n):
        """All or none, as if each was extended alone."""
        cache = self.cache
        leases = [cache.open_leases[i] for i in chosen if i < len(cache.open_leases)]
        leases = [lease for lease in leases if lease.allocated + n <= MAX_LEN]
        before, starts = cache.check(), [lease.allocated for lease in leases]
        pages = sum(cache.slots.pages_needed(start, n) for start in starts)
        fits = pages * self.page <= cache.available
        assert cache.extend_rows(np.array([lease.row for lease in leases], np.intp), n) == fits
        assert [lease.allocated for lease in leases] == [start + n * fits for start in starts]
        if not fits:
            assert cache.check() == before
            return
        for lease, start in zip(leases, starts, strict=True):
            self.content[cache.rows.table[lease.row, start : start + n]] = GARBAGE

    @precondition(has_lease)
    @rule(token=st.integers(0, 1))
    def decode_all(self, token):
        """One more token of everybody who has room reserved, as a decode step commits them."""
        leases = [each for each in self.cache.open_leases if each.committed < each.allocated]
        for lease in leases:
            position, tokens = lease.committed, self.tokens[lease]
            tokens.extend([token] * (position + 1 - len(tokens)))
            slot = self.cache.rows.table[lease.row, position]
            self.content[slot] = history(lease.namespace, tokens[: position + 1])[-1]
        self.cache.commit_rows(np.array([lease.row for lease in leases], np.intp))

    @precondition(has_lease)
    @rule(index=st.integers(0, 4), n=st.integers(0, 40), token=st.integers(0, 1))
    def commit(self, index, n, token):
        lease = self.lease(index)
        n = min(n, lease.allocated - lease.committed)
        tokens = self.tokens[lease]
        tokens.extend([token] * (lease.committed + n - len(tokens)))
        self.write(lease, n)

    def write(self, lease, n):
        """The next n reserved slots get their KV."""
        start, end = lease.committed, lease.committed + n
        slots = self.cache.rows.table[lease.row, start:end]
        self.content[slots] = history(lease.namespace, self.tokens[lease][:end])[start:]
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

    @precondition(lambda self: self.since_drop > 12)  # or nothing would stay cached for long
    @rule(namespace=st.sampled_from(NAMESPACES))
    def drop(self, namespace):
        self.since_drop = 0
        if any(lease.namespace == namespace for lease in self.cache.open_leases):
            with pytest.raises(OwnershipError):
                self.cache.drop(namespace)
        else:
            self.cache.drop(namespace)
            assert self.cache.peek(range(10, 60), namespace) == 0

    @invariant()
    def every_slot_has_one_owner(self):
        self.since_drop += 1
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


ManagerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestManagerMachine = ManagerMachine.TestCase
