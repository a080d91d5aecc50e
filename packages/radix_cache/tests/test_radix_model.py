"""A state machine drives the tree beside the page-by-page model, for every policy and page size.

Some 30,000 steps by default. Twenty times as many, in some minutes:

    pytest packages/radix_cache/tests/test_radix_model.py --hypothesis-profile=thorough
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from radix_model_support import DEVICE, HOST, RANKS, Model

from phloem.radix_cache import CacheInUse, LockReleased, RadixCache, StaleMatch, Tier

STEPS = 50
PAGE_SIZES = [1, 4, 16, 64]
NAMESPACES = [("a", "bc"), ("ab", "c"), ()]
ALL = 10**9

PATHS = st.builds(
    lambda shared, rest: (0,) * shared + tuple(rest),
    st.integers(0, 6),
    st.lists(st.integers(0, 2), max_size=3),
)
# Mostly one namespace, so that what one step left is what another meets.
SPACES = st.sampled_from(NAMESPACES + [()] * 4)
PUTS = st.tuples(SPACES, PATHS, st.integers(0, 2), st.none() | st.integers(1, 5))


@dataclass(frozen=True)
class Held:
    """A handle, its pages, and the copy of each tier that it ends at: stale once that one left."""

    handle: object
    device: list
    host: list

    def __post_init__(self):
        ends = [(pages[-1], tier) for tier, pages in enumerate((self.device, self.host)) if pages]
        object.__setattr__(self, "_ends", [(p, tier, p.copies[tier]) for p, tier in ends])

    def left(self, *tiers):
        return any(p.copies[tier] is not copy for p, tier, copy in self._ends if tier in tiers)


@dataclass(frozen=True)
class Pinned:
    """A receipt of the cache, what it is about, and the pins that the model undoes with it."""

    receipt: object
    pages: list
    pins: list


class TreeBesideModel(RuleBasedStateMachine):
    page_size = 1
    policy = "lru"
    all_steps = 0

    handles = Bundle("handles")
    locks = Bundle("locks")
    copies = Bundle("copies")
    loads = Bundle("loads")

    @initialize(
        host=st.sampled_from([True, True, False]),
        write_through=st.integers(1, 3),
        puts=st.lists(PUTS, max_size=6),
    )
    def start(self, host, write_through, puts):
        self.steps = 0
        self.host = host
        self.model = Model(self.page_size, self.policy, write_through)
        self.cache = RadixCache(
            self.page_size,
            self.policy,
            clock=lambda: self.model.now,
            host_tier=host,
            write_through=write_through,
        )
        self.offered = [0, 0]
        self.outside = [set(), set()]
        for put in puts:
            self.put(*put)

    # Between tokens and pages.

    def key(self, namespace, path, tail=0):
        """Pages that differ at their first or their last token only, and a part of one more."""
        zeros = (0,) * (self.page_size - 1)
        symbols = [(0, *zeros), (*zeros, 1), (2, *zeros)]
        tokens = [token for symbol in path for token in symbols[symbol]]
        return self.cache.key(tokens + [0] * min(tail, self.page_size - 1), namespace)

    def offer(self, pages, tier, tail=0):
        """Fresh values for so many pages and some more tokens, each named once and for all."""
        values = range(self.offered[tier], self.offered[tier] + pages * self.page_size + tail)
        self.offered[tier] = values.stop
        return list(values)

    def cut(self, values):
        return [values[at : at + self.page_size] for at in range(0, len(values), self.page_size)]

    def take_out(self, tier, values):
        """Record that the tree does not have these values (any more)."""
        assert self.outside[tier].isdisjoint(values)
        self.outside[tier].update(values)

    def take_segments(self, tier, segments):
        """The values of the pages that went, in order: they go off the tail of each segment."""
        pages = [page for segment in segments for page in reversed(self.cut(segment))]
        for page in pages:
            self.take_out(tier, page)
        return pages

    def take_declined(self, tier, values, declined, expected, start=0):
        """Check ranges of `values`, which begin at position `start`, against pages."""
        at = [position for part in declined for position in part]
        assert at == [i for page in expected for i in range(page.start - start, page.end - start)]
        self.take_out(tier, [values[position] for position in at])

    def values_of(self, pages, tier=DEVICE):
        return [value for page in pages for value in page.copies[tier].values]

    # Device.

    @rule(target=handles, path=PATHS, tail=st.integers(0, 3), namespace=SPACES)
    def match(self, path, tail, namespace):
        key = self.key(namespace, path, tail)
        self.peek(key, self.model.cached(namespace, path))
        found = self.cache.match(key)
        pages = self.model.match(namespace, path)
        device = self.model.held(pages)
        assert found.length == len(device) * self.page_size
        assert found.host_length == (len(pages) - len(device)) * self.page_size
        assert list(found.values()) == self.values_of(device)
        return Held(found, device, pages[len(device) :])

    def peek(self, key, pages):
        before = self.cache.render(), self.cache.stats
        assert self.cache.peek(key) == len(self.model.held(pages)) * self.page_size
        assert self.cache.peek(key, Tier.HOST) == len(pages) * self.page_size
        for tier in self.tiers:
            expected = self.values_of(self.model.held(pages, tier), tier)
            assert list(self.cache.resident(key, tier)) == expected
        assert (self.cache.render(), self.cache.stats) == before

    @rule(target=handles, put=PUTS, tail=st.integers(0, 3))
    def insert(self, put, tail):
        return self.put(*put, tail)

    @precondition(lambda self: self.host)
    @rule(put=PUTS, tail=st.integers(0, 3))
    def insert_host_values(self, put, tail):
        self.put(*put, tail, tier=Tier.HOST)

    def put(self, namespace, path, priority, retain_for, tail=0, tier=Tier.DEVICE):
        tail = min(tail, self.page_size - 1)
        values = self.offer(len(path), tier, tail)
        done = self.cache.insert(
            self.key(namespace, path, tail), values, priority, retain_for, tier=tier
        )
        pages, declined = self.model.insert(
            namespace, path, self.cut(values), priority, retain_for, tier
        )
        whole = len(path) * self.page_size
        self.take_declined(tier, values, done.declined, declined)
        self.take_out(tier, values[whole:])
        if tier == DEVICE:
            assert done.length == whole
            assert list(done.values()) == self.values_of(pages)
        return Held(done, pages, [])

    @rule(target=locks, held=handles)
    def lock(self, held):
        if held.left(DEVICE):
            for use in (self.cache.lock, self.cache.values_of):
                with pytest.raises(StaleMatch):
                    use(held.handle)
            return multiple()
        assert list(held.handle.values()) == self.values_of(held.device)
        return Pinned(
            self.cache.lock(held.handle), held.device, self.model.pinned(held.device, DEVICE)
        )

    @rule(lock=consumes(locks))
    def unlock(self, lock):
        self.cache.unlock(lock.receipt)
        self.model.unpin(lock.pins)
        with pytest.raises(LockReleased):
            self.cache.unlock(lock.receipt)

    @property
    def tiers(self):
        return [Tier.DEVICE, Tier.HOST] if self.host else [Tier.DEVICE]

    @rule(pages=st.integers(0, 6), short_by=st.integers(0, 3), on_host=st.booleans())
    def evict(self, pages, short_by, on_host):
        n = pages * self.page_size - min(short_by, self.page_size - 1)
        self.evict_tokens(n, self.tiers[on_host and self.host])

    def evict_tokens(self, n, tier):
        gone = self.cache.evict(n, tier)
        assert self.take_segments(tier, gone) == self.model.evict(n, tier)

    @precondition(lambda self: self.steps % 10 == 9)
    @rule(namespace=st.none() | st.sampled_from(NAMESPACES))
    def drop_or_reset(self, namespace):
        if namespace is not None:
            self.take_all(self.cache.drop(namespace), self.model.drop([namespace]))
        elif any(self.model.tokens(tier, pinned=True) for tier in self.tiers):
            with pytest.raises(CacheInUse):
                self.cache.reset()
        else:
            self.take_all(self.cache.reset(), self.model.drop(NAMESPACES))

    @rule(seconds=st.integers(1, 6))
    def evict_idle(self, seconds):
        before = self.model.now - seconds
        self.take_all(self.cache.evict_idle(before), self.model.evict_idle(before))

    def take_all(self, gone, expected):
        assert sorted(self.take_segments(DEVICE, gone)) == sorted(expected[DEVICE])
        assert sorted(self.take_segments(HOST, gone.host)) == sorted(expected[HOST])

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds):
        self.model.now += seconds

    # Host.

    @precondition(lambda self: self.host)
    @rule(
        target=copies, limit=st.none() | st.integers(0, 200), at_once=st.sampled_from([0, 0, 1, 4])
    )
    def backups(self, limit, at_once):
        """Names what to copy, and makes the first few copies; the others are made some time."""
        found = self.cache.backups(limit)
        may, must = map(set, self.model.due())
        copies = [self.handed_out(backup, may) for backup in found]
        for copy in copies:
            must.difference_update(copy.pages)
        given = [page for copy in copies for page in copy.pages]
        assert not must or len(given) * self.page_size >= limit
        if limit is not None and given:
            # Past the limit there is only what the last one hangs on.
            last = self.model.path_to(given[-1])
            assert len([p for p in given if p not in last]) * self.page_size < limit
        for copy in copies[:at_once]:
            self.backed_up(copy)
        return multiple(*copies[at_once:])

    def handed_out(self, backup, may):
        owners = {page.copies[DEVICE].values[0]: page for page in may}
        values = list(backup.values())
        pages = [owners[value] for value in values[:: self.page_size]]
        path = self.model.path_to(pages[-1])
        assert path[-len(pages) :] == pages
        assert values == self.values_of(pages)
        assert backup.key() == self.key(path[-1].namespace, path[-1].path)
        assert (backup.start, backup.length) == (pages[0].start, len(values))
        assert all(page.copies[HOST] or page.copying for page in path[: -len(pages)])
        may.difference_update(pages)
        return Pinned(backup, pages, self.model.begin_copy(pages))

    @precondition(lambda self: self.host)
    @rule(copy=consumes(copies), failed=st.sampled_from([False, False, True]))
    def a_copy_ends(self, copy, failed):
        self.backed_up(copy, failed)

    def backed_up(self, copy, failed=False):
        backup, pages = copy.receipt, copy.pages
        if failed:
            self.cache.cancel(backup)
        else:
            values = self.offer(len(pages), HOST)
            declined = self.cache.backed_up(backup, values)
            expected = self.model.adopt(pages, self.cut(values), HOST)
            self.take_declined(HOST, values, declined, expected, pages[0].start)
        for page in pages:
            page.copying = False
        self.model.unpin(copy.pins)
        for again in (self.cache.cancel, lambda r: self.cache.backed_up(r, [0] * r.length)):
            with pytest.raises(LockReleased):
                again(backup)

    @precondition(lambda self: self.host)
    @rule(target=loads, path=PATHS, namespace=SPACES, at_once=st.booleans())
    def match_and_load(self, path, namespace, at_once):
        load = self.load_held(self.match(path, 0, namespace))
        if at_once and isinstance(load, Pinned):
            self.loaded(load)
            return multiple()
        return load

    @precondition(lambda self: self.host)
    @rule(target=loads, held=handles)
    def load(self, held):
        return self.load_held(held)

    def load_held(self, held):
        if not held.host:
            return multiple()
        if held.left(DEVICE, HOST):
            with pytest.raises(StaleMatch):
                self.cache.load(held.handle)
            return multiple()
        load = self.cache.load(held.handle)
        assert (load.start, load.length) == (
            len(held.device) * self.page_size,
            len(held.host) * self.page_size,
        )
        assert load.key() == self.key(held.host[-1].namespace, held.host[-1].path)
        assert list(load.values()) == self.values_of(held.host, HOST)
        pins = self.model.pinned(held.device, DEVICE)
        return Pinned(load, held.host, pins + self.model.pinned(held.device + held.host, HOST))

    @precondition(lambda self: self.host)
    @rule(load=consumes(loads), failed=st.sampled_from([False, False, True]))
    def a_load_ends(self, load, failed):
        self.loaded(load, failed)

    def loaded(self, load, failed=False):
        receipt, pages = load.receipt, load.pages
        if failed:
            self.cache.cancel(receipt)
        else:
            values = self.offer(len(pages), DEVICE)
            done = self.cache.loaded(receipt, values)
            expected = self.model.adopt(pages, self.cut(values), DEVICE)
            self.take_declined(DEVICE, values, done.declined, expected, pages[0].start)
            assert done.length == pages[-1].end
            assert list(done.values()) == self.values_of(self.model.path_to(pages[-1]))
        self.model.unpin(load.pins)
        for again in (self.cache.cancel, lambda r: self.cache.loaded(r, [0] * r.length)):
            with pytest.raises(LockReleased):
                again(receipt)

    # Always.

    @invariant()
    def sizes_are_the_models_and_no_value_is_lost(self):
        self.steps += 1
        self.cache.check_integrity()
        held = {page.namespace for page in self.model.pages.values()}
        assert sorted(self.cache.namespaces) == sorted(held)
        sizes = self.cache.sizes
        for tier, counted in zip(self.tiers, (sizes, sizes.host)):
            assert counted.evictable == self.model.tokens(tier, pinned=False)
            assert counted.protected == self.model.tokens(tier, pinned=True)
            assert counted.total == counted.evictable + counted.protected
            kept = [value for part in self.cache.iter_values(tier) for value in part]
            assert sorted(kept) == self.model.values(tier)
            # Every value ever given is in the tree or outside, in one of them once.
            assert self.outside[tier].isdisjoint(kept)
            assert len(kept) + len(self.outside[tier]) == self.offered[tier]

    def teardown(self):
        type(self).all_steps += self.steps
        for tier in self.tiers:
            self.evict_tokens(ALL, tier)
        self.sizes_are_the_models_and_no_value_is_lost()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("policy", RANKS)
def test_the_tree_does_what_the_page_by_page_model_does(policy, page_size):
    machine = type("Machine", (TreeBesideModel,), {"page_size": page_size, "policy": policy})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=settings.default.max_examples // 4,
            stateful_step_count=STEPS,
            deadline=None,
        ),
    )
    # So that all of these together take 20,000 steps.
    assert machine.all_steps >= 20_000 / (len(RANKS) * len(PAGE_SIZES))
