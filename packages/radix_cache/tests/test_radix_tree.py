import gc
import random
import sys
import threading
import weakref

import numpy as np
import pytest

from phloem.radix_cache import (
    CacheInUse,
    IntegrityError,
    Key,
    LockReleased,
    Lru,
    RadixCache,
    SequenceValues,
    StaleMatch,
    Tier,
)
from phloem.radix_cache.reading import peek_once


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cache(clock):
    return RadixCache(clock=clock)


def put(cache, tokens, namespace=()):
    """Insert tokens under values that are 100 more than they."""
    return cache.insert(Key(tokens, namespace), [token + 100 for token in tokens])


def test_a_match_gives_the_values_of_the_longest_cached_prefix(cache):
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 7, 8, 9])
    found = cache.match(Key([1, 2, 7, 8, 5]))
    assert found.length == 4
    assert found.values() == [101, 102, 107, 108]
    cache.check_integrity()


def test_insert_declines_the_values_of_what_was_cached(cache):
    first = put(cache, [1, 2, 3])
    assert (first.length, first.declined) == (3, ())
    second = cache.insert(Key([1, 2, 3, 4, 5]), [-1, -2, -3, -4, -5])
    assert (second.length, second.declined) == (5, (range(3),))
    assert second.values() == [101, 102, 103, -4, -5]
    third = cache.insert(Key([1, 2]), [0, 0])
    assert (third.length, third.declined) == (2, (range(2),))
    assert cache.sizes.total == 5


def test_values_past_the_last_whole_page_stay_with_the_caller():
    cache = RadixCache(page_size=4)
    done = cache.insert(Key(range(10)), list(range(12)))
    assert (done.length, done.declined) == (8, ())
    assert done.values() == list(range(8))


def test_too_few_values_are_refused_before_anything_changes():
    cache = RadixCache(page_size=4)
    cache.insert(Key([1, 2, 3, 4, 5, 6, 7, 8]), list(range(8)))
    before = cache.render()
    with pytest.raises(ValueError, match=r"7 values were given for a key of 9 tokens.*need 8"):
        cache.insert(Key([1, 2, 3, 4, 0, 0, 0, 0, 0]), list(range(7)))
    assert cache.render() == before
    cache.insert(Key(range(9)), list(range(8)))


def test_the_caller_may_reuse_the_container_it_inserted_from():
    cache = RadixCache(values="numpy")
    row = np.arange(8, dtype=np.int32)
    done = cache.insert(Key(range(4)), row[:4])
    row[:] = -1
    done.values()[:] = -2
    assert done.values().tolist() == [0, 1, 2, 3]


def test_a_locked_node_and_its_path_survive_evicting_everything(cache):  # RC-01
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 3, 4, 5, 6])
    lock = cache.lock(cache.match(Key([1, 2, 3, 4, 5, 6])))
    assert cache.evict(100) == []
    assert cache.sizes.protected == 6
    cache.unlock(lock)
    assert cache.sizes.evictable == 6
    assert cache.evict(100) == [[105, 106], [101, 102, 103, 104]]


def test_a_match_refreshes_only_the_part_that_it_matched(cache, clock):  # RC-03
    put(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    clock.now = 1
    put(cache, [9, 10, 11, 12])
    clock.now = 2
    cache.match(Key([1, 2, 3, 4]))
    assert cache.evict(4) == [[105, 106, 107, 108]]
    assert cache.evict(4) == [[109, 110, 111, 112]]


def test_a_second_insert_of_the_same_tokens_leads_to_the_first_ones_values():  # RC-04
    cache = RadixCache(page_size=4, values="numpy")
    key = Key(range(16))
    first, second = np.arange(16, dtype=np.int32), np.arange(16, 32, dtype=np.int32)
    cache.insert(key, first)
    done = cache.insert(key, second)
    rows = [second[part] for part in done.declined]
    assert np.concatenate(rows).tolist() == list(range(16, 32))
    assert done.values().tolist() == first.tolist()


@pytest.mark.parametrize(
    ("page_size", "tokens"), [(64, 63), *((4, tokens) for tokens in range(10))]
)
def test_keys_are_cut_to_whole_pages(page_size, tokens):  # RC-05
    cache = RadixCache(page_size=page_size)
    key = Key(range(tokens))
    whole = tokens // page_size * page_size
    assert cache.match(key).length == 0
    assert cache.insert(key, list(range(tokens))).length == whole
    assert cache.match(key).length == whole
    assert cache.peek(key) == whole
    assert cache.stats.nodes == bool(whole)
    cache.check_integrity()


def test_a_match_splits_so_that_a_lock_pins_no_more_than_it_covers(cache):  # RC-07
    put(cache, range(10))
    lock = cache.lock(cache.match(Key(range(4))))
    assert cache.sizes.protected == 4
    put(cache, [0, 1, 2, 3, 4, 5, 60])
    assert cache.sizes.protected == 4
    cache.unlock(lock)
    cache.evict(100)
    assert cache.sizes.total == 0
    assert cache.stats.nodes == 0
    cache.check_integrity()


@pytest.mark.parametrize(
    ("one", "other"), [(("a", "bc"), ("ab", "c")), ((None,), ("",)), ((), (None,)), ((1,), ("1",))]
)
def test_namespaces_never_share(cache, one, other):  # RC-10
    put(cache, [1, 2, 3], one)
    assert cache.match(Key([1, 2, 3], other)).length == 0
    assert cache.peek(Key([1, 2, 3], other)) == 0
    assert cache.insert(Key([1, 2, 3], other), [0, 0, 0]).declined == ()
    assert cache.match(Key([1, 2, 3], one)).values() == [101, 102, 103]


def test_tokens_that_collide_under_a_polynomial_hash_stay_apart():  # RC-11
    cache = RadixCache(page_size=4)
    put(cache, [10, 40, 7, 9])
    assert cache.match(Key([41, 39, 7, 9])).length == 0
    assert cache.match(Key([10, 71, 6, 9])).length == 0


def test_split_keeps_the_lock_of_both_halves(cache):
    whole = put(cache, range(8))
    lock = cache.lock(whole)
    half = cache.match(Key(range(4)))
    assert (half.node.device.locks, whole.node.device.locks) == (1, 1)
    assert half.node is not whole.node
    assert cache.evict(8) == []
    other = cache.lock(half)
    cache.unlock(lock)
    assert cache.evict(8) == [[104, 105, 106, 107]]
    cache.unlock(other)
    assert cache.evict(8) == [[100, 101, 102, 103]]
    cache.check_integrity()


def test_split_keeps_age_creation_and_hits_of_both_halves(cache, clock):
    whole = put(cache, range(8))
    cache.match(Key(range(8)))
    clock.now = 5
    half = put(cache, range(4))
    assert (half.node.created, half.node.age, half.node.hits) == (0, whole.node.age, 1)
    assert (half.node.last_access, whole.node.last_access) == (5, 0)


def test_a_handle_lives_through_splits_of_its_node(cache):
    found = put(cache, range(8))
    cache.match(Key(range(4)))
    cache.match(Key(range(2)))
    assert found.values() == list(range(100, 108))
    with cache.lock(found) as lock:
        assert lock.values() == list(range(100, 108))
        assert cache.sizes.protected == 8


def test_matches_count_hits_and_inserts_do_not(cache):
    put(cache, range(4))
    done = put(cache, range(4))
    cache.match(Key(range(4)))
    assert done.node.hits == 1
    stats = cache.stats
    assert (stats.lookups, stats.lookup_tokens, stats.hit_tokens, stats.hit_rate) == (1, 4, 4, 1.0)
    assert (stats.inserted_tokens, stats.declined_tokens) == (4, 4)


def test_locking_a_match_whose_node_was_evicted_is_stale(cache):
    found = put(cache, range(4))
    cache.evict(4)
    with pytest.raises(StaleMatch, match="4 tokens"):
        cache.lock(found)
    with pytest.raises(StaleMatch):
        found.values()
    put(cache, range(4))
    with pytest.raises(StaleMatch):
        cache.lock(found)


def test_locking_a_match_whose_tail_was_evicted_is_stale(cache):
    found = put(cache, range(8))
    cache.evict(2)
    with pytest.raises(StaleMatch, match="8 tokens"):
        cache.lock(found)
    put(cache, range(8))
    with pytest.raises(StaleMatch):
        cache.lock(found)
    assert cache.sizes.protected == 0
    assert cache.lock(cache.match(Key(range(6)))).length == 6


@pytest.mark.parametrize("empty", [lambda c: c.reset(), lambda c: c.drop(("a",))])
def test_locking_a_match_from_before_a_reset_or_drop_is_stale(cache, empty):
    found = put(cache, range(4), ("a",))
    empty(cache)
    with pytest.raises(StaleMatch):
        cache.lock(found)


def test_a_match_of_nothing_gives_a_receipt_that_locks_nothing(cache):
    found = cache.match(Key([1, 2]))
    assert found.values() == ()
    put(cache, [1, 2])
    lock = cache.lock(found)
    assert (lock.length, cache.sizes.protected) == (0, 0)
    assert cache.evict(2) == [[101, 102]]
    cache.unlock(lock)
    with pytest.raises(LockReleased):
        cache.unlock(lock)


def test_unlocking_twice_raises_and_changes_nothing(cache):
    lock = cache.lock(put(cache, range(4)))
    second = cache.lock(cache.match(Key(range(4))))
    cache.unlock(lock)
    with pytest.raises(LockReleased, match="4 tokens"):
        cache.unlock(lock)
    assert cache.sizes.protected == 4
    cache.unlock(second)
    cache.check_integrity()


def test_a_lock_is_released_at_the_end_of_its_with_block_also_by_an_error(cache):
    found = put(cache, range(4))
    with pytest.raises(KeyError), cache.lock(found):
        {}["missing"]
    assert cache.sizes.protected == 0


def test_handles_and_locks_of_another_cache_are_refused(cache):
    other = RadixCache()
    found = put(other, range(4))
    with pytest.raises(ValueError, match="another cache"):
        cache.lock(found)
    with pytest.raises(ValueError, match="another cache"):
        cache.unlock(other.lock(found))


def test_evict_takes_whole_pages_off_the_tail_and_at_most_one_too_many():
    cache = RadixCache(page_size=4)
    cache.insert(Key(range(16)), list(range(16)))
    assert cache.evict(5) == [list(range(8, 16))]
    assert cache.match(Key(range(16))).length == 8
    assert cache.evict(0) == []
    assert cache.evict(-3) == []
    assert cache.evict(1000) == [list(range(8))]
    assert cache.evict(1) == []
    cache.check_integrity()


def test_leaves_of_equal_rank_go_by_age_and_a_parent_joins_when_its_children_are_gone(cache):
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4])
    put(cache, [5])
    assert cache.evict(100) == [[103], [104], [101, 102], [105]]


def test_a_parent_joins_the_leaves_at_its_own_rank(cache, clock):
    put(cache, [1, 2])
    put(cache, [1, 2, 3])
    clock.now = 1
    put(cache, [7])
    assert cache.evict(4) == [[103], [101, 102], [107]]


def test_a_policy_of_ones_own_decides_the_order():
    class Longest:
        name = "longest"

        def rank(self, node):
            return -node.length

    cache = RadixCache(policy=Longest())
    put(cache, [1])
    put(cache, [2, 3, 4, 5])
    put(cache, [6, 7, 8])
    cache.check_integrity()
    assert cache.evict(2) == [[104, 105]]
    cache.match(Key([6]))
    cache.check_integrity()
    assert cache.evict(2) == [[102, 103]]


def test_drop_empties_one_namespace_and_keeps_what_is_locked(cache):
    put(cache, [1, 2, 3, 4], ("a",))
    put(cache, [1, 2, 7], ("a",))
    put(cache, [1, 2], ("b",))
    lock = cache.lock(cache.match(Key([1, 2], ("a",))))
    assert sorted(cache.drop(("a",))) == [[103, 104], [107]]
    assert cache.namespaces == (("a",), ("b",))
    assert cache.peek(Key([1, 2, 3, 4], ("a",))) == 2
    cache.check_integrity()
    cache.unlock(lock)
    assert cache.drop(("a",)) == [[101, 102]]
    assert cache.namespaces == (("b",),)
    assert cache.drop(("a",)) == []
    assert cache.sizes.total == 2


def test_reset_gives_everything_back_and_refuses_while_anything_is_locked(cache):
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4], ("a",))
    lock = cache.lock(cache.match(Key([1, 2])))
    with pytest.raises(CacheInUse, match="2 tokens are locked"):
        cache.reset()
    assert cache.sizes.total == 6
    cache.unlock(lock)
    assert sorted(cache.reset()) == [[101, 102], [101, 102, 104], [103]]
    assert (cache.sizes.total, cache.namespaces, cache.stats.nodes) == (0, (), 0)
    cache.check_integrity()


def test_a_stale_handle_keeps_no_values_alive():
    cache = RadixCache(values="numpy")
    found = cache.insert(Key(range(4)), np.arange(4, dtype=np.int32))
    (gone,) = cache.evict(4)
    watched = weakref.ref(gone)
    del gone
    gc.collect()
    assert watched() is None
    assert found.length == 4


def test_a_path_of_many_nodes_is_handled_without_recursion(cache):
    for length in range(1, 3000):
        cache.insert(Key(range(length)), list(range(length)))
    found = cache.match(Key(range(3000)))
    with cache.lock(found):
        assert found.values() == list(range(2999))
    cache.check_integrity()
    assert len(cache.render().splitlines()) == 3000
    assert len(cache.reset()) == 2999


def test_render_shows_the_tree(cache):
    put(cache, [1, 2, 3, 4, 5, 6, 7, 8], ("a",))
    put(cache, [1, 2, 9], ("a",))
    assert cache.render() == (
        "namespace ('a',)\n"
        "  [0, 2) 1 2  locks=0 hits=0\n"
        "    [2, 8) 3 4 5 6 7 8  locks=0 hits=0\n"
        "    [2, 3) 9  locks=0 hits=0"
    )


def test_the_integrity_check_sees_what_is_wrong(cache):
    done = put(cache, range(8))
    done.node.device.locks = 1
    with pytest.raises(IntegrityError, match=r"locks=1 .* stands in the index"):
        cache.check_integrity()
    done.node.device.locks = 0
    done.node.last_access = 3.0
    put(cache, [50])
    with pytest.raises(IntegrityError, match="order"):
        cache.check_integrity()
    cache.match(Key(range(8)))
    cache.check_integrity()
    done.node.device.values.pop()
    with pytest.raises(IntegrityError, match="not as many values"):
        cache.check_integrity()


def test_bad_options_are_refused_with_what_is_known():
    with pytest.raises(ValueError, match="page_size 0"):
        RadixCache(page_size=0)
    with pytest.raises(ValueError, match="policy 'newest' is unknown: use lru"):
        RadixCache(policy="newest")
    with pytest.raises(ValueError, match="values 'jax' is unknown: use sequence, numpy, torch"):
        RadixCache(values="jax")
    assert isinstance(RadixCache().policy, Lru)
    assert isinstance(RadixCache(values=SequenceValues()), RadixCache)


def test_peek_at_every_line_of_a_writer_sees_the_tree_before_or_after(clock):
    """Interrupts every line of split, trim, remove and grow with one attempt at a peek."""
    ones = [1] * 8
    keys = [Key([1] * n + [2]) for n in range(9)] + [Key([1] * 30)]

    def run(write, before, after, steps=False):
        seen = []

        def trace(frame, event, _):
            if event == "line" and not frame.f_code.co_name.startswith("peek"):
                sys.settrace(None)
                seen.append(
                    [peek_once(cache._tree.roots.get(()), key, 1, Tier.DEVICE) for key in keys]
                )
                sys.settrace(trace)
            return trace

        sys.settrace(trace)
        try:
            write()
        finally:
            sys.settrace(None)
        assert seen[0] == before
        for row in seen:
            for got, old, new in zip(row, before, after):
                assert got in {None, old, new} or (steps and new < got < old)

    cache = RadixCache(page_size=1, clock=clock)
    put(cache, ones)
    all_ones = [*range(9), 8]
    with_two = [0, 1, 2, 4, 4, 5, 6, 7, 8, 8]
    cut_to_six = [0, 1, 2, 4, 4, 5, 6, 6, 6, 6]
    cut_to_three = [0, 1, 2, 4] + [3] * 6
    run(lambda: put(cache, [1, 1, 1, 2]), all_ones, with_two)
    clock.now = 1
    cache.match(Key([1, 1, 1, 2]))
    run(lambda: cache.evict(2), with_two, cut_to_six)
    run(lambda: cache.evict(3), cut_to_six, cut_to_three)
    run(lambda: cache.reset(), cut_to_three, [0] * 10, steps=True)


def test_peek_and_render_run_beside_a_writing_thread():
    cache = RadixCache(page_size=2)
    failed = []

    def write():
        draw = random.Random(0)
        try:
            for _ in range(3000):
                put(cache, [1] * draw.randrange(2, 40))
                put(cache, [1] * draw.randrange(0, 40, 2) + [2] * draw.randrange(2, 6))
                cache.evict(draw.randrange(30))
            cache.check_integrity()
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        writer.start()
        # A peek that follows nodes wrongly goes past the longest run of ones, or past a 3.
        keys = {n: Key([1] * n + [3, 3] + [1] * 8) for n in range(0, 40, 2)}
        while writer.is_alive():
            assert cache.peek(Key([1] * 200)) <= 38
            for n, key in keys.items():
                assert cache.peek(key) <= n
            cache.render()
            sizes = cache.sizes
            assert sizes.total == sizes.evictable + sizes.protected >= 0
    finally:
        writer.join()
        sys.setswitchinterval(interval)
    assert not failed


def test_dfs_order_takes_the_heavier_subtree_first(cache):
    for tokens in ([1, 2, 3], [1, 2, 4], [5, 6]):
        put(cache, tokens)
    asked = [[5, 6], [1, 2, 4], [1, 2, 3], [1, 2, 3]]
    nodes = [cache.match(Key(tokens)).node for tokens in asked]
    assert cache.dfs_order(nodes) == [2, 3, 1, 0]


def test_a_refused_insert_decides_nothing_about_values():
    cache = RadixCache()
    with pytest.raises(ValueError, match="1 values were given"):
        cache.insert(Key([1, 2, 3]), [1])
    values = np.arange(3)
    cache.insert(Key([1, 2, 3]), values)
    values[:] = 99
    assert cache.match(Key([1, 2, 3])).values().tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="values of type ndarray, and list was given"):
        cache.insert(Key([7, 8]), [1, 2])
    cache.check_integrity()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"priority": "a"}, TypeError),
        ({"priority": None}, TypeError),
        ({"retain_for": 0}, ValueError),
        ({"retain_for": float("nan")}, ValueError),
        ({"retain_for": 10**400}, ValueError),
    ],
)
def test_options_that_cannot_be_used_are_refused_before_anything_changes(options, error):
    cache = RadixCache(policy="priority")
    with pytest.raises(error):
        cache.insert(Key([1, 2, 3]), [1, 2, 3], **options)
    assert cache.sizes.total == 0
    cache.check_integrity()


def test_what_was_retained_and_is_gone_is_not_remembered(cache):
    for _ in range(1000):
        cache.insert(Key([1, 2, 3]), [1, 2, 3], retain_for=float("inf"))
        cache.reset()
    gc.collect()
    assert len(cache._tree.device.leaves._expiries) < 100


def test_what_left_the_tree_is_due_for_no_backup():
    cache = RadixCache(host_tier=True)
    for token in range(100):
        cache.insert(Key([token]), [token])
        cache.evict(1)
    assert not cache._host._due
    assert cache.backups() == []


def test_a_receipt_of_another_kind_is_refused_and_can_still_be_given_back():
    cache = RadixCache(host_tier=True)
    cache.insert(Key([1, 2]), [1, 2])
    (backup,) = cache.backups()
    lock = cache.lock(cache.match(Key([1])))
    with pytest.raises(TypeError, match="a backup was given where a lock"):
        cache.unlock(backup)
    with pytest.raises(TypeError, match="a backup was given where a load"):
        cache.loaded(backup, [1, 2])
    with pytest.raises(TypeError, match="a lock was given where a transfer"):
        cache.cancel(lock)
    cache.backed_up(backup, [5, 6])
    cache.unlock(lock)
    cache.check_integrity()
    assert len(cache.reset().host) == 2


def test_a_handle_of_the_host_tier_says_so():
    cache = RadixCache(host_tier=True)
    done = cache.insert(Key([1, 2]), [1, 2], tier=Tier.HOST)
    with pytest.raises(StaleMatch, match="host tier only"):
        cache.lock(done)


def test_nothing_to_load_is_said_so():
    cache = RadixCache(host_tier=True)
    cache.insert(Key([1, 2]), [1, 2])
    with pytest.raises(ValueError, match="nothing to load"):
        cache.load(cache.match(Key([1, 2])))


@pytest.mark.parametrize("broken", [1, 2, 3, 4])
def test_an_adapter_that_raises_in_a_split_of_two_tiers_changes_nothing(broken):
    class Breaks(SequenceValues):
        left = None

        def cut(self, values, start, stop):
            if self.left is not None:
                self.left -= 1
                if not self.left:
                    raise RuntimeError("broken")
            return super().cut(values, start, stop)

    adapter = Breaks()
    cache = RadixCache(values=adapter, host_values=adapter, host_tier=True)
    cache.insert(Key([1, 2, 3, 4]), [1, 2, 3, 4])
    (backup,) = cache.backups()
    cache.backed_up(backup, [5, 6, 7, 8])
    adapter.left = broken
    with pytest.raises(RuntimeError, match="broken"):
        cache.match(Key([1, 2]))
    adapter.left = None
    cache.check_integrity()
    assert cache.match(Key([1, 2, 3, 4])).values() == [1, 2, 3, 4]


def test_a_clock_that_goes_back_leaves_the_tree_whole(cache, clock):
    clock.now = 100
    put(cache, [1, 2, 3])
    clock.now = 50
    cache.match(Key([1]))
    cache.evict_idle(60)
    cache.check_integrity()


def test_the_floor_of_the_cost_policy_never_falls(clock):
    cache = RadixCache(policy="cost", clock=clock)
    draw = random.Random(1)
    floor = 0.0
    for clock.now in range(500):
        tokens = [draw.randrange(3) for _ in range(draw.randrange(1, 8))]
        put(cache, tokens)
        cache.match(Key(tokens))
        cache.evict(draw.randrange(4))
        assert cache._tree.floor >= floor
        floor = cache._tree.floor
    assert floor > 0


def test_a_namespace_that_no_key_has_cannot_be_dropped(cache):
    with pytest.raises(TypeError, match="tuple"):
        cache.drop("abc")
    with pytest.raises(TypeError, match="bool"):
        cache.drop((True,))
