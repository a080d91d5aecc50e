"""The block manager: who holds which block, what is found again, and that no KV is ever wrong."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phloem.radix_cache import RadixCache, StaleMatch
from phloem.radix_cache.adapters.block_manager import (
    NULL_BLOCK,
    BlockIds,
    Content,
    KVCacheManager,
)


@dataclass
class Request:
    request_id: str
    all_token_ids: list[int]
    num_computed_tokens: int = 0
    lora_name: str | None = None
    cache_salt: str | None = None
    contents: list[Content] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


def admit(manager, request, new=None, **options):
    """Look a request up, let it in and pretend to compute `new` tokens; returns the hit."""
    prefix, hit = manager.get_computed_blocks(request)
    new = request.num_tokens - hit if new is None else new
    blocks = manager.allocate_slots(request, new, hit, prefix, **options)
    assert blocks is not None
    request.num_computed_tokens = hit + new
    return hit


def step(manager, request, new=1):
    """One more step of a running request; returns the blocks appended, or None."""
    blocks = manager.allocate_slots(request, new)
    if blocks is not None:
        request.num_computed_tokens += new
    return blocks


def ids(manager, request):
    return list(manager.get_blocks(request.request_id).block_ids)


def run_to_end(manager, request):
    hit = admit(manager, request)
    manager.free(request)
    return hit


PROMPT = list(range(100, 116))


# What is found


def test_only_full_computed_blocks_are_found_and_the_last_token_never_is():
    manager = KVCacheManager(20, 4)
    assert run_to_end(manager, Request("a", PROMPT[:11])) == 0
    assert manager.get_computed_blocks(Request("b", PROMPT[:11]))[1] == 8
    assert manager.get_computed_blocks(Request("c", PROMPT[:8]))[1] == 4
    assert manager.get_computed_blocks(Request("d", PROMPT[:4]))[1] == 0
    assert manager.get_computed_blocks(Request("e", PROMPT[:1]))[1] == 0
    assert manager.get_computed_blocks(Request("f", []))[1] == 0


def test_a_block_is_found_once_it_is_computed_and_not_when_it_is_scheduled():
    manager = KVCacheManager(20, 4)
    first = Request("a", PROMPT)
    assert manager.allocate_slots(first, 16) is not None
    assert manager.get_computed_blocks(Request("b", PROMPT))[1] == 0
    first.num_computed_tokens = 6
    manager.cache_blocks(first, 6)
    assert manager.get_computed_blocks(Request("b", PROMPT))[1] == 4
    first.num_computed_tokens = 16
    first.all_token_ids = [*PROMPT, 7]
    assert manager.allocate_slots(first, 1) is not None
    assert manager.get_computed_blocks(Request("b", PROMPT))[1] == 12


def test_drafts_beyond_the_final_tokens_are_never_cached():
    manager = KVCacheManager(20, 4)
    request = Request("a", PROMPT[:6])
    admit(manager, request)
    request.num_computed_tokens = 9
    manager.allocate_slots(request, 1, num_lookahead_tokens=3)
    assert manager.cache.sizes.total == 4


def test_delayed_blocks_are_cached_when_the_runtime_says_so():
    manager = KVCacheManager(20, 4)
    request = Request("a", PROMPT)
    blocks = manager.allocate_slots(
        request, 4, num_external_computed_tokens=12, delay_cache_blocks=True
    )
    assert blocks is not None
    assert len(blocks.block_ids) == 4
    request.num_computed_tokens = 12
    assert manager.allocate_slots(request, 4, delay_cache_blocks=True) is not None
    assert manager.cache.sizes.total == 0
    manager.cache_blocks(request, 12)
    assert manager.cache.sizes.total == 12


def test_a_request_whose_step_failed_leaves_nothing_in_the_cache():
    manager = KVCacheManager(20, 4)
    request = Request("a", PROMPT)
    admit(manager, request)
    manager.free(request, cache_computed=False)
    assert manager.cache.sizes.total == 0
    assert manager.num_free_blocks == 19


def test_adapters_and_salts_share_nothing_and_none_is_not_the_empty_string():
    manager = KVCacheManager(80, 4)
    names = (None, "", "x")
    for name in names:
        for salt in names:
            request = Request(f"{name}{salt}", PROMPT, lora_name=name, cache_salt=salt)
            assert run_to_end(manager, request) == 0
    assert manager.get_computed_blocks(Request("z", PROMPT, cache_salt="x"))[1] == 12


def test_requests_with_other_images_share_what_comes_before_them():
    manager = KVCacheManager(40, 4)
    image, other = Content(9, 3, "image"), Content(9, 3, "other")
    assert run_to_end(manager, Request("a", PROMPT, contents=[image])) == 0
    assert manager.get_computed_blocks(Request("b", PROMPT, contents=[image]))[1] == 12
    assert manager.get_computed_blocks(Request("c", PROMPT, contents=[other]))[1] == 8
    assert manager.get_computed_blocks(Request("d", PROMPT))[1] == 8


def test_an_image_keeps_its_place_when_it_is_computed_in_chunks():
    manager = KVCacheManager(40, 4)
    request = Request("a", PROMPT, contents=[Content(3, 9, "image")])
    admit(manager, request, new=6)
    step(manager, request, 5)
    step(manager, request, 5)
    manager.free(request)
    again = Request("b", PROMPT, contents=[Content(3, 9, "image")])
    assert manager.get_computed_blocks(again)[1] == 12


def test_a_look_up_from_before_a_reset_never_meets_another_image():
    manager = KVCacheManager(40, 4)
    cat, dog = [Content(0, 8, "cat")], [Content(0, 8, "dog")]
    run_to_end(manager, Request("a", PROMPT, contents=cat))
    late = Request("b", PROMPT, contents=cat)
    prefix, hit = manager.get_computed_blocks(late)
    assert manager.reset_prefix_cache()
    run_to_end(manager, Request("c", PROMPT, contents=dog))
    with pytest.raises(StaleMatch):
        manager.allocate_slots(late, 4, hit, prefix)


def test_without_caching_nothing_is_found_or_kept():
    manager = KVCacheManager(20, 4, enable_caching=False)
    run_to_end(manager, Request("a", PROMPT))
    assert manager.get_computed_blocks(Request("b", PROMPT))[1] == 0
    assert manager.cache.sizes.total == 0


# Looking up and touching


def test_a_look_up_pins_nothing_and_changes_nothing():
    manager = KVCacheManager(5, 4)
    run_to_end(manager, Request("a", PROMPT))
    before = manager.cache.render(), manager.cache.stats
    prefix, hit = manager.get_computed_blocks(Request("b", PROMPT[:9]))
    assert (manager.cache.render(), manager.cache.stats) == before
    run_to_end(manager, Request("c", list(range(16))))
    with pytest.raises(StaleMatch, match="8 tokens were found for request 'b' and 0 are left"):
        manager.allocate_slots(Request("b", PROMPT[:9]), 1, hit, prefix)


def test_an_allocation_touches_what_was_found_so_that_it_is_evicted_last():
    now = iter(range(1000))
    cache = RadixCache(page_size=4, values=BlockIds(4), clock=lambda: next(now))
    manager = KVCacheManager(9, 4, cache=cache)
    other = [5, *PROMPT[1:]]
    run_to_end(manager, Request("a", PROMPT))
    run_to_end(manager, Request("b", other))
    assert run_to_end(manager, Request("c", PROMPT)) == 12
    run_to_end(manager, Request("d", list(range(12))))
    assert manager.get_computed_blocks(Request("e", PROMPT))[1] == 12
    assert manager.get_computed_blocks(Request("f", other))[1] == 4


def test_touched_blocks_are_not_counted_as_room():
    manager = KVCacheManager(5, 4)
    run_to_end(manager, Request("a", PROMPT))
    longer = Request("b", [*PROMPT, 1, 2, 3])
    prefix, hit = manager.get_computed_blocks(longer)
    assert hit == 16
    assert manager.num_free_blocks == 4
    assert manager.allocate_slots(longer, 3, hit, prefix) is None
    assert manager.num_free_blocks == 4
    assert ids(manager, longer) == []


def test_a_hit_may_be_used_in_part():
    manager = KVCacheManager(20, 4)
    run_to_end(manager, Request("a", PROMPT))
    request = Request("b", PROMPT)
    prefix, hit = manager.get_computed_blocks(request)
    blocks = manager.allocate_slots(request, 8, hit - 4, prefix)
    assert blocks is not None
    assert len(blocks.block_ids) == 2
    assert len(ids(manager, request)) == 4


# Room


def test_block_zero_is_never_handed_out():
    manager = KVCacheManager(5, 4)
    request = Request("a", PROMPT)
    admit(manager, request)
    assert sorted(ids(manager, request)) == [1, 2, 3, 4]
    assert NULL_BLOCK == 0


def test_allocation_is_all_or_nothing():
    manager = KVCacheManager(5, 4)
    admit(manager, Request("a", PROMPT[:5]))
    big = Request("b", [9] * 12)
    assert manager.allocate_slots(big, 12) is None
    assert ids(manager, big) == []
    assert manager.num_free_blocks == 2
    assert manager.allocate_slots(big, 8) is not None


def test_room_is_left_to_others_and_asked_for_the_whole_sequence():
    manager = KVCacheManager(5, 4)
    request = Request("a", PROMPT)
    assert manager.allocate_slots(request, 4, reserved_blocks=4) is None
    assert manager.allocate_slots(request, 4, reserved_blocks=3) is not None
    long = Request("b", [*PROMPT, 1])
    assert manager.allocate_slots(long, 4, full_sequence_must_fit=True) is None
    fits = Request("c", PROMPT[:12])
    assert manager.allocate_slots(fits, 4, full_sequence_must_fit=True) is not None
    assert len(ids(manager, fits)) == 1


def test_no_slots_are_reserved_beyond_the_longest_sequence():
    manager = KVCacheManager(20, 4, max_model_len=18)
    request = Request("a", PROMPT)
    admit(manager, request, num_lookahead_tokens=30)
    assert len(ids(manager, request)) == 5


def test_cached_blocks_stay_until_they_are_needed_and_tails_go_first():
    manager = KVCacheManager(7, 4)
    run_to_end(manager, Request("a", PROMPT))
    assert manager.usage == 0
    run_to_end(manager, Request("b", [1, 2, 3]))
    assert manager.get_computed_blocks(Request("c", [*PROMPT, 1]))[1] == 16
    admit(manager, Request("d", list(range(15))))
    assert manager.usage == pytest.approx(4 / 6)
    assert manager.get_computed_blocks(Request("e", PROMPT))[1] == 8


def test_free_twice_or_without_blocks_does_nothing():
    manager = KVCacheManager(7, 4)
    request = Request("a", PROMPT)
    manager.free(request)
    run_to_end(manager, request)
    manager.free(request)
    manager.check_integrity()


def test_a_preempted_request_finds_what_it_had_computed():
    manager = KVCacheManager(9, 4)
    request = Request("a", PROMPT[:9])
    admit(manager, request)
    for token in range(5):
        request.all_token_ids.append(token)
        step(manager, request)
    manager.free(request)
    request.num_computed_tokens = 0
    assert admit(manager, request) == 12


def test_reset_is_refused_while_blocks_are_in_use():
    manager = KVCacheManager(9, 4)
    request = Request("a", PROMPT)
    admit(manager, request)
    assert manager.reset_prefix_cache() is False
    manager.free(request)
    assert manager.reset_prefix_cache() is True
    assert manager.get_computed_blocks(request)[1] == 0
    assert manager.num_free_blocks == 8
    manager.check_integrity()


# Duplicates


def test_two_requests_with_one_prompt_end_with_the_same_blocks():
    manager = KVCacheManager(20, 4)
    first, second = Request("a", list(PROMPT)), Request("b", list(PROMPT))
    admit(manager, first)
    admit(manager, second)
    assert not set(ids(manager, first)) & set(ids(manager, second))
    for request in (first, second):
        request.all_token_ids.append(1)
        step(manager, request)
    assert ids(manager, first)[:4] == ids(manager, second)[:4]
    assert ids(manager, first)[4] != ids(manager, second)[4]
    moved = manager.take_moved()
    assert list(moved) == ["b"]
    assert list(moved["b"].block_ids) == ids(manager, second)
    assert manager.take_moved() == {}
    assert manager.num_free_blocks == 19 - 6
    manager.check_integrity()


def test_a_request_that_ends_as_a_duplicate_frees_its_blocks():
    manager = KVCacheManager(20, 4)
    first, second = Request("a", PROMPT), Request("b", PROMPT)
    admit(manager, first)
    admit(manager, second)
    manager.free(first)
    manager.free(second)
    assert manager.cache.sizes.total == 16
    assert manager.take_moved() == {}
    manager.check_integrity()


def test_a_duplicate_that_goes_on_longer_adds_its_own_tail():
    manager = KVCacheManager(20, 4)
    first, second = Request("a", PROMPT[:8]), Request("b", PROMPT)
    admit(manager, first)
    admit(manager, second)
    own = ids(manager, second)
    manager.cache_blocks(first, 8)
    manager.cache_blocks(second, 16)
    assert ids(manager, second) == ids(manager, first) + own[2:]
    assert manager.get_block_ids("b") == (ids(manager, second),)


# Numbers and misuse


def test_stats_count_requests_when_they_are_let_in():
    manager = KVCacheManager(20, 4)
    run_to_end(manager, Request("a", PROMPT))
    manager.get_computed_blocks(Request("b", PROMPT))
    run_to_end(manager, Request("b", PROMPT))
    stats = manager.make_prefix_cache_stats()
    assert (stats.requests, stats.queries, stats.hits) == (2, 32, 12)
    assert manager.make_prefix_cache_stats().requests == 0


def test_events_tell_what_blocks_are_stored_and_removed():
    cache = RadixCache(page_size=16, values=BlockIds(16), events=16)
    manager = KVCacheManager(4, 16, cache=cache)
    prompt = list(range(35))
    run_to_end(manager, Request("a", prompt, lora_name="x"))
    (stored,) = manager.take_events()
    assert stored.token_ids == tuple(prompt[:32])
    assert stored.namespace == ("x", None)
    run_to_end(manager, Request("b", [1, *prompt]))
    removed, stored = manager.take_events()
    assert len(removed.block_hashes) == 2
    assert len(stored.block_hashes) == 2
    assert KVCacheManager(4, 16).take_events() == []


@pytest.mark.parametrize(
    ("blocks", "cache", "message"),
    [
        (1, None, "num_blocks 1 is less than 2"),
        (9, RadixCache(page_size=2), "give an empty one with page_size=4"),
        (9, RadixCache(page_size=4), r"make it with values=BlockIds\(4\)"),
        (9, RadixCache(page_size=4, values=BlockIds(2)), r"make it with values=BlockIds\(4\)"),
    ],
)
def test_impossible_pools_are_refused(blocks, cache, message):
    with pytest.raises(ValueError, match=message):
        KVCacheManager(blocks, 4, cache=cache)


def test_numbers_that_do_not_go_together_are_refused():
    manager = KVCacheManager(20, 4)
    run_to_end(manager, Request("a", PROMPT))
    request = Request("b", PROMPT)
    prefix, hit = manager.get_computed_blocks(request)
    for wrong, given in ((hit + 4, prefix), (hit - 1, prefix), (hit, None), (-4, prefix)):
        with pytest.raises(ValueError, match="pass on what get_computed_blocks gave"):
            manager.allocate_slots(request, 1, wrong, given)
    admit(manager, request)
    with pytest.raises(ValueError, match="only a new request can be given any"):
        manager.allocate_slots(request, 1, hit, prefix)
    with pytest.raises(ValueError, match="'c' holds no blocks"):
        manager.cache_blocks(Request("c", PROMPT), 4)
    request.all_token_ids = [*PROMPT, *PROMPT]
    with pytest.raises(ValueError, match="allocate_slots comes before the step"):
        manager.cache_blocks(request, 32)


@pytest.mark.parametrize(
    "name",
    [
        "num_new_tokens",
        "num_lookahead_tokens",
        "num_external_computed_tokens",
        "reserved_blocks",
    ],
)
def test_negative_counts_are_refused_before_anything_changes(name):
    manager = KVCacheManager(20, 4)
    request = Request("a", PROMPT)
    with pytest.raises(ValueError, match=f"{name} -5 is negative"):
        manager.allocate_slots(request, **{"num_new_tokens": 4, name: -5})
    assert manager.reset_prefix_cache(), "a request was let in"
    admit(manager, request, new=8)
    with pytest.raises(ValueError, match=f"{name} -5 is negative"):
        manager.allocate_slots(request, **{"num_new_tokens": 4, name: -5})
    assert len(ids(manager, request)) == 2
    assert not manager.cache.sizes.total, "something was cached"


def test_a_negative_token_id_never_finds_an_image():
    manager = KVCacheManager(20, 4)
    run_to_end(manager, Request("a", PROMPT, contents=[Content(0, 8, "cat")]))
    forged = Request("b", [-1] * 8 + PROMPT[8:])
    with pytest.raises(ValueError, match="token -1 at position 0 of request 'b' is negative"):
        manager.get_computed_blocks(forged)
    with pytest.raises(ValueError, match="token -1 at position 0 of request 'b' is negative"):
        manager.allocate_slots(forged, 16)
    assert manager.usage == 0
    assert manager.make_prefix_cache_stats().requests == 1
    manager.check_integrity()


def test_placeholders_of_contents_may_be_any_ids():
    manager = KVCacheManager(20, 4)
    run_to_end(manager, Request("a", PROMPT, contents=[Content(2, 5, "cat")]))
    ids = [*PROMPT[:2], *[-7] * 5, *PROMPT[7:]]
    assert run_to_end(manager, Request("b", ids, contents=[Content(2, 5, "cat")])) == 12


def test_a_request_that_gets_a_negative_token_can_still_be_freed():
    manager = KVCacheManager(20, 4)
    request = Request("a", PROMPT[:7])
    admit(manager, request)
    request.all_token_ids.append(-1)
    step(manager, request)
    with pytest.raises(ValueError, match=r"token -1 at position 7 .*cache_computed=False"):
        manager.free(request)
    manager.free(request, cache_computed=False)
    assert manager.usage == 0
    manager.check_integrity()


# Everything at once, against a pretended KV

BLOCK = 3
BLOCKS = 14
BASES = ([1] * 20, [1] * 7 + [2] * 13, [3, 1, 3, 1] * 5)
GARBAGE = ("garbage",)


@dataclass
class Step:
    """A step in flight: what the runner was sent."""

    table: list[int]
    prefix: tuple[object, ...]
    start: int
    stop: int


class Runtime(RuleBasedStateMachine):
    """A runtime with steps in flight beside a model that keeps, for every slot, what it holds.

    The KV of a token is the whole prefix that ends in it, with its namespace: so a slot that was
    written after anything else, or was taken away too soon, shows when it is read.
    """

    def __init__(self):
        super().__init__()
        self.made = 0
        self.live: dict[str, Request] = {}
        self.tables: dict[str, list[int]] = {}  # the runner's own copy, from what it was sent
        self.published: dict[str, int] = {}
        self.ever: set[tuple[object, ...]] = set()
        self.flight: deque[Step] = deque()
        self.kv: dict[tuple[int, int], object] = {}

    @initialize(
        policy=st.sampled_from(["lru", "lfu", "mru"]), caching=st.sampled_from([True, True, False])
    )
    def make(self, policy, caching):
        ticks = iter(range(10**9))
        cache = RadixCache(BLOCK, policy, lambda: next(ticks), BlockIds(BLOCK))
        self.caching = caching
        self.manager = KVCacheManager(BLOCKS, BLOCK, cache=cache, enable_caching=caching)

    # What the model knows

    def content(self, request, n):
        tokens = [
            next(
                (c.identity for c in request.contents if c.start <= at < c.start + c.length), token
            )
            for at, token in enumerate(request.all_token_ids[:n])
        ]
        return (request.lora_name, request.cache_salt, *tokens)

    def note_published(self, request, computed):
        full = min(computed, request.num_tokens) // BLOCK if self.caching else 0
        self.published[request.request_id] = max(self.published[request.request_id], full)
        self.ever |= {self.content(request, n * BLOCK) for n in range(1, full + 1)}

    def found_by_model(self, request, known):
        hit = 0
        while hit + BLOCK < request.num_tokens and self.content(request, hit + BLOCK) in known:
            hit += BLOCK
        return hit

    def sent(self, request, new):
        """What the scheduler sends with the step: moved tables whole, the others' new blocks."""
        for request_id, blocks in self.manager.take_moved().items():
            self.tables[request_id] = list(blocks.block_ids)
        table = self.tables[request.request_id]
        if table != ids(self.manager, request):
            table += new.block_ids

    def fly(self, request, n):
        start = request.num_computed_tokens
        request.num_computed_tokens = start + n
        table = list(self.tables[request.request_id])
        self.flight.append(Step(table, self.content(request, start + n), start, start + n))

    # What happens

    @rule(
        base=st.sampled_from(BASES),
        n=st.integers(1, 20),
        last=st.integers(1, 3),
        lora=st.sampled_from([None, None, "x"]),
        image=st.sampled_from([[], [], [Content(4, 3, "cat")], [Content(4, 3, "dog")]]),
    )
    def add(self, base, n, last, lora, image):
        request = Request(f"r{self.made}", [*base[:n], last], lora_name=lora, contents=image)
        self.made += 1
        self.live[request.request_id] = request

    @precondition(lambda self: len(self.live) > len(self.tables))
    @rule(data=st.data(), part=st.booleans(), whole=st.booleans())
    def let_in(self, data, part, whole):
        waiting = [r for r in self.live.values() if r.request_id not in self.tables]
        request = data.draw(st.sampled_from(waiting))
        prefix, hit = self.manager.get_computed_blocks(request)
        self.check_hit(request, hit)
        if part:
            hit = data.draw(st.integers(0, hit // BLOCK)) * BLOCK
        n = data.draw(st.integers(1, request.num_tokens - hit))
        free = self.manager.num_free_blocks
        new = self.manager.allocate_slots(request, n, hit, prefix, full_sequence_must_fit=whole)
        if new is None:
            need = -(-(request.num_tokens if whole else hit + n) // BLOCK)
            assert free - need < 0 or hit
            assert self.manager.num_free_blocks == free
            return
        self.tables[request.request_id] = ids(self.manager, request)
        self.published[request.request_id] = hit // BLOCK
        request.num_computed_tokens = hit
        self.sent(request, new)
        self.fly(request, n)

    def check_hit(self, request, hit):
        assert hit % BLOCK == 0
        assert hit <= request.num_tokens - 1
        held = {
            self.content(self.live[request_id], n * BLOCK)
            for request_id, full in self.published.items()
            for n in range(1, full + 1)
        }
        assert self.found_by_model(request, held) <= hit <= self.found_by_model(request, self.ever)
        if not self.manager.cache.stats.evicted_tokens:
            assert hit == self.found_by_model(request, self.ever)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), lookahead=st.integers(0, 4))
    def run(self, data, lookahead):
        request = self.live[data.draw(st.sampled_from(sorted(self.tables)))]
        if request.num_computed_tokens == request.num_tokens:
            request.all_token_ids.append(data.draw(st.integers(1, 2)))
        n = data.draw(st.integers(1, request.num_tokens - request.num_computed_tokens))
        had = ids(self.manager, request)
        new = self.manager.allocate_slots(request, n, num_lookahead_tokens=lookahead)
        self.note_published(request, request.num_computed_tokens)
        if new is None:
            assert len(ids(self.manager, request)) == len(had)
            return
        self.sent(request, new)
        self.fly(request, n)

    @precondition(lambda self: self.tables and not self.flight)
    @rule(data=st.data(), drafts=st.lists(st.integers(1, 2), min_size=1, max_size=4))
    def run_with_drafts(self, data, drafts):
        request = self.live[data.draw(st.sampled_from(sorted(self.tables)))]
        start = request.num_computed_tokens
        if start != request.num_tokens:
            return
        request.all_token_ids.append(data.draw(st.integers(1, 2)))
        new = self.manager.allocate_slots(request, 1 + len(drafts))
        self.note_published(request, start)
        if new is None:
            return
        self.sent(request, new)
        accepted = data.draw(st.integers(0, len(drafts)))
        request.all_token_ids += drafts[:accepted]
        self.fly(request, 1 + accepted)
        self.execute()
        table = self.tables[request.request_id]
        for at in range(start + 1 + accepted, start + 1 + len(drafts)):
            self.kv[table[at // BLOCK], at % BLOCK] = GARBAGE

    @precondition(lambda self: self.flight)
    @rule()
    def execute(self):
        step = self.flight.popleft()
        for at in range(step.stop):
            slot = step.table[at // BLOCK], at % BLOCK
            if at >= step.start:
                self.kv[slot] = step.prefix[: 2 + at + 1]
            assert self.kv[slot] == step.prefix[: 2 + at + 1]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data):
        request = self.live[data.draw(st.sampled_from(sorted(self.tables)))]
        self.manager.cache_blocks(request, request.num_computed_tokens)
        self.note_published(request, request.num_computed_tokens)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), finish=st.booleans(), cache=st.booleans())
    def free(self, data, finish, cache):
        request_id = data.draw(st.sampled_from(sorted(self.tables)))
        request = self.live[request_id]
        self.manager.free(request, cache_computed=cache)
        if cache:
            self.note_published(request, request.num_computed_tokens)
        del self.tables[request_id], self.published[request_id]
        request.num_computed_tokens = 0
        if finish:
            del self.live[request_id]

    @rule()
    def reset(self):
        done = self.manager.reset_prefix_cache()
        assert done is not bool(self.tables)
        if done:
            self.ever.clear()

    # What always holds

    @invariant()
    def blocks_are_conserved(self):
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        tables = {
            request_id: ids(self.manager, self.live[request_id]) for request_id in self.tables
        }
        held = {block for table in tables.values() for block in table}
        assert NULL_BLOCK not in held
        assert len(held) + self.manager.num_free_blocks == BLOCKS - 1
        cached = {block for segment in self.manager.cache.iter_values() for block in segment}
        twice = Counter(block for table in tables.values() for block in table)
        assert all(count == 1 or block in cached for block, count in twice.items())

    @invariant()
    def the_same_prefix_has_the_same_blocks(self):
        blocks: dict[tuple[object, ...], int] = {}
        for request_id, full in self.published.items():
            request = self.live[request_id]
            table = ids(self.manager, request)
            for n in range(full):
                prefix = self.content(request, (n + 1) * BLOCK)
                assert blocks.setdefault(prefix, table[n]) == table[n]

    @invariant()
    def the_runner_knows_every_table_that_nobody_moved(self):
        moved = {} if not hasattr(self, "manager") else self.manager.take_moved()
        for request_id, blocks in moved.items():
            self.tables[request_id] = list(blocks.block_ids)
        for request_id, table in self.tables.items():
            assert table == ids(self.manager, self.live[request_id])


Runtime.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_any_runtime_reads_the_kv_that_it_would_have_computed = Runtime.TestCase
