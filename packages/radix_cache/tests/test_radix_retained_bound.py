"""How much may be retained, and whose marks give way: the oldest ones."""

from __future__ import annotations

import random

import pytest

from phloem.radix_cache import Key, RadixCache


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def put(cache, text, namespace=(), **options):
    return cache.insert(Key(list(text.encode()), namespace), list(text), **options)


def order(cache):
    """What goes, one eviction of one token after another."""
    letters = []
    while gone := cache.evict(1):
        letters.extend(letter for segment in gone for letter in segment)
    return "".join(letters)


def retained(cache, now):
    """Tokens by namespace, counted by walking the tree."""
    counts = {}
    for namespace, root in cache._tree.roots.items():
        nodes = list(root.children.values())
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            if node.retained_until > now:
                counts[namespace] = counts.get(namespace, 0) + node.length
    return counts


def test_the_oldest_marks_of_a_namespace_give_way_to_its_new_ones(clock):
    cache = RadixCache(clock=clock, most_retained=100, most_retained_each=4)
    for letter in "abc":
        put(cache, letter * 2, retain_for=100)
        clock.now += 1
    put(cache, "x")
    cache.check_integrity()
    assert order(cache) == "aaxbbcc"


def test_a_bound_for_each_namespace_needs_none_for_all(clock):
    cache = RadixCache(clock=clock, most_retained_each=2)
    for letter in "abc":
        put(cache, letter * 2, (letter,), retain_for=100)
        clock.now += 1
    put(cache, "dd", ("a",), retain_for=100)
    put(cache, "x")
    assert order(cache) == "aaxbbccdd"


def test_marking_anew_makes_a_mark_new(clock):
    cache = RadixCache(clock=clock, most_retained=4)
    for letter in "abac":
        put(cache, letter * 2, retain_for=100)
        clock.now += 1
    put(cache, "x")
    assert order(cache) == "bbxaacc"


def test_what_all_retain_is_bounded_too(clock):
    cache = RadixCache(clock=clock, most_retained=4, most_retained_each=2)
    for letter in "abc":
        put(cache, letter * 2, (letter,), retain_for=100)
        clock.now += 1
    put(cache, "x")
    assert order(cache) == "aaxbbcc"


def test_the_beginning_of_a_path_is_retained_as_far_as_the_bound_goes(clock):
    cache = RadixCache(clock=clock, most_retained=3)
    put(cache, "ab", retain_for=100)
    put(cache, "abcdef", retain_for=100)
    clock.now = 1
    put(cache, "x")
    assert order(cache) == "fedcxba"


def test_a_mark_whose_time_is_over_takes_no_room(clock):
    cache = RadixCache(clock=clock, most_retained=4)
    put(cache, "aa", retain_for=100)
    put(cache, "bb", retain_for=1)
    clock.now = 2
    put(cache, "cc", retain_for=100)
    put(cache, "x")
    assert order(cache) == "bbxaacc"


def test_a_mark_that_gave_way_may_come_again_for_less_long(clock):
    cache = RadixCache(clock=clock, most_retained=2)
    put(cache, "aa", retain_for=1000)
    put(cache, "bb", retain_for=1000)
    put(cache, "aa", retain_for=5)
    clock.now = 6
    put(cache, "x")
    cache.check_integrity()
    assert order(cache) == "aabbx"


def test_others_keep_what_the_bound_leaves_them(clock):
    cache = RadixCache(clock=clock, most_retained=8, most_retained_each=4)
    room = 16
    for i in range(200):
        clock.now += 1
        put(cache, chr(97 + i % 26) * 2, ("greedy",), retain_for=3600)
        put(cache, "mine!!!!", ("modest",))
        cache.evict(max(0, cache.sizes.total - room))
        assert cache.match(Key(list(b"mine!!!!"), ("modest",))).length == 8


@pytest.mark.parametrize("seed", range(20))
def test_the_bounds_hold_whatever_happens(clock, seed):
    rng = random.Random(seed)
    page, tiered = rng.choice([1, 2, 4]), rng.random() < 0.5
    most, each = rng.choice([(40, 15), (20, 20), (7, 30), (0, 0)])
    cache = RadixCache(
        page,
        rng.choice(["lru", "lfu", "slru"]),
        clock,
        "sequence",
        host_tier=tiered,
        host_values="sequence" if tiered else None,
        most_retained=most,
        most_retained_each=each,
    )
    locks = []
    for _ in range(400):
        clock.now += rng.choice([0.0, 0.5, 3.0])
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 24))]
        key = Key(tokens, (rng.randrange(3),))
        what = rng.random()
        if what < 0.5:
            cache.insert(key, tokens, 0, rng.choice([None, 1.0, 10.0, 1000.0]))
        elif what < 0.65:
            locks.append(cache.lock(cache.match(key)))
        elif what < 0.75 and locks:
            cache.unlock(locks.pop(rng.randrange(len(locks))))
        elif what < 0.95:
            cache.evict(rng.randrange(1, 20))
        elif what < 0.98:
            cache.drop(key.namespace)
        elif not locks:
            cache.reset()
        counts = retained(cache, clock.now)
        assert all(count <= each for count in counts.values())
        assert sum(counts.values()) <= most
        cache.check_integrity()
