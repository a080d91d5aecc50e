"""Two residencies of one tree: what is copied to the host, what comes back, and what is pinned."""

import pytest

from phloem.radix_cache import CacheInUse, Key, LockReleased, RadixCache, StaleMatch, Tier


@pytest.fixture
def cache():
    return RadixCache(clock=lambda: 0.0, host_tier=True)


def put(cache, tokens, namespace=()):
    """Insert tokens under values that are 100 more than they."""
    return cache.insert(Key(tokens, namespace), [token + 100 for token in tokens])


def copied(values):
    """The host values that this file gives for device values: 100 more again."""
    return [value + 100 for value in values]


def back_up(cache):
    for backup in cache.backups():
        assert not list(cache.backed_up(backup, copied(backup.values())))


def lengths(cache, tokens, namespace=()):
    found = cache.match(Key(tokens, namespace))
    return found.length, found.host_length


def tokens_of(cache):
    sizes = cache.sizes
    return sizes.total, sizes.host.total


def protected(cache):
    return cache.sizes.protected, cache.sizes.host.protected


def test_what_was_backed_up_is_found_on_the_host_once_the_device_let_it_go(cache):
    put(cache, [1, 2, 3, 4])
    back_up(cache)
    assert tokens_of(cache) == (4, 4)
    assert cache.evict(4) == [[101, 102, 103, 104]]
    found = cache.match(Key([1, 2, 3, 9]))
    assert (found.length, found.host_length, found.values()) == (0, 3, [])
    assert cache.peek(Key([1, 2, 3, 9])) == 0
    assert cache.peek(Key([1, 2, 3, 9]), tier=Tier.HOST) == 3
    cache.check_integrity()


def test_backups_come_parents_first_and_each_once(cache):
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 5])
    named = [(b.start, b.length, b.values()) for b in cache.backups()]
    assert named[0] == (0, 2, [101, 102])
    assert sorted(named[1:]) == [(2, 1, [105]), (2, 2, [103, 104])]
    assert list(cache.backups()) == []


def test_backups_stops_after_so_many_tokens_and_goes_on_from_there(cache):
    for first in (1, 2, 3, 4):
        put(cache, [first, 0])
    assert [len(cache.backups(limit)) for limit in (0, 1, 4, None)] == [0, 1, 2, 1]


def test_without_a_host_tier_what_needs_one_is_refused_with_the_cure():
    cache = RadixCache()
    found = put(cache, [1, 2, 3])
    for call in (
        cache.backups,
        lambda: cache.evict(1, Tier.HOST),
        lambda: cache.insert(Key([1]), [1], tier=Tier.HOST),
        lambda: cache.load(cache.match(Key([1]))),
    ):
        with pytest.raises(ValueError, match="host_tier=True"):
            call()
    assert found.values() == [101, 102, 103]
    assert cache.match(Key([1, 2, 3])).host_length == 0
    assert (cache.peek(Key([1, 2, 3]), Tier.HOST), cache.sizes.host.total) == (3, 0)


def test_write_through_waits_for_the_nth_use_and_copies_only_what_was_used():
    cache = RadixCache(host_tier=True, write_through=2)
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 3, 4])
    assert list(cache.backups()) == []
    cache.match(Key([1, 2]))
    assert [b.values() for b in cache.backups()] == [[101, 102]]


def test_what_is_being_copied_is_not_evicted_until_the_copy_is_there(cache):
    put(cache, [1, 2, 3, 4])
    (backup,) = cache.backups()
    assert protected(cache) == (4, 0)
    assert cache.evict(4) == []
    cache.backed_up(backup, [1, 2, 3, 4])
    assert protected(cache) == (0, 0)
    assert cache.evict(4) == [[101, 102, 103, 104]]
    assert cache.evict(4, tier=Tier.HOST) == [[1, 2, 3, 4]]
    assert cache.stats.nodes == 0


def test_a_backup_pins_the_host_copies_of_the_path_that_it_hangs_on(cache):
    put(cache, [1, 2])
    back_up(cache)
    put(cache, [1, 2, 3])
    (backup,) = cache.backups()
    assert protected(cache) == (3, 2)
    assert cache.evict(9, tier=Tier.HOST) == []
    cache.backed_up(backup, [203])
    assert cache.evict(9, tier=Tier.HOST) == [[203], [201, 202]]


def test_a_failed_copy_lets_go_of_its_pins_and_is_due_again_at_the_next_use(cache):
    put(cache, [1, 2])
    (backup,) = cache.backups()
    cache.cancel(backup)
    assert (protected(cache), tokens_of(cache)) == ((0, 0), (2, 0))
    cache.match(Key([1, 2]))
    assert [b.values() for b in cache.backups()] == [[101, 102]]


def test_a_copy_whose_parent_has_none_is_declined_as_a_whole(cache):
    put(cache, [1, 2])
    put(cache, [1, 2, 3, 4])
    parent, child = cache.backups()
    cache.cancel(parent)
    assert list(cache.backed_up(child, [203, 204])) == [range(2)]
    assert (protected(cache), tokens_of(cache)) == ((0, 0), (4, 0))
    cache.match(Key([1, 2, 3, 4]))
    assert [b.values() for b in cache.backups()] == [[101, 102], [103, 104]]
    cache.check_integrity()


def test_a_copy_that_ends_before_its_parents_is_declined(cache):
    put(cache, [1, 2])
    put(cache, [1, 2, 3, 4])
    parent, child = cache.backups()
    assert list(cache.backed_up(child, [203, 204])) == [range(2)]
    assert list(cache.backed_up(parent, [201, 202])) == []
    assert tokens_of(cache) == (4, 2)
    cache.match(Key([1, 2, 3, 4]))
    assert [b.values() for b in cache.backups()] == [[103, 104]]


def test_a_parent_whose_copy_failed_is_named_before_what_hangs_below_a_copy_in_flight(cache):
    put(cache, [1])
    put(cache, [1, 2])
    top, middle = cache.backups()
    cache.cancel(top)
    put(cache, [1, 2, 3])
    assert [b.values() for b in cache.backups()] == [[101], [103]]
    assert list(cache.backed_up(middle, [202])) == [range(1)]


def test_a_node_split_while_it_is_copied_takes_the_copy_in_both_halves(cache):
    put(cache, [1, 2, 3, 4, 5])
    (backup,) = cache.backups()
    cache.match(Key([1, 2]))
    cache.match(Key([1, 2, 3]))
    assert backup.values() == [101, 102, 103, 104, 105]
    assert list(cache.backups()) == []
    assert list(cache.backed_up(backup, [201, 202, 203, 204, 205])) == []
    assert (protected(cache), tokens_of(cache)) == ((0, 0), (5, 5))
    cache.evict(9)
    found = cache.match(Key([1, 2, 3, 4]))
    assert cache.load(found).values() == [201, 202, 203, 204]
    cache.check_integrity()


@pytest.mark.parametrize(
    ("tier", "gone", "left"),
    [(Tier.DEVICE, [[104, 105]], (3, 5)), (Tier.HOST, [[204, 205]], (5, 3))],
)
def test_a_node_cut_in_one_tier_stays_whole_in_the_other(cache, tier, gone, left):
    put(cache, [1, 2, 3, 4, 5])
    back_up(cache)
    assert cache.evict(2, tier=tier) == gone
    assert tokens_of(cache) == left
    assert sum(lengths(cache, [1, 2, 3, 4, 5])) == 5
    cache.check_integrity()


def test_a_leaf_of_the_device_may_have_children_on_the_host(cache):
    put(cache, [1, 2])
    put(cache, [1, 2, 3])
    back_up(cache)
    assert cache.evict(1) == [[103]]
    assert cache.evict(1) == [[102]]
    assert lengths(cache, [1, 2, 3]) == (1, 2)
    assert cache.evict(9, tier=Tier.HOST) == [[203], [202], [201]]
    assert lengths(cache, [1, 2, 3]) == (1, 0)
    cache.check_integrity()


def test_an_insert_gives_its_values_to_what_only_the_host_had(cache):
    put(cache, [1, 2, 3, 4])
    back_up(cache)
    cache.evict(2)
    done = cache.insert(Key([1, 2, 3, 4, 5]), [-1, -2, -3, -4, -5])
    assert done.declined == (range(2),)
    assert done.values() == [101, 102, -3, -4, -5]
    assert tokens_of(cache) == (5, 4)
    cache.check_integrity()


def test_an_insert_that_leaves_a_host_part_midway_splits_it(cache):
    put(cache, [1, 2, 3, 4])
    back_up(cache)
    cache.evict(4)
    done = cache.insert(Key([1, 2, 9]), [-1, -2, -9])
    assert (done.declined, done.values()) == ((), [-1, -2, -9])
    assert lengths(cache, [1, 2, 3, 4]) == (2, 2)
    assert tokens_of(cache) == (3, 4)
    cache.check_integrity()


def test_a_load_brings_the_host_part_back(cache):
    put(cache, [1, 2, 3, 4])
    back_up(cache)
    cache.evict(3)
    load = cache.load(cache.match(Key([1, 2, 3, 4])))
    assert (load.start, load.length, load.values()) == (1, 3, [202, 203, 204])
    done = cache.loaded(load, [-2, -3, -4])
    assert (done.length, done.declined, done.values()) == (4, (), [101, -2, -3, -4])
    assert (protected(cache), tokens_of(cache)) == ((0, 0), (4, 4))
    with cache.lock(done):
        assert protected(cache)[0] == 4
    cache.check_integrity()


def test_a_load_pins_both_paths_until_it_is_there(cache):
    put(cache, [1, 2, 3, 4])
    back_up(cache)
    cache.evict(3)
    load = cache.load(cache.match(Key([1, 2, 3])))
    assert protected(cache) == (1, 3)
    assert cache.evict(9) == []
    assert cache.evict(9, tier=Tier.HOST) == [[204]]
    with pytest.raises(CacheInUse):
        cache.reset()
    cache.cancel(load)
    assert protected(cache) == (0, 0)
    assert lengths(cache, [1, 2, 3]) == (1, 2)
    cache.check_integrity()


def test_a_load_declines_what_somebody_inserted_meanwhile(cache):
    put(cache, [1, 2, 3, 4, 5])
    back_up(cache)
    cache.evict(4)
    load = cache.load(cache.match(Key([1, 2, 3, 4, 5])))
    cache.insert(Key([1, 2, 3, 9]), [-1, -2, -3, -9])
    done = cache.loaded(load, [12, 13, 14, 15])
    assert done.declined == (range(2),)
    assert done.values() == [101, -2, -3, 14, 15]
    assert tokens_of(cache) == (6, 5)
    cache.check_integrity()


def test_two_loads_of_one_part_share_what_comes_first(cache):
    put(cache, [1, 2, 3, 4])
    back_up(cache)
    cache.evict(4)
    short = cache.load(cache.match(Key([1, 2])))
    long = cache.load(cache.match(Key([1, 2, 3, 4])))
    assert cache.loaded(short, [11, 12]).declined == ()
    assert cache.loaded(long, [21, 22, 23, 24]).declined == (range(2),)
    assert cache.match(Key([1, 2, 3, 4])).values() == [11, 12, 23, 24]
    assert protected(cache) == (0, 0)


def test_a_load_of_a_host_part_that_left_is_stale(cache):
    put(cache, [1, 2, 3, 4])
    back_up(cache)
    cache.evict(4)
    found = cache.match(Key([1, 2, 3, 4]))
    cache.evict(1, tier=Tier.HOST)
    with pytest.raises(StaleMatch):
        cache.load(found)
    assert protected(cache) == (0, 0)


def test_a_handle_is_stale_once_its_values_left_also_if_others_came_in_their_place(cache):
    found = put(cache, [1, 2, 3])
    back_up(cache)
    cache.evict(3)
    cache.loaded(cache.load(cache.match(Key([1, 2, 3]))), [11, 12, 13])
    with pytest.raises(StaleMatch):
        cache.lock(found)
    assert protected(cache) == (0, 0)


def test_receipts_of_copies_are_used_once(cache):
    put(cache, [1, 2])
    (backup,) = cache.backups()
    cache.backed_up(backup, [201, 202])
    cache.evict(2)
    load = cache.load(cache.match(Key([1, 2])))
    cache.loaded(load, [11, 12])
    for receipt, finish in ((backup, cache.backed_up), (load, cache.loaded)):
        with pytest.raises(LockReleased):
            finish(receipt, [0, 0])
        with pytest.raises(LockReleased):
            cache.cancel(receipt)
    assert (protected(cache), tokens_of(cache)) == ((0, 0), (2, 2))


def test_drop_gives_back_both_tiers_of_one_namespace_and_keeps_what_is_pinned(cache):
    put(cache, [1, 2], ("a",))
    back_up(cache)
    put(cache, [1, 2], ("b",))
    put(cache, [1, 2, 3, 4], ("a",))
    lock = cache.lock(cache.match(Key([1], ("a",))))
    gone = cache.drop(("a",))
    assert sorted(gone) == [[102], [103, 104]]
    assert sorted(gone.host) == [[201], [202]]
    assert lengths(cache, [1, 2, 3, 4], ("a",)) == (1, 0)
    cache.check_integrity()
    cache.unlock(lock)
    gone = cache.drop(("a",))
    assert (list(gone), list(gone.host)) == ([[101]], [])
    assert cache.namespaces == (("b",),)


def test_drop_keeps_the_host_path_that_a_load_reads_from(cache):
    put(cache, [1, 2, 3])
    back_up(cache)
    cache.evict(2)
    load = cache.load(cache.match(Key([1, 2, 3])))
    gone = cache.drop(())
    assert (list(gone), list(gone.host)) == ([], [])
    assert cache.loaded(load, [12, 13]).values() == [101, 12, 13]
    gone = cache.drop(())
    assert sum(map(len, gone)) == sum(map(len, gone.host)) == 3
    assert cache.namespaces == ()


def test_reset_gives_back_both_tiers_and_refuses_while_a_copy_is_under_way(cache):
    put(cache, [1, 2])
    back_up(cache)
    put(cache, [1, 2, 3])
    (backup,) = cache.backups()
    with pytest.raises(CacheInUse):
        cache.reset()
    cache.cancel(backup)
    gone = cache.reset()
    assert sorted(gone) == [[101, 102], [103]]
    assert list(gone.host) == [[201, 202]]
    assert (tokens_of(cache), cache.stats.nodes) == ((0, 0), 0)
    cache.check_integrity()


@pytest.mark.parametrize("values", [[1], [1, 2, 3]])
def test_a_copy_with_more_or_fewer_values_than_tokens_is_refused_and_stays_open(cache, values):
    put(cache, [1, 2])
    (backup,) = cache.backups()
    with pytest.raises(ValueError, match=f"{len(values)} values"):
        cache.backed_up(backup, values)
    cache.backed_up(backup, [201, 202])
    cache.evict(2)
    load = cache.load(cache.match(Key([1, 2])))
    with pytest.raises(ValueError, match=f"{len(values)} values"):
        cache.loaded(load, values)
    assert protected(cache) == (0, 2)
    assert cache.loaded(load, [11, 12]).values() == [11, 12]
    assert protected(cache) == (0, 0)


def test_host_values_can_be_inserted_without_a_device_copy(cache):
    """What a store outside the cache kept comes back this way."""
    put(cache, [1, 2])
    done = cache.insert(Key([1, 2, 3, 4]), [201, 202, 203, 204], tier=Tier.HOST)
    assert done.declined == ()
    assert tokens_of(cache) == (2, 4)
    again = cache.insert(Key([1, 2, 3, 4, 5]), [1, 2, 3, 4, 205], tier=Tier.HOST)
    assert again.declined == (range(4),)
    found = cache.match(Key([1, 2, 3, 4, 5]))
    assert (found.length, found.host_length) == (2, 3)
    assert cache.load(found).values() == [203, 204, 205]
    cache.check_integrity()


def test_a_copy_is_declined_if_the_host_got_values_meanwhile(cache):
    put(cache, [1, 2])
    put(cache, [1, 2, 3])
    first, second = cache.backups()
    cache.insert(Key([1, 2]), [201, 202], tier=Tier.HOST)
    assert cache.backed_up(first, [-1, -2]) == (range(2),)
    assert cache.backed_up(second, [203]) == ()
    assert tokens_of(cache) == (3, 3)
    cache.check_integrity()


def test_each_tier_has_values_of_its_own_type():
    cache = RadixCache(host_tier=True, values="sequence", host_values="sequence")
    cache.insert(Key([1, 2, 3]), [101, 102, 103])
    (backup,) = cache.backups()
    cache.backed_up(backup, (201, 202, 203))
    assert cache.evict(1) == [[103]]
    assert cache.evict(1, tier=Tier.HOST) == [(203,)]
