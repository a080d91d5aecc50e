"""What was not used for long goes, and nothing else does; what a tier holds can be asked for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.radix_cache import Key, LockReleased, RadixCache, Tier


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cache(clock):
    return RadixCache(clock=clock, host_tier=True)


def put(cache, tokens, namespace=(), **options):
    return cache.insert(Key(tokens, namespace), [token + 100 for token in tokens], **options)


def back_up(cache):
    for backup in cache.backups():
        cache.backed_up(backup, [value + 100 for value in backup.values()])


def test_only_what_was_last_used_before_goes(cache, clock):
    put(cache, [1, 2, 3, 4])
    clock.now = 5.0
    put(cache, [1, 2, 9])
    gone = cache.evict_idle(5.0)
    assert list(gone) == [[103, 104]]
    assert cache.peek(Key([1, 2, 3, 4])) == 2
    assert cache.peek(Key([1, 2, 9])) == 3
    assert cache.stats.evicted_tokens == 2
    cache.check_integrity()


def test_both_tiers_let_go(cache, clock):
    put(cache, [1, 2, 3])
    back_up(cache)
    put(cache, [7], namespace=("a",))
    clock.now = 1.0
    gone = cache.evict_idle(1.0)
    assert sorted(gone) == [[101, 102, 103], [107]]
    assert gone.host == [[201, 202, 203]]
    assert cache.namespaces == ()
    cache.check_integrity()


def test_what_is_locked_or_retained_stays(cache, clock):
    lock = cache.lock(put(cache, [1, 2]))
    put(cache, [1, 2, 3])
    put(cache, [5, 6], retain_for=10.0)
    clock.now = 9.0
    assert list(cache.evict_idle(9.0)) == [[103]]
    clock.now = 10.0
    assert list(cache.evict_idle(10.0)) == [[105, 106]]
    cache.unlock(lock)
    assert list(cache.evict_idle(10.0)) == [[101, 102]]


def test_what_is_being_copied_stays_until_it_is_done(cache, clock):
    put(cache, [1, 2])
    (backup,) = cache.backups()
    clock.now = 1.0
    assert cache.evict_idle(1.0) == []
    cache.cancel(backup)
    assert list(cache.evict_idle(1.0)) == [[101, 102]]


@given(
    steps=st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(0, 2), st.booleans()
        ),
        max_size=20,
    ),
    before=st.integers(0, 20),
    policy=st.sampled_from(["lru", "mru", "lfu", "filo"]),
)
@settings(max_examples=150, deadline=None)
def test_a_token_stays_if_and_only_if_it_was_used_since(steps, before, policy):
    clock = Clock()
    cache = RadixCache(policy=policy, clock=clock, host_tier=True)
    used = {}
    for tokens, waited, backed_up in steps:
        clock.now += waited
        put(cache, tokens)
        for end in range(1, len(tokens) + 1):
            used[tuple(tokens[:end])] = clock.now
        if backed_up:
            back_up(cache)
    cache.evict_idle(before)
    cache.check_integrity()
    for prefix, when in used.items():
        assert (cache.peek(Key(prefix)) == len(prefix)) == (when >= before)


def test_resident_values_are_those_of_one_tier_and_change_nothing(cache):
    put(cache, [1, 2, 3, 4])
    back_up(cache)
    put(cache, [1, 2, 3, 4, 5])
    cache.evict(2)
    before = cache.stats
    assert cache.resident(Key([1, 2, 9])) == [101, 102]
    assert cache.resident(Key([1, 2, 3, 4, 5])) == [101, 102, 103]
    assert cache.resident(Key([1, 2, 3, 4, 5]), Tier.HOST) == [201, 202, 203, 204]
    assert cache.resident(Key([1], ("a",))) == []
    assert cache.stats == before


def test_resident_values_come_in_whole_pages():
    cache = RadixCache(page_size=2)
    put(cache, [1, 2, 3, 4])
    assert cache.resident(Key([1, 2, 3, 9])) == [101, 102]


def test_a_copy_in_flight_knows_its_whole_key_also_after_a_split(cache):
    put(cache, [1, 2, 3, 4], namespace=("a",))
    (backup,) = cache.backups()
    put(cache, [1, 9], namespace=("a",))
    assert backup.key() == Key([1, 2, 3, 4], ("a",))
    cache.cancel(backup)
    with pytest.raises(LockReleased):
        backup.key()


def test_the_holder_of_a_value_is_named_by_its_tokens(cache):
    put(cache, [1, 2, 3, 4], namespace=("a",))
    put(cache, [1, 2, 9], namespace=("a",))
    back_up(cache)
    assert cache.holder(104) == "node [2, 4) of Key(4 tokens: 1, 2, 3, 4; namespace=('a',))"
    assert cache.holder(209, Tier.HOST).startswith("node [2, 3) of Key(3 tokens")
    assert cache.holder(104, Tier.HOST) == "no node"
