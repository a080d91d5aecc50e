"""Cases of bugs met in other prefix caches, where they go beyond the plain form in other files.

The plain ones: RC-01, 03, 04, 05, 07, 10 and 11 in `test_radix_tree.py`, RC-04 with
a pool and rows in mem_pool's `test_manager.py`, RC-06 under random operation in
`test_radix_model.py`, RC-10 over HTTP in the server's tests, and RC-11 for hash chains in the tests
of events.
"""

import itertools
import os
import random
import subprocess
import sys

import pytest

from phloem.radix_cache import POLICY_NAMES, Key, RadixCache, Tier


def put(cache, tokens, namespace=(), **options):
    """Insert tokens under values that are 100 more than they."""
    tokens = list(tokens)
    return cache.insert(Key(tokens, namespace), [token + 100 for token in tokens], **options)


def back_up(cache):
    for backup in cache.backups():
        cache.backed_up(backup, backup.values())


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_lock_on_the_end_of_a_path_keeps_all_of_it_under_every_policy(policy):
    """RC-01, where the lower node would go first as well as where the upper one would."""
    now = itertools.count()
    cache = RadixCache(policy=policy, clock=lambda: next(now))
    put(cache, [1, 2])
    put(cache, [1, 2, 3, 4])
    put(cache, [7, 8])
    for matched in [[1, 2], [1, 2, 3, 4]]:
        lock = cache.lock(cache.match(Key([1, 2, 3, 4])))
        cache.match(Key(matched))
        cache.evict(100)
        assert cache.match(Key([1, 2, 3, 4])).values() == [101, 102, 103, 104]
        cache.unlock(lock)
        assert cache.sizes.evictable == cache.sizes.total == 4
    assert cache.evict(100) == [[103, 104], [101, 102]]


def test_a_lock_keeps_a_path_on_the_device_that_the_host_has_too():
    """RC-01, where a copy below the device would be a reason to let the device's go."""
    cache = RadixCache(host_tier=True)
    put(cache, [1, 2])
    put(cache, [1, 2, 3, 4])
    back_up(cache)
    with cache.lock(cache.match(Key([1, 2, 3, 4]))):
        assert cache.evict(100) == []
        assert sum(map(len, cache.evict(100, Tier.HOST))) == 4
        assert cache.match(Key([1, 2, 3, 4])).length == 4
    assert cache.evict(100) == [[103, 104], [101, 102]]


@pytest.mark.parametrize("use", ["match", "insert"])
@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "cost"])
def test_a_use_of_the_front_of_a_node_makes_its_rest_no_younger(policy, use):
    """RC-03, by a match and by an insert that ends there, and where hits count."""
    now = itertools.count()
    cache = RadixCache(policy=policy, clock=lambda: next(now))
    put(cache, range(1, 9))
    put(cache, range(9, 13))
    for _ in range(3):
        if use == "match":
            cache.match(Key(range(1, 5)))
        else:
            put(cache, range(1, 5))
    assert cache.evict(4) == [[105, 106, 107, 108]]


@pytest.mark.parametrize(("page_size", "longest"), [(64, 63), (4, 9)])
def test_keys_shorter_than_a_page_leave_nothing_behind_that_a_longer_one_could_meet(
    page_size, longest
):
    """RC-05, in both tiers and in any order of lengths."""
    cache = RadixCache(page_size=page_size, host_tier=True)
    for length in [*range(longest + 1), *range(longest, -1, -1)]:
        whole = length - length % page_size
        for tier in Tier:
            put(cache, range(length), tier=tier)
        found = cache.match(Key(range(length)))
        assert found.length == cache.peek(Key(range(length))) == whole
        with cache.lock(found):
            assert cache.sizes.protected == whole
        cache.check_integrity()
    short = Key(range(page_size - 1), ("other",))
    assert cache.insert(short, list(range(page_size - 1))).node is not cache.match(short).node
    assert ("other",) not in cache.namespaces
    for tier in Tier:
        cache.evict(1000, tier)
    assert (cache.sizes.total, cache.stats.nodes, cache.namespaces) == (0, 0, ())
    put(cache, range(2 * page_size))
    assert cache.match(Key(range(2 * page_size))).length == 2 * page_size


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("seed", range(3))
def test_free_cached_and_held_slots_add_up_to_the_pool_at_every_moment(page_size, seed):
    """RC-06: a little engine with a pool of slots, whose requests come, end and are taken back."""
    draw = random.Random(seed)
    total = 40 * page_size
    cache = RadixCache(page_size, draw.choice(POLICY_NAMES), values="sequence")
    free, running = list(range(total)), []

    def account():
        sizes = cache.sizes
        held = sum(len(slots) for *_, slots in running)
        assert min(sizes.evictable, sizes.protected) >= 0
        assert len(free) + sizes.evictable + sizes.protected + held == total
        owned = [slot for part in cache.iter_values() for slot in part]
        everywhere = free + owned + [slot for *_, slots in running for slot in slots]
        assert sorted(everywhere) == list(range(total))

    for _ in range(200):
        if draw.random() < 0.5 and len(running) < 6:
            tokens = [0] * draw.randrange(8 * page_size) + [draw.randrange(3)] * (2 * page_size)
            key = Key(tokens, draw.choice([(), ("a",)]))
            lock = cache.lock(cache.match(key))
            needed = len(key) - lock.length
            if needed > len(free):
                for segment in cache.evict(needed - len(free)):
                    free += segment
            account()
            if needed > len(free):
                cache.unlock(lock)
            else:
                running.append((key, lock, [free.pop() for _ in range(needed)]))
        elif running:
            key, lock, slots = running.pop(draw.randrange(len(running)))
            if draw.random() < 0.7:
                values = lock.values() + slots
                done = cache.insert(key, values)
                back = [values[at] for part in done.declined for at in part if at >= lock.length]
                free += back + values[done.length :]
            else:
                free += slots
            cache.unlock(lock)
        account()
    cache.check_integrity()


@pytest.mark.parametrize("first_out", [0, 1, 2])
def test_after_all_locks_around_a_split_are_gone_everything_can_go(first_out):
    """RC-07, with a lock on each of the parts that two splits make, and any order of unlocking."""
    cache = RadixCache()
    locks = [cache.lock(put(cache, range(10)))]
    locks.append(cache.lock(cache.match(Key(range(4)))))
    locks.append(cache.lock(put(cache, [0, 1, 2, 3, 4, 5, 60])))
    assert cache.sizes.protected == 11
    for lock in locks[first_out:] + locks[:first_out]:
        assert cache.evict(0) == []
        cache.unlock(lock)
        cache.check_integrity()
    assert cache.sizes.evictable == 11
    assert sum(map(len, cache.evict(100))) == 11
    assert cache.stats.nodes == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", "bc"), ("ab", "c")), ((None,), ("",)), ((), ("",)), ((1,), ("1",)), ((), ((),))],
)
def test_namespaces_share_nothing_in_any_tier_and_one_is_dropped_without_the_other(one, other):
    """RC-10."""
    cache = RadixCache(host_tier=True)
    put(cache, [1, 2, 3], one)
    back_up(cache)
    cache.evict(1)
    assert cache.peek(Key([1, 2, 3], other), Tier.HOST) == 0
    found = cache.match(Key([1, 2, 3], other))
    assert (found.length, found.host_length) == (0, 0)
    assert put(cache, [1, 2, 3], other).declined == ()
    gone = cache.drop(other)
    assert (list(gone), list(gone.host)) == ([[101, 102, 103]], [])
    found = cache.match(Key([1, 2, 3], one))
    assert (found.length, found.host_length) == (2, 1)
    assert cache.namespaces == (one,)


def test_blocks_that_collide_under_a_polynomial_hash_are_kept_apart_at_every_position():
    """RC-11: the tree compares tokens, so that no two pages are ever taken for one."""
    block = [random.Random(0).randrange(1000) for _ in range(16)]
    blocks = [block]
    for at in range(15):
        twin = block.copy()
        twin[at] += 31
        twin[at + 1] -= 1
        blocks.append(twin)
    cache = RadixCache(page_size=16)
    for number, tokens in enumerate(blocks):
        assert cache.peek(Key(tokens)) == 0
        assert cache.insert(Key(tokens), [number] * 16).declined == ()
    for number, tokens in enumerate(blocks):
        assert cache.match(Key(tokens)).values() == [number] * 16


def test_nothing_that_is_seen_from_outside_depends_on_the_hash_seed():
    """RC-11."""
    script = (
        "from phloem.radix_cache import Key, RadixCache\n"
        "cache = RadixCache(host_tier=True, clock=lambda: 0.0)\n"
        "for name in ('a', 'b', None, b'c', 'd', 5):\n"
        "    for last in range(5):\n"
        "        cache.insert(Key([1, 2, last], (name, 'x')), [name] * 3)\n"
        "print([b.values() for b in cache.backups(30)])\n"
        "print(cache.namespaces, cache.render())\n"
        "print(cache.evict(20), cache.drop(('b', 'x')))\n"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    ]
    assert len(printed[0]) > 1000
    assert printed[0] == printed[1] == printed[2]
