"""The manager over a host tier and a store: what it promises holds whatever happens below."""

import numpy as np
import pytest
from tier_support import LateTransfer, MemoryStore

from phloem.mem_pool import (
    ArrayTransfer,
    CacheManager,
    HostTier,
    NoPrefixTree,
    PageAllocator,
    RowTable,
    StoredBlocks,
)
from phloem.radix_cache import RadixCache


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make(device=100, host=1000, page=1, late=False, store=None, clock=None, **options):
    clock = clock or Clock()
    tree = RadixCache(page, values="numpy", host_values="numpy", host_tier=True, clock=clock)
    slots, below = PageAllocator(device, page), PageAllocator(host, page)
    if late:
        transfer = LateTransfer(slots.num_slots, below.num_slots)
    else:
        transfer = ArrayTransfer(np.zeros(slots.num_slots), np.zeros(below.num_slots))
    stored = None if store is None else StoredBlocks(store, transfer, "m", page)
    tier = HostTier(tree, below, transfer, stored, clock=clock)
    cache = CacheManager(tree, RowTable(4, 512), slots, tiers=tier, clock=clock, **options)
    return cache, transfer


def serve(cache, tokens, namespace=()):
    """A request from start to end; the tokens that it found cached."""
    lease = cache.open(tokens, namespace)
    found = lease.protected
    assert cache.extend(lease, len(tokens) - found)
    cache.commit(lease, len(tokens) - found)
    cache.close(lease, tokens)
    cache.pump()
    cache.pump()
    cache.check()
    return found


def test_a_working_set_of_three_times_the_device_keeps_its_hits():
    cache, _ = make(device=200, host=700)
    prompts = [[family, *range(100, 149)] for family in range(12)]
    for prompt in prompts:
        serve(cache, prompt)
    found = sum(serve(cache, prompt) for _ in range(3) for prompt in prompts)
    possible = 3 * 12 * 49
    assert found >= 0.9 * possible
    without = CacheManager(RadixCache(values="numpy"), RowTable(4, 512), PageAllocator(200, 1))
    assert sum(serve(without, prompt) for _ in range(4) for prompt in prompts) == 0


def test_a_restart_finds_what_was_stored():
    store = MemoryStore()
    prompt = list(range(300))
    before, _ = make(device=400, store=store)
    serve(before, prompt)
    after, _ = make(device=400, store=store)
    assert serve(after, prompt) == 299
    assert serve(after, prompt, ("other",)) == 0


def test_what_is_being_copied_does_not_keep_others_from_their_memory():
    cache, _ = make(late=True)
    serve(cache, range(100))
    assert cache.tiers.busy
    assert cache.available == 0
    lease = cache.open(range(500, 600))
    assert cache.extend(lease, 100)
    assert not cache.tiers.busy
    assert cache.check().leased == 100


def test_extend_that_cannot_do_it_evicts_nothing():
    cache, _ = make()
    serve(cache, range(60))
    lease = cache.open(range(500, 600))
    assert not cache.extend(lease, 101)
    assert cache.peek(range(60)) == 59


def test_a_load_that_has_no_room_brings_what_the_device_has_and_no_more():
    cache, _ = make()
    serve(cache, range(100))
    holder = cache.open(range(500, 600))
    assert cache.extend(holder, 60)
    lease = cache.open(range(100))
    assert lease.protected == 40
    assert cache.check().problems == ()


def test_versions_tell_of_loads_and_of_what_the_host_let_go():
    cache, _ = make(host=100)
    serve(cache, range(100))
    seen = cache.version
    serve(cache, range(500, 600))
    assert cache.version != seen
    assert cache.peek(range(100)) == 0
    serve(cache, range(500, 510))
    published = cache.published
    lease = cache.open(range(700, 800))
    assert cache.extend(lease, 100)
    cache.close(lease, None)
    assert cache.published == published
    assert cache.open(range(500, 600)).protected == 99
    assert cache.published != published


@pytest.mark.parametrize("late", [False, True])
def test_drop_and_flush_empty_all_tiers(late):
    cache, _ = make(late=late)
    serve(cache, range(50), ("a",))
    serve(cache, range(50), ("b",))
    assert cache.drop(("a",)) == 50
    assert cache.peek(range(50), ("a",)) == 0
    assert cache.flush() == 50
    assert cache.check().free == 100
    assert cache.tiers.slots.available == 1000


def test_what_was_not_used_for_long_is_forgotten_in_both_tiers():
    clock = Clock()
    cache, _ = make(clock=clock, idle_ttl=10.0)
    serve(cache, range(50))
    clock.now = 6.0
    serve(cache, range(100, 150))
    lease = cache.open(range(100, 120))
    clock.now = 12.0
    cache.pump()
    assert cache.peek(range(50)) == 0
    assert cache.peek(range(100, 150)) == 49
    clock.now = 30.0
    cache.pump()
    assert cache.peek(range(100, 150)) == 19
    cache.close(lease, None)
    cache.pump()
    clock.now = 32.0
    cache.pump()
    assert cache.available == cache.free_tokens == 100
    assert cache.tiers.slots.available == 1000


def test_expiry_works_without_tiers_and_refuses_to_keep_nothing():
    clock = Clock()
    tree = RadixCache(values="numpy", clock=clock)
    cache = CacheManager(tree, RowTable(2, 64), PageAllocator(64, 1), idle_ttl=1.0, clock=clock)
    serve(cache, range(10))
    clock.now = 2.0
    cache.pump()
    assert cache.free_tokens == 64
    with pytest.raises(ValueError, match="more than 0"):
        CacheManager(tree, RowTable(2, 64), PageAllocator(64, 1), idle_ttl=0.0)
    CacheManager(NoPrefixTree(), RowTable(2, 64), PageAllocator(64, 1), idle_ttl=1e-9).pump()
