"""Operations on many leases at once do what the same operations do one lease after the other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_support import marks, rows_of

from phloem.mem_pool import CacheManager, OwnershipError, PageAllocator, RowTable
from phloem.radix_cache import RadixCache

PAGES = st.sampled_from([1, 4, 16])


def manager(page_size=4, capacity=256, rows=8, max_len=64):
    return CacheManager(
        RadixCache(page_size), RowTable(rows, max_len), PageAllocator(capacity, page_size)
    )


def computed(cache, length, token=1):
    lease = cache.open([token] * length)
    assert cache.extend(lease, length - lease.allocated)
    cache.commit(lease, length - lease.committed)
    return lease


@settings(max_examples=200, deadline=None)
@given(
    page_size=PAGES,
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    n=st.integers(1, 20),
    order=st.randoms(use_true_random=False),
)
def test_extending_rows_gives_each_the_slots_that_extending_it_alone_would(
    page_size, lengths, n, order
):
    caches = [manager(page_size, capacity=1024) for _ in range(2)]
    leases = [[computed(c, k, 1 + i) for i, k in enumerate(lengths)] for c in caches]
    turns = list(range(len(lengths)))
    order.shuffle(turns)
    assert caches[0].extend_rows(rows_of([leases[0][i] for i in turns]), n)
    for i in turns:
        assert caches[1].extend(leases[1][i], n)
    for together, alone in zip(*leases, strict=True):
        assert marks(together) == marks(alone)
        length = together.allocated
        tables = [cache.rows.table[together.row, :length].tolist() for cache in caches]
        assert tables[0] == tables[1]
    assert caches[0].check() == caches[1].check()


@settings(max_examples=200, deadline=None)
@given(
    page_size=PAGES,
    cached=st.integers(0, 8),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    n=st.integers(1, 30),
)
def test_rows_are_extended_all_or_none_and_just_what_is_missing_is_evicted(
    page_size, cached, lengths, n
):
    cache = manager(page_size, capacity=192)
    leases = [computed(cache, k, 1 + i) for i, k in enumerate(lengths)]
    for i in range(cached):
        if cache.free_tokens < 32:
            break
        lease = computed(cache, 17, 40 + i)
        cache.close(lease, [40 + i] * 17)
    before, version = cache.check(), cache.version
    pages = sum(cache.slots.pages_needed(k, n) for k in lengths)
    fits = pages * page_size <= cache.available
    assert cache.extend_rows(rows_of(leases), n) == fits
    after = cache.check()
    if not fits:
        assert (after, cache.version) == (before, version)
        assert [lease.allocated for lease in leases] == lengths
        return
    assert [lease.allocated for lease in leases] == [k + n for k in lengths]
    assert after.free == max(before.free - pages * page_size, 0)
    assert (cache.version != version) == (after.evictable != before.evictable)


def test_a_partial_page_of_the_prefix_is_filled_up_before_a_new_one_is_taken():
    cache = manager(page_size=4)
    leases = [computed(cache, k, k) for k in (3, 4, 5, 8)]
    free = cache.free_tokens
    assert cache.extend_rows(rows_of(leases))
    assert free - cache.free_tokens == 2 * 4, "only whole pages need another one"


def test_committing_rows_is_checked_for_all_before_any_is_changed():
    cache = manager()
    leases = [computed(cache, k, k) for k in (3, 7)]
    cache.extend(leases[0], 2)
    with pytest.raises(ValueError, match=f"1 tokens of row {leases[1].row}: it has 0 reserved"):
        cache.commit_rows(rows_of(leases))
    assert [lease.committed for lease in leases] == [3, 7]
    cache.extend(leases[1], 2)
    cache.commit_rows(rows_of(leases), 2)
    assert [lease.committed for lease in leases] == [5, 9]


def test_rows_without_an_open_lease_are_refused():
    cache = manager()
    leases = [computed(cache, 3, 1), computed(cache, 3, 2)]
    cache.close(leases[1], None)
    for use in (cache.extend_rows, cache.commit_rows):
        with pytest.raises(OwnershipError, match=r"no lease is open on rows \[1\]"):
            use(rows_of(leases))
    assert leases[0].allocated == 3


def test_a_row_that_is_too_short_extends_none():
    cache = manager(max_len=10)
    leases = [computed(cache, 3, 1), computed(cache, 10, 2)]
    with pytest.raises(ValueError, match="11 tokens does not fit into a row of 10"):
        cache.extend_rows(rows_of(leases))
    assert leases[0].allocated == 3


def test_a_closed_lease_keeps_its_watermarks_when_its_row_goes_to_somebody_else():
    cache = manager(rows=1)
    old = computed(cache, 6)
    cache.close(old, None)
    computed(cache, 9)
    assert marks(old) == (0, 6, 6)


def test_the_version_differs_after_what_is_cached_changed_and_only_then():
    cache = manager()
    seen = [cache.version]

    def changed():
        seen.append(cache.version)
        return seen[-1] != seen[-2]

    lease = computed(cache, 10)
    assert not changed()
    cache.checkpoint(lease, [1] * 10)
    assert changed()
    cache.close(lease, [1] * 10)
    assert not changed(), "all of it was published before"
    cache.peek([1] * 10)
    cache.close(computed(cache, 9), None)
    assert not changed()
    cache.flush()
    assert changed()
