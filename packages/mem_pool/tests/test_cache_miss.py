"""Why a lease reuses no more of its tokens than it does."""

from __future__ import annotations

import numpy as np

from phloem.mem_pool import (
    CacheManager,
    CacheMiss,
    NoPrefixTree,
    PageAllocator,
    RowTable,
    cache_miss,
)
from phloem.radix_cache import RadixCache


def make_manager(page_size=1, tree=None):
    tree = RadixCache(page_size) if tree is None else tree
    return CacheManager(tree, RowTable(4, 100), PageAllocator(64, page_size))


def run(manager, tokens, namespace=(), keep_from=None):
    """Compute and publish a sequence; why it was not found cached."""
    ids = np.array(tokens, np.int32)
    lease = manager.open(ids, namespace, keep_from=keep_from)
    miss = cache_miss(manager, lease, ids, keep_from)
    new = len(ids) - lease.allocated
    assert manager.extend(lease, new)
    manager.commit(lease, new)
    manager.close(lease, ids)
    return miss


def test_the_first_time_nothing_was_seen_and_then_all_is_there():
    manager = make_manager()
    assert run(manager, [1, 2, 3, 4]) == CacheMiss("first_seen", 0)
    assert run(manager, [1, 2, 3, 4]) is None
    assert run(manager, [1, 2, 3, 4, 5, 6]) == CacheMiss("first_seen", 4)


def test_another_token_is_where_it_parts():
    manager = make_manager()
    run(manager, [1, 2, 3, 4])
    assert run(manager, [1, 2, 9, 9]) == CacheMiss("diverged", 2)


def test_what_was_evicted_is_told_as_that():
    manager = make_manager()
    run(manager, [1, 2, 3, 4])
    for slots in manager.tree.evict(10):
        manager.slots.free(slots)
    assert run(manager, [1, 2, 3, 4]) == CacheMiss("evicted", 0)


def test_other_namespaces_are_not_looked_at():
    manager = make_manager()
    run(manager, [1, 2, 3, 4], ("a",))
    assert run(manager, [1, 2, 3, 9], ("b",)) == CacheMiss("first_seen", 0)


def test_what_has_to_be_computed_anew_is_no_miss_of_the_cache():
    manager = make_manager()
    run(manager, [1, 2, 3, 4])
    assert run(manager, [1, 2, 3, 4], keep_from=1) == CacheMiss("recomputed", 1)


def test_only_whole_pages_can_be_found():
    assert run(make_manager(), [1]) == CacheMiss("short", 0)
    manager = make_manager(page_size=4)
    assert run(manager, [1, 2, 3, 4]) == CacheMiss("short", 0)
    assert run(manager, [1, 2, 3, 4, 5, 6]) is None
    # The page begins at 4, the other token stands at 5.
    run(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    assert run(manager, [1, 2, 3, 4, 5, 0, 7, 8, 9]) == CacheMiss("diverged", 5)


def test_without_a_tree_nothing_is_cached():
    manager = make_manager(tree=NoPrefixTree())
    assert run(manager, [1, 2, 3]) == CacheMiss("cache_off", 0)
