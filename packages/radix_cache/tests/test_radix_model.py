"""A state machine drives the tree beside a model that keeps single pages and scans them all."""

from dataclasses import dataclass, field

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
    rule,
    run_state_machine_as_test,
)

from phloem.radix_cache import CacheInUse, Key, RadixCache, StaleMatch

NAMESPACES = [(), ("a", "bc"), ("ab", "c")]


@dataclass(eq=False)
class Page:
    namespace: tuple
    prefix: tuple
    values: list
    used: float
    age: int
    locks: int = 0


@dataclass
class Model:
    """Pages by (namespace, tokens up to their end); it answers by looking at all of them."""

    page_size: int
    pages: dict = field(default_factory=dict)
    inserts: int = 0

    def path(self, namespace, tokens):
        found = []
        for end in range(self.page_size, len(tokens) + 1, self.page_size):
            page = self.pages.get((namespace, tokens[:end]))
            if page is None:
                break
            found.append(page)
        return found

    def touch(self, namespace, tokens, now):
        path = self.path(namespace, tokens)
        for page in path:
            page.used = now
        return path

    def insert(self, namespace, tokens, values, now):
        known = len(self.touch(namespace, tokens, now)) * self.page_size
        for start in range(known, len(tokens) - self.page_size + 1, self.page_size):
            end = start + self.page_size
            page = Page(namespace, tokens[:end], values[start:end], now, self.inserts)
            self.pages[namespace, page.prefix] = page
        self.inserts += 1
        return known

    def holds(self, page):
        return self.pages.get((page.namespace, page.prefix)) is page

    def remove(self, page):
        del self.pages[page.namespace, page.prefix]
        return page.values

    def evict(self, n):
        gone = []
        while len(gone) * self.page_size < n:
            parents = {(p.namespace, p.prefix[: -self.page_size]) for p in self.pages.values()}
            leaves = [p for k, p in self.pages.items() if not p.locks and k not in parents]
            if not leaves:
                break
            gone.append(self.remove(min(leaves, key=lambda page: (page.used, page.age))))
        return gone

    def drop(self, namespace):
        gone = [p for p in self.pages.values() if p.namespace == namespace and not p.locks]
        return [self.remove(page) for page in gone]

    def tokens(self, locked):
        return sum(self.page_size for page in self.pages.values() if bool(page.locks) == locked)


class TreeBesideModel(RuleBasedStateMachine):
    page_size = 1

    handles = Bundle("handles")
    locks = Bundle("locks")

    @initialize()
    def start(self):
        self.now = 0.0
        self.cache = RadixCache(self.page_size, clock=lambda: self.now)
        self.model = Model(self.page_size)
        self.held = 0
        self.next_value = 0
        self.evicted = []

    def tokens(self, symbols, tail):
        """Three pages that differ at the first or the last token only, and a partial page."""
        zeros = (0,) * (self.page_size - 1)
        pages = [(0, *zeros), (*zeros, 1), (1, *zeros)]
        whole = sum((pages[symbol] for symbol in symbols), ())
        return whole + (0,) * min(tail, self.page_size - 1)

    def let_go(self, segments):
        pages = []
        for segment in segments:
            cuts = range(0, len(segment), self.page_size)
            pages.extend(segment[at : at + self.page_size] for at in reversed(cuts))
        self.evicted.extend(value for page in pages for value in page)
        return pages

    symbols = st.builds(
        lambda shared, rest: [0] * shared + rest,
        st.integers(0, 8),
        st.lists(st.integers(0, 2), max_size=4),
    )
    tails = st.integers(0, 3)
    namespaces = st.sampled_from(NAMESPACES)

    @rule(target=handles, symbols=symbols, tail=tails, namespace=namespaces)
    def match(self, symbols, tail, namespace):
        tokens = self.tokens(symbols, tail)
        found = self.cache.match(self.cache.key(tokens, namespace))
        path = self.model.touch(namespace, tokens, self.now)
        assert found.length == len(path) * self.page_size
        return found, path

    @rule(target=handles, symbols=symbols, tail=tails, namespace=namespaces)
    def insert(self, symbols, tail, namespace):
        tokens = self.tokens(symbols, tail)
        values = list(range(self.next_value, self.next_value + len(tokens)))
        self.next_value += len(tokens)
        done = self.cache.insert(Key(tokens, namespace), values)
        known = self.model.insert(namespace, tokens, values, self.now)
        assert done.length == len(tokens) - len(tokens) % self.page_size
        assert [at for part in done.declined for at in part] == list(range(known))
        return done, self.model.path(namespace, tokens)

    @rule(target=locks, handle=handles)
    def lock(self, handle):
        found, path = handle
        if path and not self.model.holds(path[-1]):
            with pytest.raises(StaleMatch):
                self.cache.lock(found)
            return multiple()
        for page in path:
            page.locks += 1
        self.held += bool(path)
        return self.cache.lock(found), path

    @rule(lock=consumes(locks))
    def unlock(self, lock):
        receipt, path = lock
        self.cache.unlock(receipt)
        for page in path:
            page.locks -= 1
        self.held -= bool(path)

    @rule(handle=handles)
    def values(self, handle):
        found, path = handle
        if path and not self.model.holds(path[-1]):
            with pytest.raises(StaleMatch):
                found.values()
        else:
            assert list(found.values()) == [value for page in path for value in page.values]

    @rule(pages=st.integers(0, 5), short_by=tails)
    def evict(self, pages, short_by):
        n = pages * self.page_size - short_by
        assert self.let_go(self.cache.evict(n)) == self.model.evict(n)

    @rule(namespace=namespaces)
    def drop(self, namespace):
        assert sorted(self.let_go(self.cache.drop(namespace))) == sorted(self.model.drop(namespace))
        left = any(page.namespace == namespace for page in self.model.pages.values())
        assert (namespace in self.cache.namespaces) == left

    @rule()
    def reset(self):
        if self.held:
            with pytest.raises(CacheInUse):
                self.cache.reset()
            return
        self.let_go(self.cache.reset())
        self.model.pages.clear()

    @rule(symbols=symbols, tail=tails, namespace=namespaces)
    def peek(self, symbols, tail, namespace):
        tokens = self.tokens(symbols, tail)
        before = self.cache.render(), self.cache.stats
        length = self.cache.peek(Key(tokens, namespace))
        assert length == len(self.model.path(namespace, tokens)) * self.page_size
        assert (self.cache.render(), self.cache.stats) == before

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds):
        self.now += seconds

    @invariant()
    def sizes_and_values_are_the_models(self):
        self.cache.check_integrity()
        sizes = self.cache.sizes
        assert sizes.protected == self.model.tokens(locked=True)
        assert sizes.evictable == self.model.tokens(locked=False)
        assert sizes.total == sizes.evictable + sizes.protected
        held = sorted(value for part in self.cache.iter_values() for value in part)
        assert held == sorted(v for page in self.model.pages.values() for v in page.values)
        # Adopted values are in the tree or were let go, each exactly once.
        assert len(set(held + self.evicted)) == len(held) + len(self.evicted)
        assert len(held) + len(self.evicted) == self.cache.stats.inserted_tokens


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_the_tree_does_what_the_page_by_page_model_does(page_size):
    machine = type("Machine", (TreeBesideModel,), {"page_size": page_size})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=150, stateful_step_count=60, deadline=None)
    )
