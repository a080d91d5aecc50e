"""Why a key missed, against a model that remembers every page that was ever evicted."""

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from radix_ops_support import CHURN, NAMESPACES, OPERATIONS, Life, key_of, stored_paths

from phloem.radix_cache import Key, RadixCache, Tier
from phloem.radix_cache.explain import Neighbour, Reason


class Memory:
    """Of each page, named by its namespace and the tokens down to its end: is it cached? If not,
    when was it evicted? Looks at the whole tree after each operation.
    """

    def __init__(self, life):
        self.life = life
        self.cached = set()
        self.evicted = {}

    def pages(self, tier=None):
        size = self.life.page_size
        return {
            (namespace, tokens[:end])
            for namespace, tokens in stored_paths(self.life.cache, tier)
            for end in range(size, len(tokens) + 1, size)
        }

    def note(self, operation):
        before, self.cached = self.cached, self.pages()
        if operation[0] == "evict":
            self.evicted |= dict.fromkeys(before - self.cached, self.life.now)
        elif operation[0] == "drop":
            self.forget(operation[1])
        elif operation[0] == "reset" and not self.cached:
            self.evicted = {}
        for page in self.cached:
            self.evicted.pop(page, None)

    def forget(self, dropped):
        self.evicted = {page: at for page, at in self.evicted.items() if page[0] != dropped}

    def check(self, key):
        """`explain` says of a key what can be read off the pages."""
        size, namespace, tokens = self.life.page_size, key.namespace, tuple(key.tokens())
        ends = [(namespace, tokens[:end]) for end in range(size, len(tokens) + 1, size)]
        device_pages = self.pages(Tier.DEVICE)
        device = _leading(ends, device_pages)
        cached = _leading(ends, self.cached)
        evicted = _leading(ends[cached:], self.evicted)
        found = self.life.cache.explain(key)
        assert (found.tokens, found.page_size) == (len(tokens), size)
        assert (found.device, found.host) == (device * size, (cached - device) * size)
        assert found.evicted == evicted * size
        if evicted:
            # Runs evicted bit by bit are remembered with the time of the latest bit.
            assert 0 <= found.evicted_ago <= self.life.now - self.evicted[ends[cached]]
        else:
            assert found.evicted_ago is None
        assert (found.reason, found.neighbour) in self.allowed(tokens, namespace, found, len(ends))
        assert found.sentence.endswith(".")

    def allowed(self, tokens, namespace, found, pages):
        """What the reason may be, with each neighbour that is as near as any."""
        if not pages:
            return [(Reason.SHORT, None)]
        if found.stops_at == pages * found.page_size:
            return [(Reason.HIT, None)]
        if found.evicted:
            return [(Reason.EVICTED, None)]
        paths = [path for space, path in stored_paths(self.life.cache) if space == namespace]
        shared = [(_shared(tokens, path), path) for path in paths]
        further = [
            (n, path) for n, path in shared if n >= found.stops_at and len(path) > n and n > 0
        ]
        if not further:
            return [(Reason.NEVER_SEEN, None)]
        most = max(n for n, _ in further)
        return [
            (Reason.DIFFERS, Neighbour(n, tokens[n], path[n])) for n, path in further if n == most
        ]


def _leading(ends, among):
    return next((at for at, page in enumerate(ends) if page not in among), len(ends))


def _shared(one, other):
    return next(
        (at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other))
    )


def ghosts_hanging(cache):
    """All ghosts that can be reached, each checked to hang where it says."""
    holders = list(cache._ghosts._tops.values())
    nodes = [child for root in cache._tree.roots.values() for child in root.children.values()]
    while nodes:
        node = nodes.pop()
        holders.append(node)
        nodes.extend(node.children.values())
    found = []
    while holders:
        holder = holders.pop()
        assert holder.ghosts is None or holder.ghosts
        for position, shelf in (holder.ghosts or {}).items():
            assert (shelf.holder, shelf.position) == (holder, position)
            assert shelf.ghosts
            for page, ghost in shelf.ghosts.items():
                assert ghost.shelf is shelf
                assert ghost.data[: len(page)] == page
                assert ghost.end - ghost.length == position
                found.append(ghost)
                holders.append(ghost)
    return found


PROBES = st.lists(
    st.tuples(
        st.sampled_from(NAMESPACES), st.lists(st.integers(0, 3), max_size=7), st.integers(0, 9)
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([1, 4, 16]), st.booleans(), OPERATIONS | CHURN, PROBES)
def test_explain_tells_what_the_pages_tell(page_size, host_tier, operations, probes):
    life = Life(page_size, host_tier, {"ghosts": 10**6})
    memory = Memory(life)
    for operation in operations:
        life.do(*operation)
        memory.note(operation)
    before = life.cache.render(), life.cache.stats
    asked = [operation[1:4] for operation in operations if operation[0] == "insert"]
    for namespace, path, cut in [*asked, *probes]:
        memory.check(key_of(page_size, namespace, path, cut))
    assert (life.cache.render(), life.cache.stats) == before
    ghosts = ghosts_hanging(life.cache)
    assert set(ghosts) == set(life.cache._ghosts._order)
    assert sum(ghost.length for ghost in ghosts) == life.cache._ghosts.tokens


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([1, 4, 16]), st.integers(1, 4), st.integers(1, 60), OPERATIONS | CHURN)
def test_ghosts_stay_within_their_bounds(page_size, limit, token_limit, operations):
    life = Life(page_size, False, {"ghosts": limit})
    life.cache._ghosts._token_limit = token_limit
    for operation in operations:
        life.do(*operation)
        ghosts = ghosts_hanging(life.cache)
        assert set(ghosts) == set(life.cache._ghosts._order)
        assert len(ghosts) == len(life.cache._ghosts) <= limit
        assert sum(ghost.length for ghost in ghosts) == life.cache._ghosts.tokens <= token_limit


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def put(cache, tokens, namespace=()):
    cache.insert(Key(tokens, namespace), [0] * len(tokens))


def test_a_hit_is_explained_too():
    cache = RadixCache(page_size=4)
    put(cache, range(8))
    found = cache.explain(Key(range(10)))
    assert (found.reason, found.stops_at) == (Reason.HIT, 8)
    assert found.sentence == (
        "The first 8 of 10 tokens are cached; the last 2 do not fill a page of 4."
    )
    assert cache.explain(Key(range(8))).sentence == "All 8 tokens are cached."


def test_what_only_the_host_has_is_said():
    cache = RadixCache(page_size=4, host_tier=True)
    put(cache, range(8))
    (backup,) = cache.backups()
    cache.backed_up(backup, [0] * 8)
    cache.evict(4)
    found = cache.explain(Key(range(8)))
    assert (found.reason, found.device, found.host) == (Reason.HIT, 4, 4)
    assert found.sentence == "All 8 tokens are cached, 4 of them in host memory only."


def test_a_key_shorter_than_a_page():
    found = RadixCache(page_size=64).explain(Key(range(63)))
    assert found.reason is Reason.SHORT
    assert found.sentence == (
        "The key has 63 tokens, less than a page of 64: only whole pages are shared."
    )


def test_nothing_begins_so():
    cache = RadixCache(page_size=4)
    put(cache, range(8))
    found = cache.explain(Key([9, 1, 2, 3]))
    assert (found.reason, found.neighbour) == (Reason.NEVER_SEEN, None)
    assert found.sentence == (
        "None of the 4 tokens is cached; nothing stored in this namespace begins with the same "
        "token."
    )


def test_nothing_goes_on_from_there():
    cache = RadixCache(page_size=4)
    put(cache, range(8))
    found = cache.explain(Key(range(12)))
    assert (found.reason, found.stops_at) == (Reason.NEVER_SEEN, 8)
    assert found.sentence == (
        "The first 8 of 12 tokens are cached; nothing that is stored goes on from there."
    )


def test_the_token_that_differs_is_exact_inside_a_page():
    cache = RadixCache(page_size=16)
    put(cache, range(32))
    put(cache, [*range(16), 50, *range(15)])
    found = cache.explain(Key([*range(21), 99, *range(22, 40)]))
    assert (found.reason, found.stops_at) == (Reason.DIFFERS, 16)
    assert found.neighbour == Neighbour(at=21, token=99, stored=21)
    assert found.sentence == (
        "The first 16 of 40 tokens are cached; at token 21 the key has 99 where 21 is stored "
        "(the page begins at 16)."
    )


def test_of_equally_near_neighbours_the_one_used_last_is_shown(clock):
    cache = RadixCache(clock=clock)
    for clock.now, last in enumerate((5, 6, 7)):
        put(cache, [1, last])
    clock.now += 1
    cache.match(Key([1, 6]))
    assert cache.explain(Key([1, -9])).neighbour == Neighbour(1, -9, 6)


def test_an_eviction_is_dated(clock):
    cache = RadixCache(page_size=4, clock=clock)
    put(cache, range(12))
    clock.now = 10.0
    cache.evict(8)
    clock.now = 12.5
    found = cache.explain(Key(range(12)))
    assert (found.reason, found.stops_at, found.evicted) == (Reason.EVICTED, 4, 8)
    assert found.evicted_ago == 2.5
    assert found.sentence == (
        "The first 4 of 12 tokens are cached; the next 8 were, until 2.5 s ago."
    )


def test_a_leaf_evicted_bit_by_bit_is_one_ghost(clock):
    cache = RadixCache(clock=clock, ghosts=1)
    put(cache, range(100))
    for clock.now in range(100):
        cache.evict(1)
    assert cache.explain(Key(range(100))).evicted == 100
    assert cache.explain(Key(range(100))).evicted_ago == 0


def test_an_evicted_namespace_is_remembered_and_a_dropped_one_is_not():
    cache = RadixCache()
    for name in ("a", "b", "c"):
        put(cache, range(8), (name,))
    cache.evict(24)
    assert cache.namespaces == ()
    cache.drop(("a",))
    assert cache.explain(Key(range(8), ("a",))).reason is Reason.NEVER_SEEN
    assert cache.explain(Key(range(8), ("b",))).evicted == 8
    cache.reset()
    assert cache.explain(Key(range(8), ("b",))).reason is Reason.NEVER_SEEN


def test_a_drop_forgets_what_was_evicted_below_a_locked_prefix():
    cache = RadixCache()
    put(cache, range(8))
    with cache.lock(cache.match(Key(range(4)))):
        cache.evict(4)
        cache.drop(())
        assert cache.explain(Key(range(8))).reason is Reason.NEVER_SEEN
        assert cache.explain(Key(range(8))).stops_at == 4


def test_a_drop_does_not_push_out_the_ghosts_of_others():
    cache = RadixCache(ghosts=2)
    put(cache, range(8), ("a",))
    cache.evict(8)
    for first in range(10):
        put(cache, [first, 1], ("b",))
    cache.drop(("b",))
    assert cache.explain(Key(range(8), ("a",))).evicted == 8


def test_other_namespaces_explain_nothing():
    cache = RadixCache(page_size=4)
    put(cache, range(8), ("a",))
    put(cache, range(100, 108), ("b",))
    cache.evict(4)
    for namespace in ((), ("c",), ("b",)):
        found = cache.explain(Key([*range(3), 9], namespace))
        assert (found.reason, found.neighbour, found.evicted) == (Reason.NEVER_SEEN, None, 0)


def test_the_oldest_ghost_is_forgotten_first():
    cache = RadixCache(ghosts=2)
    for first in (1, 2, 3):
        put(cache, [first, 0])
        cache.evict(2)
    reasons = [cache.explain(Key([first, 0])).reason for first in (1, 2, 3)]
    assert reasons == [Reason.NEVER_SEEN, Reason.EVICTED, Reason.EVICTED]


def test_a_ghost_that_grows_is_young_again():
    cache = RadixCache(ghosts=2)
    put(cache, [1, 0])
    put(cache, [2, 0])
    cache.evict(1)
    with cache.lock(cache.match(Key([1]))):
        cache.evict(2)
    cache.evict(1)
    put(cache, [3, 0])
    cache.evict(2)
    reasons = [cache.explain(Key([first, 0])).reason for first in (1, 2, 3)]
    assert reasons == [Reason.EVICTED, Reason.NEVER_SEEN, Reason.EVICTED]


def test_without_ghosts_an_eviction_is_not_remembered():
    cache = RadixCache(ghosts=0)
    put(cache, range(8))
    cache.evict(4)
    found = cache.explain(Key(range(8)))
    assert (found.reason, found.evicted) == (Reason.NEVER_SEEN, 0)


def test_what_comes_back_in_part_is_evicted_only_for_the_rest():
    cache = RadixCache(ghosts=10)
    put(cache, range(8))
    put(cache, [*range(4), 9, 9])
    cache.evict(10)
    put(cache, range(6))
    found = cache.explain(Key(range(8)))
    assert (found.reason, found.stops_at, found.evicted) == (Reason.EVICTED, 6, 2)
    found = cache.explain(Key([*range(4), 9, 9]))
    assert (found.reason, found.stops_at, found.evicted) == (Reason.EVICTED, 4, 2)


def test_what_hangs_within_a_leaf_stays_found_when_that_is_split():
    cache = RadixCache()
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 5, 6])
    cache.evict(6)
    put(cache, [1, 2, 3, 4])
    assert cache.explain(Key([1, 2, 5, 6])).evicted == 2
    cache.evict(4)
    assert cache.explain(Key([1, 2, 3, 4])).evicted == 4
    assert cache.explain(Key([1, 2, 5, 6])).evicted == 4
    put(cache, [1, 2, 3, 4])
    cache.match(Key([1, 2]))
    assert cache.explain(Key([1, 2, 5, 6])).evicted == 2
    cache.evict(2)
    assert cache.explain(Key([1, 2, 3, 4])).evicted == 2
    assert cache.explain(Key([1, 2, 5, 6])).evicted == 2


def test_explain_beside_a_writing_thread_sees_no_broken_state():
    cache = RadixCache(page_size=2, ghosts=64)
    paths = [[*range(20), *[branch] * 20] for branch in range(30, 60)]
    stop = threading.Event()
    problems = []

    def look():
        try:
            while not stop.is_set():
                for path in paths:
                    found = cache.explain(Key(path))
                    assert found.stops_at + found.evicted <= 40
                    assert found.stops_at % 2 == found.evicted % 2 == 0
                    assert found.neighbour is None or found.neighbour.token in path
        except Exception as problem:
            problems.append(problem)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for turn in range(1500):
            put(cache, paths[turn * 7 % 30][: 10 + turn % 31])
            cache.match(Key([*range(turn % 20), 99, 99]))
            if turn % 3 == 0:
                cache.evict(turn % 50)
    finally:
        stop.set()
        reader.join()
    assert not problems
