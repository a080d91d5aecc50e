"""The order of eviction, policy by policy, in cases small enough to work out by hand."""

import pytest

from phloem.radix_cache import CostAware, Key, RadixCache


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def put(cache, text, **options):
    """Insert the letters of `text` as tokens, and as values."""
    return cache.insert(Key(list(text.encode())), list(text), **options)


def match(cache, text, times=1):
    for _ in range(times):
        cache.match(Key(list(text.encode())))


def order(cache):
    """What goes, one eviction of one token after another."""
    letters = []
    while gone := cache.evict(1):
        letters.extend(letter for segment in gone for letter in segment)
    return "".join(letters)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("lru", "cdbae"),
        ("lfu", "cdaeb"),
        ("fifo", "abcde"),
        ("filo", "edcba"),
        ("mru", "eabdc"),
        ("priority", "cdaeb"),
        ("slru", "cdabe"),
        ("cost", "cdaeb"),
    ],
)
def test_each_policy_lets_the_same_history_go_in_its_own_order(policy, expected, clock):
    """The history leaves behind:

       created  hits  last used  priority
    a        0     1          8         0
    b        1     3          7         2
    c        2     0          2         0
    d        3     0          3         0
    e        4     2          9         1
    """
    cache = RadixCache(policy=policy, clock=clock)
    for created, (letter, priority) in enumerate(zip("abcde", [0, 2, 0, 0, 1])):
        clock.now = created
        put(cache, letter, priority=priority)
    for used, letter in enumerate("bbbaee", start=5):
        clock.now = {"b": 7, "a": 8, "e": 9}.get(letter, used)
        match(cache, letter)
    cache.check_integrity()
    assert order(cache) == expected


@pytest.mark.parametrize(
    "policy", ["lru", "lfu", "fifo", "filo", "mru", "priority", "slru", "cost"]
)
def test_leaves_of_one_rank_go_by_age_under_every_policy(policy, clock):
    cache = RadixCache(policy=policy, clock=clock)
    for letter in "cab":
        put(cache, letter)
    assert order(cache) == "cab"


@pytest.mark.parametrize(
    "policy", ["lru", "lfu", "fifo", "filo", "mru", "priority", "slru", "cost"]
)
def test_a_child_goes_before_its_parent_under_every_policy(policy, clock):
    """However the parent ranks: here by newer use, more hits and a higher priority, or older."""
    for used_last in ["ab", "abcd"]:
        cache = RadixCache(policy=policy, clock=clock)
        put(cache, "ab")
        clock.now += 1
        put(cache, "abcd")
        clock.now += 1
        match(cache, used_last, times=3)
        assert order(cache) == "dcba"


def test_lfu_orders_equal_counts_by_last_use(clock):
    cache = RadixCache(policy="lfu", clock=clock)
    for letter in "abc":
        put(cache, letter)
    for clock.now, letter in [(1, "b"), (2, "a"), (3, "c")]:
        match(cache, letter)
    assert order(cache) == "bac"


def test_slru_protects_from_the_second_hit_on_and_an_insert_is_no_hit(clock):
    cache = RadixCache(policy="slru", clock=clock)
    for letter in "twice", "once", "never":
        put(cache, letter[0])
    for clock.now in (1, 2):
        match(cache, "t")
    clock.now = 3
    match(cache, "o")
    for clock.now in (4, 5, 6):
        put(cache, "n")
    assert order(cache) == "ont"


def test_slru_orders_what_is_protected_by_last_use(clock):
    cache = RadixCache(policy="slru", clock=clock)
    put(cache, "a")
    put(cache, "b")
    for clock.now, letter in enumerate("bbbbbaa"):
        match(cache, letter)
    assert order(cache) == "ba"


def test_fifo_goes_by_the_insert_that_brought_the_tokens_also_after_a_split(clock):
    cache = RadixCache(policy="fifo", clock=clock)
    put(cache, "abcd")
    clock.now = 1
    put(cache, "x")
    clock.now = 2
    match(cache, "ab")
    put(cache, "abcd")
    assert order(cache) == "dcbax"


def test_a_prompt_keeps_its_priority_and_the_output_after_it_goes_first(clock):
    cache = RadixCache(policy="priority", clock=clock)
    put(cache, "prom", priority=2)
    put(cache, "x", priority=1)
    clock.now = 1
    put(cache, "promOUT", priority=0)
    assert order(cache) == "TUO" + "x" + "morp"


def test_a_higher_priority_lifts_the_whole_path_and_nothing_beside_it(clock):
    cache = RadixCache(policy="priority", clock=clock)
    put(cache, "abcd")
    put(cache, "x", priority=1)
    put(cache, "abYZ", priority=2)
    assert order(cache) == "dc" + "x" + "ZYba"
    put(cache, "abcd", priority=1)
    put(cache, "ab", priority=2)
    clock.now = 1
    put(cache, "x", priority=1)
    assert order(cache) == "dc" + "x" + "ba"


def test_what_is_retained_goes_after_all_else_in_policy_order_and_is_never_pinned(clock):
    cache = RadixCache(clock=clock)
    for clock.now, letter in enumerate("abcd"):
        put(cache, letter, retain_for=100 if letter in "ab" else None)
    clock.now = 5
    match(cache, "a")
    assert cache.sizes.protected == 0
    cache.check_integrity()
    assert order(cache) == "cdba"


def test_retention_ends_by_itself_and_at_the_very_moment(clock):
    for waited, expected in [(9, "bcda"), (10, "abcd")]:
        clock.now = 0
        cache = RadixCache(clock=clock)
        put(cache, "a", retain_for=10)
        for clock.now, letter in enumerate("bcd", start=1):
            put(cache, letter)
        clock.now = waited
        cache.check_integrity()
        assert order(cache) == expected


def test_retentions_that_end_at_different_times_fall_back_one_by_one(clock):
    cache = RadixCache(clock=clock)
    for letter, seconds in [("a", 30), ("b", 20), ("c", 10), ("d", None)]:
        put(cache, letter * 2, retain_for=seconds)
        clock.now += 1
    taken = []
    for clock.now in (5, 15, 25, 35):
        taken += ["".join(segment) for segment in cache.evict(1)]
        cache.check_integrity()
    # At 5 only d is free to go, at 15 c joins it, at 25 b, and at 35 a, the least recently used.
    assert taken == ["d", "c", "b", "a"]


def test_retention_is_prolonged_and_never_cut_short(clock):
    cache = RadixCache(clock=clock)
    put(cache, "a", retain_for=10)
    put(cache, "a", retain_for=2)
    put(cache, "a")
    put(cache, "b", retain_for=2)
    clock.now = 1
    put(cache, "b", retain_for=8)
    put(cache, "x")
    clock.now = 8
    assert order(cache) == "xab"


def test_retention_covers_the_path_of_the_key_and_nothing_below_it(clock):
    cache = RadixCache(clock=clock)
    put(cache, "abcd")
    clock.now = 1
    put(cache, "x")
    put(cache, "ab", retain_for=100)
    assert order(cache) == "dc" + "x" + "ba"


def test_both_halves_of_a_split_stay_retained(clock):
    cache = RadixCache(clock=clock)
    put(cache, "abcd", retain_for=10)
    clock.now = 1
    put(cache, "x")
    match(cache, "ab")
    assert order(cache) == "x" + "dc" + "ba"


def test_a_parent_that_joins_the_leaves_brings_no_retention_that_ended(clock):
    cache = RadixCache(clock=clock)
    put(cache, "abcd", retain_for=4)
    put(cache, "abXY")
    put(cache, "x")
    clock.now = 5
    assert ["".join(part) for part in cache.evict(7)] == ["cd", "XY", "ab", "x"]


def test_retention_that_ended_while_a_lock_was_held_does_not_come_back(clock):
    cache = RadixCache(clock=clock)
    with cache.lock(put(cache, "a", retain_for=10)):
        clock.now = 1
        put(cache, "x")
        clock.now = 20
    cache.check_integrity()
    assert order(cache) == "ax"


def test_cost_keeps_tokens_of_equal_hits_the_longer_the_deeper_they_are():
    """A late token costs more to compute again, by its attention over all before it."""
    cache = RadixCache(policy="cost")
    deep, shallow = [1] * 5000 + [2], [3]
    for tokens in (deep, shallow):
        cache.insert(Key(tokens), tokens)
    cache.match(Key(deep[:5000]))
    for tokens in (deep, shallow):
        cache.match(Key(tokens))
    # Per token: [3] 1 + 0.5 / 8192, [2] 1 + 5000.5 / 8192, the ones twice (1 + 2500 / 8192).
    assert cache.evict(2) == [[3], [2]]


def test_cost_forgets_old_hits_as_eviction_raises_the_floor_for_the_new():
    cache = RadixCache(policy=CostAware(cost=lambda start, end: end - start))
    put(cache, "a")
    match(cache, "a", times=2)
    put(cache, "b")
    match(cache, "b")
    assert cache.evict(1) == [["b"]]
    # What is touched now starts at the rank of b, 1: one hit there outweighs none, and makes up
    # for two hits from before.
    put(cache, "c")
    put(cache, "d")
    match(cache, "d")
    assert order(cache) == "cad"


def test_cost_raises_a_node_to_the_floor_again_when_it_is_used():
    cache = RadixCache(policy=CostAware(cost=lambda start, end: end - start))
    put(cache, "a")
    put(cache, "b")
    match(cache, "b", times=3)
    assert cache.evict(1) == [["a"]]
    put(cache, "c")
    match(cache, "c", times=2)
    put(cache, "d")
    match(cache, "d", times=4)
    assert cache.evict(1) == [["c"]]
    put(cache, "b")
    # b: floor 2, 3 hits; d: floor 0, 4 hits.
    assert order(cache) == "db"


def test_cost_divides_by_the_tokens_that_come_free():
    cache = RadixCache(policy=CostAware(cost=lambda start, end: 12.0))
    for text in ("aaa", "bb", "cccc"):
        put(cache, text)
        match(cache, text)
    assert [len(cache.evict(n)[0]) for n in (4, 3, 2)] == [4, 3, 2]


def test_one_policy_object_serves_two_caches_that_age_apart():
    policy = CostAware(cost=lambda start, end: end - start)
    one, other = RadixCache(policy=policy), RadixCache(policy=policy)
    put(one, "a")
    match(one, "a", times=5)
    one.evict(1)
    for cache in (one, other):
        put(cache, "x")
        match(cache, "x")
        put(cache, "y")
    assert [order(one), order(other)] == ["yx", "yx"]
    put(other, "x")
    match(other, "x", times=3)
    other.check_integrity()
