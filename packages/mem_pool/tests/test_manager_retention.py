"""What is retained is evicted after all that is not, while it lasts; it pins nothing."""

from phloem.mem_pool import CacheManager, PageAllocator, Retention, RowTable
from phloem.radix_cache import RadixCache

OLD = list(range(100, 116))  # four pages of 4
NEWER = list(range(200, 216))
NEWEST = list(range(300, 316))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def manager(capacity=48):
    clock = Clock()
    cache = CacheManager(
        RadixCache(page_size=4, clock=clock), RowTable(4, 64), PageAllocator(capacity, 4)
    )
    return cache, clock


def run(cache, tokens, retention=None):
    """One request from its prompt to its end; how much of it was found."""
    lease = cache.open(tokens, retention=retention)
    found = lease.protected
    assert cache.extend(lease, len(tokens) - found)
    cache.commit(lease, len(tokens) - found)
    cache.close(lease, tokens)
    cache.check()
    return found


def cached(cache, tokens):
    return cache.peek([*tokens, 0])


def test_a_retained_prefix_outlives_pressure_that_evicts_newer_ones():
    cache, clock = manager()
    run(cache, OLD, Retention(60))
    clock.now = 1
    run(cache, NEWER)
    clock.now = 2
    run(cache, list(range(400, 432)))
    assert (cached(cache, OLD), cached(cache, NEWER)) == (16, 0)


def test_a_retained_prefix_goes_when_nothing_else_is_left():
    cache, _ = manager()
    run(cache, OLD, Retention(60))
    run(cache, list(range(400, 448)))
    assert cached(cache, OLD) == 0


def test_retention_ends_by_itself():
    cache, clock = manager()
    run(cache, OLD, Retention(60))
    clock.now = 61
    run(cache, NEWER)
    run(cache, list(range(400, 432)))
    assert (cached(cache, OLD), cached(cache, NEWER)) == (0, 16)


def test_only_the_beginning_is_retained_where_a_length_is_given():
    cache, clock = manager()
    run(cache, OLD, Retention(60, 8))
    clock.now = 1
    run(cache, NEWER)
    clock.now = 2
    run(cache, NEWEST)
    clock.now = 3
    run(cache, list(range(400, 424)))
    assert cached(cache, OLD) == 8
    assert cached(cache, NEWER) == 0


def test_using_a_retained_prefix_anew_prolongs_its_retention():
    cache, clock = manager()
    run(cache, OLD, Retention(60))
    clock.now = 50
    assert run(cache, OLD, Retention(60)) == 12
    clock.now = 100
    run(cache, NEWER)
    run(cache, list(range(400, 432)))
    assert (cached(cache, OLD), cached(cache, NEWER)) == (16, 0)


def test_what_another_lease_published_before_is_retained_too_and_its_slots_are_shared():
    cache, _ = manager()
    first, second = (cache.open(OLD, retention=kept) for kept in (None, Retention(60, 10)))
    for lease in (first, second):
        assert cache.extend(lease, 16)
        cache.commit(lease, 16)
    cache.checkpoint(first, OLD)
    cache.checkpoint(second, OLD)
    table = cache.rows.table
    assert (table[first.row, :16] == table[second.row, :16]).all()
    cache.check()
    cache.close(first, OLD)
    cache.close(second, OLD)
    run(cache, NEWER)
    run(cache, list(range(400, 440)))
    assert cached(cache, OLD) == 8
