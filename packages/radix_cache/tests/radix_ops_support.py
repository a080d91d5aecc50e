"""Random lives of a cache, for tests that compare what is recorded of it with what is in it."""

from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import strategies as st

from phloem.radix_cache import CacheInUse, Key, RadixCache, Tier

NAMESPACES = [(), ("a", "bc"), ("ab", "c")]
RUN = {1: 5, 4: 8, 16: 16, 32: 32}
"""By page size, how many tokens a symbol of a path stands for: whole pages, not whole blocks."""

# Most happens in one namespace, so that paths meet there.
NAMES = st.sampled_from([(), (), (), *NAMESPACES])
PATHS = st.lists(st.integers(0, 2), max_size=6).map(lambda ends: [0] * (6 - len(ends)) + ends)
CUTS = st.integers(0, 9)
"""How many symbols of a path are taken; with a tail that fills no page where it is odd."""
TIERS = st.sampled_from(Tier)
INSERTS = st.tuples(st.just("insert"), NAMES, PATHS, CUTS, TIERS)
EVICTIONS = st.tuples(st.just("evict"), st.sampled_from([1, 8, 17, 40, 200]), TIERS)
OPERATIONS = st.lists(
    st.one_of(
        INSERTS,
        INSERTS,
        st.tuples(st.just("match"), NAMES, PATHS, CUTS),
        EVICTIONS,
        EVICTIONS,
        st.tuples(st.just("lock"), NAMES, PATHS, CUTS),
        st.just(("unlock",)),
        st.tuples(st.just("back_up"), st.booleans()),
        st.tuples(st.just("load"), NAMES, PATHS, CUTS, st.booleans()),
        st.tuples(st.just("drop"), NAMES) | st.just(("reset",)),
        st.just(("look",)),
    ),
    min_size=10,
    max_size=40,
)
CHURN = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.just(()), PATHS, st.integers(3, 6), st.just(Tier.DEVICE)),
        st.tuples(st.just("match"), st.just(()), PATHS, st.integers(3, 6)),
        st.tuples(st.just("evict"), st.sampled_from([1, 17, 200]), st.just(Tier.DEVICE)),
    ),
    min_size=15,
    max_size=40,
)
"""Paths that share much come, go and come back."""


def key_of(page_size, namespace, path, cut):
    tokens = [symbol for symbol in path[:cut] for _ in range(RUN[page_size])]
    return Key(tokens + [7] * (cut % 2), namespace)


@dataclass
class Life:
    """A cache with a clock that a test may read, and the receipts it gave out."""

    page_size: int
    host_tier: bool
    options: dict
    now: float = 0.0
    locks: list = field(default_factory=list)

    def __post_init__(self):
        self.cache = RadixCache(
            self.page_size, clock=lambda: self.now, host_tier=self.host_tier, **self.options
        )

    def key(self, namespace, path, cut):
        return key_of(self.page_size, namespace, path, cut)

    def do(self, name, *arguments):
        """One operation; those that need a host tier do nothing without one."""
        self.now += 1
        if self.host_tier or name not in ("back_up", "load"):
            getattr(self, name)(*arguments)

    def insert(self, namespace, path, cut, tier):
        key = self.key(namespace, path, cut)
        self.cache.insert(key, [0] * len(key), tier=tier if self.host_tier else Tier.DEVICE)

    def match(self, namespace, path, cut):
        return self.cache.match(self.key(namespace, path, cut))

    def evict(self, tokens, tier):
        self.cache.evict(tokens, tier if self.host_tier else Tier.DEVICE)

    def lock(self, namespace, path, cut):
        self.locks.append(self.cache.lock(self.match(namespace, path, cut)))

    def unlock(self):
        if self.locks:
            self.cache.unlock(self.locks.pop(0))

    def back_up(self, works):
        for backup in self.cache.backups():
            if works:
                self.cache.backed_up(backup, [0] * backup.length)
            else:
                self.cache.cancel(backup)

    def load(self, namespace, path, cut, works):
        found = self.match(namespace, path, cut)
        if not found.host_length:
            return
        load = self.cache.load(found)
        if works:
            self.cache.loaded(load, [0] * load.length)
        else:
            self.cache.cancel(load)

    def drop(self, namespace):
        self.cache.drop(namespace)

    def reset(self):
        with suppress(CacheInUse):
            self.cache.reset()

    def look(self):
        pass


def stored_paths(cache, tier=None):
    """Every (namespace, tokens from the root to the end of a node) in a tier, or in any."""
    found = []
    for root in cache._tree.roots.values():
        stack = [(root, [])]
        while stack:
            node, above = stack.pop()
            tokens = above + list(memoryview(node.data).cast("i"))
            copies = {Tier.DEVICE: node.device, Tier.HOST: node.host}
            if node.data and any(copies.values() if tier is None else [copies[tier]]):
                found.append((root.namespace, tuple(tokens)))
            stack.extend((child, tokens) for child in node.children.values())
    return found
