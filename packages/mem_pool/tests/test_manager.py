from dataclasses import dataclass

import numpy as np
import pytest

from phloem.mem_pool import (
    CacheManager,
    IntegrityError,
    NoPrefixTree,
    OwnershipError,
    PageAllocator,
    RowTable,
    TokenAllocator,
)
from phloem.radix_cache import RadixCache

PROMPT = list(range(100, 118))  # 18 tokens: four pages of 4 and half a page


def manager(page_size=4, capacity=64, max_rows=4, max_len=64, tree=None):
    return CacheManager(
        tree or RadixCache(page_size=page_size),
        RowTable(max_rows, max_len),
        PageAllocator(capacity, page_size),
    )


def computed(cache, tokens, namespace=()):
    """A lease whose tokens are all computed, none of them published by it."""
    lease = cache.open(tokens, namespace)
    assert cache.extend(lease, len(tokens) - lease.committed)
    cache.commit(lease, len(tokens) - lease.committed)
    return lease


def row(cache, lease):
    return cache.rows.table[lease.row, : lease.allocated].tolist()


def marks(lease):
    return lease.protected, lease.committed, lease.allocated


def test_a_cold_lease_owns_what_it_reserved_and_reuses_nothing():
    cache = manager()
    lease = cache.open(PROMPT)
    assert marks(lease) == (0, 0, 0)
    assert cache.extend(lease, 18)
    assert marks(lease) == (0, 0, 18)
    cache.commit(lease, 10)
    assert marks(lease) == (0, 10, 18)
    report = cache.check()
    assert (report.free, report.leased, report.capacity) == (44, 20, 64)


def test_a_published_prefix_is_found_by_the_next_lease_up_to_one_token_before_the_end():
    cache = manager()
    first = computed(cache, PROMPT)
    slots = row(cache, first)
    cache.close(first, PROMPT)
    assert cache.check().evictable == 16
    assert cache.peek(PROMPT) == 16
    lease = cache.open(PROMPT)
    assert marks(lease) == (16, 16, 16)
    assert row(cache, lease) == slots[:16]
    assert cache.peek(PROMPT[:16]) == 12, "one token is left to compute, so one page less"
    assert cache.check().protected == 16


@pytest.mark.parametrize(("keep_from", "reused"), [(None, 16), (16, 16), (15, 12), (3, 0), (0, 0)])
def test_keep_from_limits_what_is_reused(keep_from, reused):
    cache = manager()
    cache.close(computed(cache, PROMPT), PROMPT)
    assert cache.peek(PROMPT, keep_from=keep_from) == reused
    assert cache.open(PROMPT, keep_from=keep_from).protected == reused
    cache.check()


def test_two_equal_prompts_prefilled_in_one_batch_end_with_equal_rows_and_no_slot_lost():
    """Case RC-04."""
    cache = manager()
    first, second = computed(cache, PROMPT), computed(cache, PROMPT)
    assert set(row(cache, first)).isdisjoint(row(cache, second))
    cache.checkpoint(first, PROMPT)
    cache.check()
    cache.checkpoint(second, PROMPT)
    assert row(cache, first)[:16] == row(cache, second)[:16]
    assert set(row(cache, first)[16:]).isdisjoint(row(cache, second)[16:])
    report = cache.check()
    assert (report.protected, report.leased, report.free) == (16, 8, 40)
    free = set(cache.slots.free_slots().tolist())
    assert free.isdisjoint(row(cache, first) + row(cache, second))
    cache.close(first, PROMPT)
    cache.close(second, PROMPT)
    assert cache.check().evictable == 16
    assert cache.available == cache.capacity


def test_equal_prompts_that_finish_without_a_checkpoint_lose_no_slot():
    cache = manager(page_size=1, capacity=40)
    leases = [computed(cache, PROMPT), computed(cache, PROMPT)]
    for lease in leases:
        cache.close(lease, PROMPT)
        cache.check()
    assert (cache.free_tokens, cache.available) == (22, 40)


def test_a_longer_prompt_published_meanwhile_is_shared_up_to_where_they_part():
    cache = manager()
    other = PROMPT[:9] + [7] * 9
    first, second = computed(cache, PROMPT), computed(cache, other)
    cache.checkpoint(first, PROMPT)
    before = row(cache, second)
    cache.checkpoint(second, other)
    assert row(cache, second) == row(cache, first)[:8] + before[8:]
    assert cache.check().leased == 2 * 4


def test_checkpoints_of_a_growing_sequence_move_the_lock_along():
    cache = manager()
    lease = cache.open(PROMPT)
    for chunk in (5, 5, 5, 3):
        assert cache.extend(lease, chunk)
        cache.commit(lease, chunk)
        cache.checkpoint(lease, PROMPT)
        assert lease.protected == lease.committed // 4 * 4
        report = cache.check()
        assert (report.protected, report.evictable) == (lease.protected, 0)
    cache.close(lease, None)
    assert cache.check().evictable == 16


def test_a_checkpoint_below_a_page_publishes_nothing():
    cache = manager()
    lease = computed(cache, PROMPT[:3])
    cache.checkpoint(lease, PROMPT[:3])
    assert marks(lease) == (0, 3, 3)
    assert cache.check().protected == 0


def test_reserved_slots_are_not_published():
    cache = manager()
    lease = cache.open(PROMPT)
    cache.extend(lease, 18)
    cache.commit(lease, 7)
    cache.checkpoint(lease, PROMPT)
    assert marks(lease) == (4, 7, 18)
    cache.close(lease, PROMPT)
    assert cache.check().evictable == 4


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_trim_gives_back_rejected_drafts_and_the_lease_goes_on_where_it_was(page_size):
    cache = manager(page_size)
    lease = computed(cache, PROMPT)
    before = row(cache, lease)
    cache.extend(lease, 9)
    cache.commit(lease, 1)
    kept = row(cache, lease)[:19]
    cache.trim(lease)
    assert marks(lease) == (0, 19, 19)
    assert row(cache, lease) == kept
    assert kept[:18] == before
    assert cache.check().leased == -(-19 // page_size) * page_size
    assert cache.extend(lease, 5)
    cache.check()


def test_extend_evicts_just_what_is_missing():
    cache = manager(capacity=24)
    cache.close(computed(cache, PROMPT), PROMPT)
    lease = cache.open([1, 2, 3])
    assert cache.extend(lease, 10)
    report = cache.check()
    assert (report.free, report.evictable, report.leased) == (0, 12, 12)


def test_extend_that_cannot_be_covered_evicts_nothing():
    cache = manager(capacity=24)
    cache.close(computed(cache, PROMPT), PROMPT)
    lease = cache.open([1, 2, 3])
    before = cache.check()
    assert not cache.extend(lease, 25)
    assert cache.check() == before
    assert marks(lease) == (0, 0, 0)
    assert cache.extend(lease, 24)


def test_extend_does_not_evict_what_its_own_lease_reads():
    cache = manager(capacity=24)
    cache.close(computed(cache, PROMPT), PROMPT)
    lease = cache.open(PROMPT)
    assert not cache.extend(lease, 9)
    assert cache.extend(lease, 8)
    assert cache.check().protected == 16


def test_extend_beyond_the_row_is_refused_with_both_lengths():
    cache = manager(max_len=20)
    lease = computed(cache, PROMPT)
    with pytest.raises(ValueError, match="21 tokens does not fit into a row of 20"):
        cache.extend(lease, 3)
    with pytest.raises(ValueError, match="21 tokens does not fit into a row of 20"):
        cache.open(list(range(21)))
    assert cache.check().leased == 20


def test_open_without_a_free_row_gives_none_and_locks_nothing():
    cache = manager(max_rows=1)
    cache.close(computed(cache, PROMPT), PROMPT)
    lease = cache.open([1, 2])
    assert cache.open(PROMPT) is None
    assert cache.check().protected == 0
    cache.close(lease, None)
    assert cache.open(PROMPT).protected == 16


def test_commit_beyond_what_is_reserved_is_refused():
    cache = manager()
    lease = cache.open(PROMPT)
    cache.extend(lease, 4)
    with pytest.raises(ValueError, match="cannot commit 5 tokens of row 0: it has 4 reserved"):
        cache.commit(lease, 5)
    with pytest.raises(ValueError, match="cannot commit -1"):
        cache.commit(lease, -1)


def test_too_few_token_ids_are_refused_and_the_lease_stays_open():
    cache = manager()
    lease = computed(cache, PROMPT)
    with pytest.raises(ValueError, match="18 committed tokens but 17 ids"):
        cache.close(lease, PROMPT[:17])
    assert cache.open_leases == (lease,)
    cache.close(lease, PROMPT)
    cache.check()


def test_a_lease_is_closed_once():
    """Case RC-08: a request that ended is met again by the step that was in flight."""
    cache = manager()
    lease = computed(cache, PROMPT)
    cache.extend(lease, 1)  # the slot of the step in flight
    cache.close(lease, PROMPT)
    assert lease.closed
    for use in (
        lambda: cache.close(lease, None),
        lambda: cache.extend(lease, 1),
        lambda: cache.commit(lease, 0),
        lambda: cache.trim(lease),
        lambda: cache.checkpoint(lease, PROMPT),
    ):
        with pytest.raises(OwnershipError, match="row 0, generation 1, is closed"):
            use()
    cache.check()
    assert cache.available == cache.capacity


def test_a_stale_lease_cannot_touch_the_row_that_somebody_else_has_now():
    cache = manager(max_rows=1)
    old = computed(cache, PROMPT)
    cache.close(old, None)
    new = computed(cache, PROMPT)
    assert (new.row, new.generation) == (old.row, old.generation + 1)
    with pytest.raises(OwnershipError):
        cache.close(old, None)
    cache.check()


def test_a_lease_of_another_manager_is_refused():
    cache, other = manager(), manager()
    lease = computed(cache, PROMPT)
    computed(other, PROMPT)
    with pytest.raises(OwnershipError, match="of another manager"):
        other.close(lease, None)


def test_open_leases_are_ordered_by_row():
    cache = manager()
    leases = [cache.open([1, 2]) for _ in range(3)]
    cache.close(leases[0], None)
    again = cache.open([1, 2])
    assert cache.open_leases == (again, leases[1], leases[2])


def test_namespaces_never_share():
    cache = manager()
    cache.close(computed(cache, PROMPT, ("a", "bc")), PROMPT)
    assert cache.peek(PROMPT, ("ab", "c")) == 0
    first, second = computed(cache, PROMPT, ("a", "bc")), computed(cache, PROMPT, ("ab", "c"))
    cache.checkpoint(second, PROMPT)
    assert set(row(cache, first)).isdisjoint(row(cache, second))
    cache.check()


def test_drop_empties_one_namespace():
    cache = manager()
    cache.close(computed(cache, PROMPT, ("a",)), PROMPT)
    cache.close(computed(cache, PROMPT, ("b",)), PROMPT)
    assert cache.drop(("a",)) == 16
    assert (cache.peek(PROMPT, ("a",)), cache.peek(PROMPT, ("b",))) == (0, 16)
    assert cache.check().free == 48


def test_a_namespace_in_use_is_not_dropped():
    cache = manager()
    cache.close(computed(cache, PROMPT, ("a",)), PROMPT)
    lease = cache.open(PROMPT, ("a",))
    with pytest.raises(OwnershipError, match=r"rows \[0\] still use the cache"):
        cache.drop(("a",))
    with pytest.raises(OwnershipError, match=r"rows \[0\] still use the cache"):
        cache.flush()
    assert cache.drop(("b",)) == 0
    cache.close(lease, None)
    assert cache.flush() == 16
    assert cache.check().free == cache.capacity


def test_without_a_prefix_tree_nothing_is_shared_and_nothing_lost():
    cache = manager(tree=NoPrefixTree(4))
    first, second = computed(cache, PROMPT), computed(cache, PROMPT)
    cache.checkpoint(first, PROMPT)
    assert marks(first) == (0, 18, 18)
    assert cache.check().leased == 40
    cache.close(first, PROMPT)
    cache.close(second, PROMPT)
    assert (cache.flush(), cache.drop(())) == (0, 0)
    assert cache.check().free == cache.capacity


def test_tokens_may_be_a_numpy_array():
    cache = manager()
    tokens = np.array(PROMPT, np.int32)
    cache.close(computed(cache, tokens), tokens)
    assert cache.peek(tokens) == cache.peek(PROMPT) == 16


def test_different_page_sizes_are_refused():
    with pytest.raises(ValueError, match="the tree has pages of 4 tokens and the allocator of 1"):
        CacheManager(RadixCache(page_size=4), RowTable(1, 8), TokenAllocator(8))


@dataclass
class Adoption:
    """What a tree says of an insert."""

    held: np.ndarray
    declined: tuple[range, ...]

    @property
    def length(self):
        return len(self.held)

    def values(self):
        return self.held


class TreeWithAHole(NoPrefixTree):
    """Has `held` of any key, except for one range: as if its device copy had been evicted there."""

    def __init__(self, held, hole):
        super().__init__(page_size=1)
        self.held, self.hole = held, hole

    def insert(self, key, values, priority=0):
        self.held[self.hole.start : self.hole.stop] = values[self.hole.start : self.hole.stop]
        return Adoption(self.held, (range(self.hole.start), range(self.hole.stop, len(self.held))))


def test_only_declined_ranges_are_freed_when_the_tree_adopts_a_middle_range():
    slots = TokenAllocator(32)
    theirs = slots.alloc_extend(-1, 0, 10)
    slots.free(theirs[4:7])  # the hole's device copy is gone
    cache = CacheManager(TreeWithAHole(theirs.copy(), range(4, 7)), RowTable(1, 16), slots)
    lease = computed(cache, PROMPT[:10])
    ours = row(cache, lease)
    cache.checkpoint(lease, PROMPT)
    assert row(cache, lease) == theirs[:4].tolist() + ours[4:7] + theirs[7:].tolist()
    assert slots.available == 32 - 10
    assert set(slots.free_slots().tolist()).isdisjoint(row(cache, lease))
    cache.close(lease, None)
    assert slots.available == 32 - 10


@dataclass
class Sizes:
    evictable: int
    protected: int
    total: int


class TreeThatOverpromises(NoPrefixTree):
    """Counts tokens as evictable that it does not let go."""

    @property
    def sizes(self):
        return Sizes(evictable=4, protected=0, total=4)


def test_a_tree_that_lets_go_of_less_than_it_counted_is_reported():
    cache = manager(tree=TreeThatOverpromises(4), max_len=80)
    lease = cache.open(PROMPT)
    with pytest.raises(IntegrityError, match="counts 4 tokens as evictable but lets go of none"):
        cache.extend(lease, 68)
    assert marks(lease) == (0, 0, 0)
