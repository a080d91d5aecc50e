"""Random operation of a `CacheManager` over tree, host tier and store, with faults, against what
the slots would hold.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tier_support import LateTransfer, MemoryStore

from phloem.mem_pool import CacheManager, HostTier, PageAllocator, RowTable, StoredBlocks
from phloem.radix_cache import RadixCache

MAX_LEN = 280
NAMESPACES = st.sampled_from([(), ("a",)])
PROMPTS = st.builds(
    lambda family, shared, suffix: [*range(family, family + shared), *suffix],
    st.sampled_from([1000, 2000, 3000]),
    st.sampled_from([200, 128, 130, 70, 64, 33, 16, 3]),
    st.lists(st.integers(0, 1), min_size=1, max_size=6),
)
KINDS = st.sets(st.sampled_from(["backup", "load", "read", "write"]), max_size=2)
METHODS = st.sets(st.sampled_from(["find", "get", "put"]), max_size=2)


def now_and_then(condition):
    """For rules that undo what others need a while to build up."""

    def ready(self):
        return self.since_upheaval > 8 and condition(self)

    return precondition(ready)


def if_faulty(condition=lambda self: True):
    return precondition(lambda self: self.faulty and condition(self))


def history(namespace, tokens):
    """What a slot holds in the model: for each position, a hash of all that its KV depends on."""
    state, states = hash(namespace), []
    for token in tokens:
        state = hash((state, token))
        states.append(state)
    return np.array(states, np.int64)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class TiersMachine(RuleBasedStateMachine):
    """Whatever is late, refused, lost or dead below, a lease reads its own history."""

    @initialize(
        page=st.sampled_from([1, 4, 16]),
        device=st.integers(210, 420),
        host=st.sampled_from([900, 1500, 400, 64]),
        stored=st.booleans(),
        budget=st.sampled_from([4096, 64, 1]),
        prompt_copies=st.sampled_from([True, True, False]),
        faulty=st.sampled_from([False, False, True]),
        write_through=st.sampled_from([1, 1, 2]),
        policy=st.sampled_from(["lru", "lru", "slru", "filo"]),
    )
    def create(
        self,
        page,
        device,
        host,
        stored,
        budget,
        prompt_copies,
        faulty,
        write_through,
        policy,
    ):
        self.page, self.clock = page, Clock()
        self.prompt_copies, self.faulty, self.since_upheaval = prompt_copies, faulty, 0
        self.host_capacity, self.budget, self.stored = host // page * page, budget, stored
        self.device = device // page * page
        self.tree_options = {"write_through": write_through, "policy": policy}
        self.store = MemoryStore()
        self.tokens = {}
        self.start()

    def start(self):
        tree = RadixCache(
            self.page,
            values="numpy",
            host_values="numpy",
            host_tier=True,
            clock=self.clock,
            **self.tree_options,
        )
        slots = PageAllocator(self.device, self.page)
        host = PageAllocator(self.host_capacity, self.page)
        self.transfer = LateTransfer(slots.num_slots, host.num_slots)
        stored = StoredBlocks(self.store, self.transfer, "m", self.page) if self.stored else None
        self.tier = HostTier(
            tree, host, self.transfer, stored, budget=self.budget, clock=self.clock
        )
        self.cache = CacheManager(
            tree, RowTable(4, MAX_LEN), slots, tiers=self.tier, idle_ttl=50.0, clock=self.clock
        )

    # Requests.

    @rule(prompt=PROMPTS, namespace=NAMESPACES, publish=st.booleans())
    def serve(self, prompt, namespace, publish):
        """A request from start to end."""
        lease = self.opened(prompt, namespace)
        if lease is not None:
            self.compute(lease)
            self.close(lease, publish)
            self.step_is_over()

    @rule(prompt=PROMPTS, namespace=NAMESPACES)
    def begin(self, prompt, namespace):
        lease = self.opened(prompt, namespace)
        if lease is not None:
            self.compute(lease)
            self.step_is_over()

    def step_is_over(self):
        self.cache.pump()
        if self.prompt_copies:
            self.transfer.run()
            self.cache.pump()

    def opened(self, prompt, namespace):
        promised = self.cache.peek(prompt, namespace)
        lease = self.cache.open(prompt, namespace)
        if lease is None:
            return None
        assert lease.protected == lease.committed == lease.allocated < len(prompt)
        assert lease.protected % self.page == 0
        if self.healthy and self.tier.stored is None and self.cache.available:
            assert lease.protected <= promised
        self.tokens[lease] = list(prompt)
        return lease

    @property
    def healthy(self):
        return not self.tier.health.failures

    def compute(self, lease):
        """A step: it waits for the loads, then writes."""
        self.finish_loads()
        self.reads_its_own_history(lease)
        n = len(self.tokens[lease]) - lease.allocated
        if n > 0 and self.cache.extend(lease, n):
            slots = self.cache.rows.table[lease.row, lease.committed : lease.allocated]
            states = history(lease.namespace, self.tokens[lease])
            self.transfer.device[slots] = states[lease.committed : lease.allocated]
            self.cache.commit(lease, lease.allocated - lease.committed)
            self.cache.checkpoint(lease, self.tokens[lease])

    def finish_loads(self):
        """The model's step comes after all loads that were asked for; copies keep their order."""
        dead, self.transfer.dead = self.transfer.dead, False
        self.transfer.run(self.transfer.up_to_the_last_load())
        self.transfer.dead = dead

    @precondition(lambda self: self.cache.open_leases)
    @rule(index=st.integers(0, 3), token=st.integers(0, 1), n=st.integers(1, 20))
    def decode(self, index, token, n):
        lease = self.cache.open_leases[index % len(self.cache.open_leases)]
        tokens = self.tokens[lease]
        if lease.allocated == len(tokens) and len(tokens) + n <= MAX_LEN:
            tokens.extend([token] * n)
            self.compute(lease)
            self.step_is_over()

    @precondition(lambda self: self.cache.open_leases)
    @rule(index=st.integers(0, 3), publish=st.booleans())
    def end(self, index, publish):
        leases = self.cache.open_leases
        self.close(leases[index % len(leases)], publish)

    def close(self, lease, publish):
        tokens = self.tokens.pop(lease)
        self.cache.close(lease, tokens if publish else None)

    # Time passes below.

    @rule(copies=st.none() | st.integers(0, 3), wait=st.sampled_from([0.0, 0.0, 0.1]))
    def pump(self, copies, wait):
        self.transfer.run(copies)
        self.cache.pump(wait)

    @rule(seconds=st.sampled_from([1.0, 2.0, 6.0]))
    def wait(self, seconds):
        self.clock.now += seconds

    @now_and_then(lambda self: True)
    @rule(namespace=NAMESPACES)
    def drop(self, namespace):
        self.since_upheaval = 0
        if not any(lease.namespace == namespace for lease in self.cache.open_leases):
            self.cache.drop(namespace)
            if not self.stored:
                assert self.cache.peek(range(1000, 1060), namespace) == 0

    @now_and_then(lambda self: not self.cache.open_leases)
    @rule()
    def flush(self):
        self.since_upheaval = 0
        self.cache.flush()
        assert self.cache.available == self.cache.capacity

    @now_and_then(lambda self: not self.cache.open_leases)
    @rule(orderly=st.sampled_from([True, True, False]))
    def restart(self, orderly):
        self.since_upheaval = 0
        if orderly and not self.transfer.dead:
            self.tier.close()
        self.start()

    # Faults.

    @if_faulty()
    @rule(kinds=KINDS)
    def refuse(self, kinds):
        self.transfer.refuse = kinds

    @if_faulty()
    @rule(n=st.integers(0, 3))
    def fail(self, n):
        self.transfer.fail = n

    @if_faulty()
    @rule()
    def die_or_revive(self):
        self.transfer.dead = not self.transfer.dead

    @if_faulty(lambda self: self.stored)
    @rule(methods=METHODS, full=st.booleans())
    def harm_the_store(self, methods, full):
        self.store.refuse, self.store.full = methods, full

    @if_faulty(lambda self: self.store.blocks)
    @rule(index=st.integers(0, 9), lose=st.booleans())
    def harm_a_block(self, index, lose):
        name = list(self.store.blocks)[index % len(self.store.blocks)]
        if lose:
            self.store.lost.add(name)
        else:
            self.store.blocks[name] = self.store.blocks[name][:-1]

    # Always.

    @invariant()
    def every_slot_has_one_owner_in_both_tiers(self):
        self.since_upheaval += 1
        report = self.cache.check()
        assert report.free + report.evictable == self.cache.available
        self.cache.tree.check_integrity()

    @invariant()
    def every_lease_reads_its_own_history(self):
        if self.transfer.loads_wait():
            return  # a step would wait first
        for lease in self.cache.open_leases:
            self.reads_its_own_history(lease)

    def reads_its_own_history(self, lease):
        slots = self.cache.rows.table[lease.row, : lease.committed]
        expected = history(lease.namespace, self.tokens[lease][: lease.committed])
        assert np.array_equal(self.transfer.device[slots], expected)

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        self.finish_loads()
        self.every_lease_reads_its_own_history()
        for lease in self.cache.open_leases:
            self.close(lease, publish=True)
        self.cache.flush()
        assert self.cache.available == self.cache.capacity
        self.transfer.dead = False
        self.transfer.run()
        self.cache.pump()
        report = self.cache.check()
        assert report.free == report.capacity
        assert self.tier.slots.available == self.tier.slots.capacity


TiersMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestTiersMachine = TiersMachine.TestCase
