import pytest

from phloem.mem_pool import CacheManager, IntegrityError, PageAllocator, RowTable
from phloem.radix_cache import RadixCache

PROMPT = list(range(18))


@pytest.fixture
def cache():
    """Row 0 has published four pages of its prompt, row 1 is cold; both own further pages."""
    cache = CacheManager(RadixCache(page_size=4), RowTable(4, 64), PageAllocator(64, 4))
    for tokens in (PROMPT, [7] * 6):
        lease = cache.open(tokens)
        assert cache.extend(lease, len(tokens))
        cache.commit(lease, len(tokens))
    cache.checkpoint(cache.open_leases[0], PROMPT)
    assert cache.check().problems == ()
    return cache


def problems(cache):
    with pytest.raises(IntegrityError) as raised:
        cache.check()
    assert cache.check(strict=False).problems
    return str(raised.value)


def test_a_sound_pool_is_accounted_for(cache):
    report = cache.check()
    assert (report.free, report.protected, report.evictable, report.leased) == (36, 16, 0, 12)
    assert report.free + report.protected + report.leased == report.capacity == 64


def test_a_freed_slot_that_the_tree_still_has_names_both_owners(cache):
    cache.slots.free(cache.rows.table[0, :4])
    owners = "the free list and the tree (node [0, 16) of Key(16 tokens: 0, "
    assert f"slots [4, 5, 6, 7] are owned by both {owners}" in problems(cache)


def test_a_freed_slot_that_a_lease_still_has_names_both_owners(cache):
    cache.slots.free(cache.rows.table[1, :6])
    assert (
        "slots [24, 25, 26, 27, 28, 29, 30, 31] are owned by both the free list and the lease of "
        "row 1"
    ) in problems(cache)


def test_two_leases_with_one_page_are_named(cache):
    cache.rows.table[1, 4:6] = cache.rows.table[0, 16:18]
    found = problems(cache)
    assert "[20, 21, 22, 23] are owned by both the lease of row 0 and the lease of row 1" in found
    assert "slots [28, 29, 30, 31] are owned by nobody" in found


def test_a_row_that_points_elsewhere_than_the_tree_is_named(cache):
    cache.rows.table[0, 8:10] = [40, 41]
    assert "row 0 points at slots [40, 41] where the tree has others" in problems(cache)


def test_lost_slots_are_named(cache):
    cache.slots.alloc_extend(-1, 0, 3)
    found = problems(cache)
    assert "slots [32, 33, 34, 35] are owned by nobody" in found
    assert "32 free + 16 in the tree + 12 leased is not the capacity of 64" in found


def test_the_padding_page_has_no_other_owner(cache):
    cache.rows.table[1, 4:6] = [0, 1]
    assert "[0, 1, 2, 3] are owned by both the padding page and the lease of row 1" in (
        problems(cache)
    )


def test_a_slot_beyond_the_pool_is_named(cache):
    cache.rows.table[1, 4:6] = [68, 69]
    assert "the lease of row 1 owns slots [68, 69, 70, 71], which the pool does not have" in (
        problems(cache)
    )


def test_a_page_twice_in_one_lease_is_named(cache):
    cache.rows.table[1, 4:6] = cache.rows.table[1, :2]
    assert "the lease of row 1 owns slots [24, 25, 26, 27] more than once" in problems(cache)


def test_a_row_that_scatters_a_page_is_named(cache):
    cache.rows.table[1, 1] = 30
    assert "row 1 does not hold whole pages from 0 on" in problems(cache)


def test_watermarks_out_of_order_are_named(cache):
    cache.open_leases[1].committed = 9
    assert "the lease of row 1 has watermarks (0, 9, 6)" in problems(cache)


def test_a_row_given_to_somebody_else_is_named(cache):
    cache.rows.generation[1] += 1
    assert "the lease of row 1 is of generation 1" in problems(cache)


def test_a_lost_lock_is_named(cache):
    cache.open_leases[0].prefix = None
    assert "row 0 has 16 protected tokens but holds a prefix of 0" in problems(cache)
