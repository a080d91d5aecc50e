"""Leases that get on together do what `extend_rows` and `commit_rows` do, and nobody can tell."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_support import marks, rows_of

from phloem.mem_pool import CacheManager, OwnershipError, PageAllocator, RowTable
from phloem.mem_pool.tiers import DeviceOnly
from phloem.radix_cache import RadixCache

MAX_LEN = 60
OTHER = ("open", "extend", "commit", "trim", "close", "check", "look", "flush")


class Taking(DeviceOnly):
    """Tiers that ask for device slots, as those do that bring KV there."""

    wanted = 0

    def match(self, key, take, give):
        taken = take(self.wanted)
        assert taken is not None
        give(taken)
        return super().match(key, take, give)


def manager(page_size=1, capacity=400, rows=6, max_len=MAX_LEN):
    tree = RadixCache(page_size, values="numpy")
    return CacheManager(
        tree, RowTable(rows, max_len), PageAllocator(capacity, page_size), tiers=Taking(tree)
    )


def computed(cache, length, token):
    lease = cache.open([token] * length)
    if lease is None or not cache.extend(lease, length - lease.allocated):
        return lease
    cache.commit(lease, length - lease.committed)
    return lease


def running(cache, lengths):
    """Leases of these lengths, and their steps together."""
    leases = [computed(cache, n, 1 + i) for i, n in enumerate(lengths)]
    return leases, cache.together(rows_of(leases))


def step(cache, leases, together, commit=True):
    """One of them; `together` None: by the operations on rows."""
    if together is None:
        rows = rows_of(leases)
        if not cache.extend_rows(rows):
            return None
        slots = cache.rows.table[rows, cache.marks.allocated[rows] - 1].tolist()
    else:
        found = together.extend()
        if found is None:
            return None
        slots = found.tolist()
    if commit and (together is None or not together.commit()):
        cache.commit_rows(rows_of(leases))
    return slots


def other(cache, what, k):
    """Something else that happens to the cache; what came of it."""
    leases = cache.open_leases
    if what == "open":
        lease = computed(cache, 5 + k, 30 + k) if cache.rows.available else None
        return None if lease is None else marks(lease)
    if what == "check":
        return cache.check()
    if what == "look":
        return [marks(lease) for lease in leases]
    if what == "flush":
        return None if leases else cache.flush()
    lease = leases[k % len(leases)]
    if what == "extend":
        return cache.extend(lease, 2) if lease.allocated + 2 <= MAX_LEN else None
    if what == "commit":
        return cache.commit(lease, lease.allocated - lease.committed)
    if what == "trim":
        return cache.trim(lease)
    return cache.close(lease, [1 + k % 3] * MAX_LEN) if len(leases) > 4 else None


@settings(max_examples=150, deadline=None)
@given(
    page_size=st.sampled_from([1, 1, 4]),
    capacity=st.sampled_from([48, 80, 400]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    turns=st.lists(
        st.one_of(
            st.tuples(st.just("steps"), st.integers(1, 12)),
            st.tuples(st.just("reserve"), st.integers(1, 2)),
            st.tuples(st.sampled_from(OTHER), st.integers(0, 5)),
        ),
        max_size=12,
    ),
)
def test_together_is_as_one_step_after_the_other(page_size, capacity, lengths, turns):
    caches = [manager(page_size, capacity) for _ in range(2)]
    leases, together = zip(*(running(cache, lengths) for cache in caches), strict=True)
    ways = together[0], None
    for what, k in turns:
        if what in OTHER:
            found = [other(cache, what, k) for cache in caches]
            assert found[0] == found[1]
            continue
        for _ in range(k):
            if any(lease.closed or lease.allocated == MAX_LEN for lease in leases[1]):
                break
            found = [
                step(*each, commit=what == "steps")
                for each in zip(caches, leases, ways, strict=True)
            ]
            assert found[0] == found[1]
            assert caches[0].free_tokens == caches[1].free_tokens
            assert caches[0].available == caches[1].available
    assert caches[0].check() == caches[1].check()
    for one, same in zip(*(cache.open_leases for cache in caches), strict=True):
        assert marks(one) == marks(same)
        tables = [cache.rows.table[one.row, : one.allocated].tolist() for cache in caches]
        assert tables[0] == tables[1]


def test_most_steps_ask_the_allocator_for_nothing(monkeypatch):
    cache = manager()
    leases, together = running(cache, [3, 5])
    asked, alloc = [], cache.slots.alloc_extend

    def counting(*args):
        asked.append(args)
        return alloc(*args)

    monkeypatch.setattr(cache.slots, "alloc_extend", counting)
    for _ in range(50):
        step(cache, leases, together)
    assert len(asked) <= 7
    assert [lease.committed for lease in leases] == [53, 55]


def test_what_is_taken_ahead_is_free_and_goes_to_whoever_needs_it():
    cache = manager(capacity=60)
    leases, together = running(cache, [3, 5])
    for _ in range(7):
        step(cache, leases, together)
    assert cache.slots.available < cache.free_tokens == 60 - 8 - 14
    another = cache.open([9])
    assert cache.extend(another, 38)
    assert cache.free_tokens == 0
    assert together.extend() is None
    assert cache.check().free == 0


def test_nothing_is_evicted_for_steps_to_come():
    cache = manager(capacity=40)
    old = computed(cache, 20, 7)
    cache.close(old, [7] * 20)
    leases, together = running(cache, [4])
    for _ in range(16):
        step(cache, leases, together)
    assert (cache.free_tokens, cache.counts()["evicted_tokens"]) == (0, 0)
    step(cache, leases, together)
    assert cache.counts()["evicted_tokens"] == 1


def test_what_is_taken_ahead_is_given_up_before_anything_is_evicted():
    cache = manager(capacity=60)
    cache.close(computed(cache, 20, 7), [7] * 20)
    leases, together = running(cache, [4])
    for _ in range(9):
        step(cache, leases, together)
    assert cache.slots.available < 27
    assert cache.extend(cache.open([8]), 27)
    assert cache.counts()["evicted_tokens"] == 0


def test_it_is_given_up_for_what_comes_from_the_tiers_below():
    cache = manager(capacity=60)
    cache.close(computed(cache, 20, 7), [7] * 20)
    _, together = running(cache, [4])
    for _ in range(9):
        together.extend()
    cache.tiers.wanted = cache.free_tokens
    assert cache.slots.available < cache.free_tokens
    cache.open([8])
    assert cache.counts()["evicted_tokens"] == 0


def test_a_step_in_flight_keeps_its_slots():
    cache = manager()
    leases, together = running(cache, [3, 5])
    for _ in range(4):
        step(cache, leases, together)
    step(cache, leases, together, commit=False)
    cache.check()
    assert [marks(lease) for lease in leases] == [(0, 7, 8), (0, 9, 10)]
    assert not together.commit(), "something else has happened since"
    cache.commit_rows(rows_of(leases))
    assert [lease.committed for lease in leases] == [8, 10]


def test_nothing_is_committed_that_is_not_reserved():
    cache = manager()
    leases, together = running(cache, [3, 5])
    assert not together.commit()
    together.extend()
    assert together.commit()
    assert not together.commit()
    assert [lease.committed for lease in leases] == [4, 6]


def test_a_closed_lease_ends_it():
    cache = manager()
    leases, together = running(cache, [3, 5])
    for _ in range(6):
        step(cache, leases, together)
    cache.close(leases[0], None)
    assert marks(leases[0]) == (0, 9, 9)
    with pytest.raises(OwnershipError, match=r"no lease is open on rows \[0\]"):
        together.extend()
    assert cache.check().leased == 11


def test_a_row_that_is_too_short_ends_it():
    cache = manager(max_len=12)
    leases, together = running(cache, [3, 5])
    for _ in range(7):
        step(cache, leases, together)
    with pytest.raises(ValueError, match="13 tokens does not fit into a row of 12"):
        together.extend()
    assert [lease.allocated for lease in leases] == [10, 12]
