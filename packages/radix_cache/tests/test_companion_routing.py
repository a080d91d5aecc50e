import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from phloem.radix_cache import Key
from phloem.radix_cache.routing import CacheAware, Choice, Route, RoutingTree, text_key

WORKERS = ["a", "b", "c"]
NAMESPACES = [(), ("a", "bc"), ("ab", "c")]


class Model:
    """For each worker the pages it has seen, each with the serial number of its last use."""

    def __init__(self, page_size, per_worker, total):
        self.page_size, self.per_worker, self.total = page_size, per_worker, total
        self.seen = {}
        self.inserts = 0

    def prefixes(self, tokens, namespace):
        whole = len(tokens) - len(tokens) % self.page_size
        ends = range(self.page_size, whole + 1, self.page_size)
        return [(namespace, tuple(tokens[:end])) for end in ends]

    def match(self, tokens, namespace):
        lengths = {
            worker: len([p for p in self.prefixes(tokens, namespace) if p in pages])
            for worker, pages in self.seen.items()
        }
        return {worker: n * self.page_size for worker, n in lengths.items() if n}

    def oldest(self, workers):
        """(stamp, worker, page) of the page that goes first."""
        return min(
            (stamp, worker, page)
            for worker in workers
            for page, stamp in self.seen[worker].items()
            if not any(
                other[0] == page[0] and other[1][: -self.page_size] == page[1]
                for other in self.seen[worker]
            )
        )

    def forget(self, workers):
        _, worker, page = self.oldest(workers)
        del self.seen[worker][page]
        if not self.seen[worker]:
            del self.seen[worker]

    def evict(self, worker, tokens):
        left = tokens
        while left > 0 and worker in self.seen:
            self.forget([worker])
            left -= self.page_size

    def tokens_of(self, worker):
        return len(self.seen.get(worker, ())) * self.page_size

    def tokens(self):
        return len({page for pages in self.seen.values() for page in pages}) * self.page_size

    def insert(self, tokens, namespace, worker):
        prefixes = self.prefixes(tokens, namespace)
        if not prefixes:
            return
        self.seen.setdefault(worker, {}).update(dict.fromkeys(prefixes, self.inserts))
        self.inserts += 1
        self.evict(worker, self.tokens_of(worker) - self.per_worker)
        while self.tokens() > self.total:
            self.forget(self.seen)


class RoutingBesideModel(RuleBasedStateMachine):
    page_size = 1
    keys = st.builds(
        lambda shared, rest: [0] * shared + rest,
        st.integers(0, 10),
        st.lists(st.integers(0, 2), max_size=6),
    )

    @initialize(per_worker=st.integers(1, 30), total=st.integers(1, 60))
    def start(self, per_worker, total):
        self.bounds = per_worker, total
        self.tree = RoutingTree(per_worker, total, self.page_size)
        self.model = Model(self.page_size, per_worker, total)

    @rule(
        tokens=keys,
        namespace=st.sampled_from(NAMESPACES),
        worker=st.sampled_from(WORKERS),
    )
    def insert(self, tokens, namespace, worker):
        self.tree.insert(Key(tokens, namespace), worker)
        self.model.insert(tokens, namespace, worker)

    @rule(tokens=keys, namespace=st.sampled_from(NAMESPACES))
    def match(self, tokens, namespace):
        route = self.tree.match(Key(tokens, namespace))
        lengths = self.model.match(tokens, namespace)
        assert dict(route.lengths) == lengths
        assert list(route.lengths.values()) == sorted(lengths.values(), reverse=True)
        assert route.asked == len(tokens)
        assert route.length == max(lengths.values(), default=0)
        assert set(route.workers) == {w for w in lengths if lengths[w] == route.length}

    @rule(worker=st.sampled_from(WORKERS), tokens=st.integers(-1, 12))
    def evict(self, worker, tokens):
        self.tree.evict(worker, tokens)
        self.model.evict(worker, tokens)

    @rule(worker=st.sampled_from(WORKERS))
    def remove(self, worker):
        self.tree.remove(worker)
        self.model.seen.pop(worker, None)

    @invariant()
    def sizes_are_the_models_and_within_bounds(self):
        assert self.tree.tokens == self.model.tokens() <= self.bounds[1]
        assert set(self.tree.workers) == set(self.model.seen)
        pages = [page for seen in self.model.seen.values() for page in seen]
        assert set(self.tree.namespaces) == {namespace for namespace, _ in pages}
        for worker in WORKERS:
            assert self.tree.tokens_of(worker) == self.model.tokens_of(worker)
            assert self.tree.tokens_of(worker) <= self.bounds[0]


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_the_tree_does_what_the_lists_of_pages_do(page_size):
    machine = type("Machine", (RoutingBesideModel,), {"page_size": page_size})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=100, stateful_step_count=40, deadline=None)
    )


def test_match_names_every_worker_that_has_seen_some_of_it_longest_first():
    tree = RoutingTree()
    tree.insert(Key([1, 2, 3]), "short")
    tree.insert(Key([1, 2, 3, 4, 5]), "long")
    tree.insert(Key([9]), "other")
    route = tree.match(Key([1, 2, 3, 4, 6]))
    assert list(route.lengths.items()) == [("long", 4), ("short", 3)]
    assert route.workers == ["long"]
    assert tree.match(Key([1, 2])).workers == ["short", "long"]


def test_what_several_workers_have_seen_is_stored_once():
    tree = RoutingTree()
    for worker in range(10):
        tree.insert(Key(range(100)), worker)
    assert tree.tokens == 100
    tree.remove(3)
    assert tree.tokens == 100
    assert tree.workers == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_worker_forgets_the_end_of_its_least_recently_used_prefix():
    tree = RoutingTree(max_tokens_per_worker=8)
    tree.insert(Key([1, 1, 1, 1]), "w")
    tree.insert(Key([2, 2, 2, 2]), "w")
    tree.insert(Key([1, 1, 1, 1]), "w")
    tree.insert(Key([3, 3]), "w")
    assert tree.match(Key([1, 1, 1, 1])).length == 4
    assert tree.match(Key([2, 2, 2, 2])).length == 2


def test_looking_up_is_no_use():
    tree = RoutingTree(max_tokens_per_worker=2)
    tree.insert(Key([1]), "w")
    tree.insert(Key([2]), "w")
    tree.match(Key([1]))
    tree.insert(Key([3]), "w")
    assert tree.match(Key([1])).length == 0


@given(st.text(), st.text())
def test_texts_are_matched_by_code_points(one, other):
    tree = RoutingTree()
    tree.insert(text_key(one), "w")
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    assert tree.match(text_key(other)).length == shared
    assert text_key(one) == Key([ord(char) for char in one])


def test_a_text_with_half_a_surrogate_pair_is_a_key():
    assert len(text_key("a\ud800b", ("model",))) == 3


def test_bounds_below_one_are_refused():
    with pytest.raises(ValueError, match="max_tokens 0 is less than 1"):
        RoutingTree(max_tokens=0)


def choose(lengths, loads, asked=100, **thresholds):
    return CacheAware(**thresholds).choose(Route(asked, lengths), loads)


def test_the_worker_that_has_seen_more_than_half_of_the_key_gets_it():
    assert choose({"b": 51}, {"a": 0, "b": 20}) == Choice("b", 51, "cache")


def test_half_of_the_key_is_not_enough():
    assert choose({"b": 50}, {"a": 0, "b": 20}) == Choice("a", 0, "load")


def test_unbalanced_loads_go_before_the_cache():
    assert choose({"b": 100, "a": 10}, {"a": 0, "b": 33}) == Choice("a", 10, "balance")


def test_loads_are_unbalanced_only_if_both_thresholds_are_passed():
    assert choose({"b": 100}, {"a": 0, "b": 32}).reason == "cache"
    assert choose({"b": 100}, {"a": 1000, "b": 1100}).reason == "cache"
    assert choose({"b": 100}, {"a": 1000, "b": 1101}).reason == "balance"
    assert choose({"b": 100}, {"a": 0, "b": 5}, balance_abs=4).reason == "balance"


def test_ties_go_to_the_less_loaded_and_then_to_the_first():
    assert choose({"a": 90, "b": 90, "c": 90}, {"a": 2, "c": 1, "b": 1}).worker == "c"
    assert choose({}, {"b": 1, "a": 1}).worker == "b"


def test_an_unhealthy_worker_is_left_out_of_the_loads():
    assert choose({"down": 100, "up": 60}, {"up": 9, "new": 0}) == Choice("up", 60, "cache")
    with pytest.raises(ValueError, match="loads is empty"):
        choose({"down": 100}, {})


def test_a_threshold_outside_of_a_share_is_refused():
    with pytest.raises(ValueError, match="cache_threshold 50 is no share"):
        CacheAware(cache_threshold=50)


def test_an_empty_key_goes_to_the_least_loaded():
    tree = RoutingTree()
    assert tree.route(Key([]), {"a": 3, "b": 2}) == Choice("b", 0, "load")


def test_requests_of_one_conversation_stay_with_their_worker():
    tree = RoutingTree()
    loads = dict.fromkeys(WORKERS, 0)
    chosen = []
    for turn in range(1, 4):
        for talk in range(6):
            choice = tree.route(text_key(f"talk {talk} " * 10 * turn), loads)
            loads[choice.worker] += 1
            chosen.append(choice.worker)
    assert chosen[:6] == ["a", "b", "c", "a", "b", "c"]
    assert chosen[6:12] == chosen[12:] == chosen[:6]
