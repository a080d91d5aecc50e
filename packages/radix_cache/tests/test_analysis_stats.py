from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.radix_cache import Key, RadixCache
from phloem.radix_cache.analysis import BYTES, PrefixStats
from phloem.radix_cache.analysis.distances import Counts, StackDistances
from phloem.radix_cache.analysis.replay import Replay, policy_for_pages
from phloem.radix_cache.analysis.units import TOKENS, digest
from phloem.radix_cache.policy import POLICY_NAMES

PAGE = 2


@st.composite
def traffic(draw, requests=40):
    """Requests that branch off each other: a cut of an earlier one plus a few tokens."""
    token = st.integers(0, 3)
    sent = []
    for _ in range(draw(st.integers(1, requests))):
        prompt = []
        if sent and draw(st.booleans()):
            earlier = draw(st.sampled_from(sent))
            prompt = earlier[0][: draw(st.integers(0, len(earlier[0])))] + earlier[1]
        prompt = prompt + draw(st.lists(token, max_size=12))
        output = draw(st.lists(token, max_size=4))
        sent.append((prompt, output, draw(st.sampled_from([(), ("a",), ("a", 1)]))))
    return sent


def capped(prompt):
    return max(0, len(prompt) - 1) // PAGE * PAGE


def lru_hits(sent, size):
    """What the real cache finds at one size, on the tokens themselves."""
    now = 0
    cache = RadixCache(PAGE, "lru", clock=lambda: now)
    hits = 0
    for prompt, output, namespace in sent:
        now += 1
        key = Key(prompt + output, namespace)
        found = cache.match(key)
        hits += min(found.length, capped(prompt))
        wanted = min(len(key) // PAGE * PAGE, size)
        with cache.lock(found):
            cache.evict(cache.sizes.total + wanted - found.length - size)
        cache.insert(key.head(wanted), list(range(wanted)))
        assert cache.sizes.total <= size
    return hits


@given(traffic())
def test_the_lru_curve_is_what_the_real_cache_finds_at_each_size(sent):
    sizes = [2, 4, 6, 10, 16, 24, 34, 46, 60, 80]
    stats = PrefixStats(PAGE, sizes)
    for prompt, output, namespace in sent:
        stats.add(prompt, namespace, output)
    points = stats.curve("lru").points
    assert [(p.size, p.hits) for p in points] == [(s, lru_hits(sent, s)) for s in sizes]
    assert all(a.hits <= b.hits for a, b in pairwise(points)), "more room never finds less"


@settings(max_examples=40)
@given(traffic(), st.integers(1, 12))
def test_a_bounded_memory_leaves_smaller_sizes_exact(sent, pages):
    sizes = [PAGE * n for n in range(1, pages + 1)]
    whole, bounded = PrefixStats(PAGE, sizes), PrefixStats(PAGE, sizes, remember=sizes[-1])
    for prompt, output, namespace in sent:
        whole.add(prompt, namespace, output)
        bounded.add(prompt, namespace, output)
    assert whole.curve("lru") == bounded.curve("lru")
    assert bounded.report().unique <= sizes[-1]
    assert bounded.report().complete == (whole.report().unique <= sizes[-1])


@settings(max_examples=40)
@given(traffic())
def test_an_unbounded_cache_finds_every_page_that_came_before(sent):
    stats = PrefixStats(PAGE, [])
    seen = set()
    reusable = with_hit = 0
    for prompt, output, namespace in sent:
        found = 0
        while found < capped(prompt) and (namespace, *prompt[: found + PAGE]) in seen:
            found += PAGE
        assert stats.add(prompt, namespace, output) == found
        reusable += found
        with_hit += found > 0
        whole = prompt + output
        seen |= {(namespace, *whole[:end]) for end in range(PAGE, len(whole) + 1, PAGE)}
    report = stats.report()
    assert report.reusable == reusable
    assert report.requests_with_hit == with_hit
    assert report.unique == len(seen) * PAGE
    assert report.prompt == sum(len(prompt) for prompt, _, _ in sent)
    assert report.output == sum(len(output) for _, output, _ in sent)
    assert report.complete


@settings(max_examples=25)
@given(traffic(requests=25))
def test_every_policy_is_simulated_as_the_real_cache_would_do_it(sent):
    sizes = [PAGE * 3, PAGE * 8, PAGE * 500]
    stats = PrefixStats(PAGE, sizes, POLICY_NAMES)
    for prompt, output, namespace in sent:
        stats.add(prompt, namespace, output)
    curves = {curve.policy: curve.points for curve in stats.report().curves}
    assert tuple(curves) == POLICY_NAMES
    assert curves["priority"] == curves["lru"], "without priorities the oldest go first"
    for policy, points in curves.items():
        assert points[-1].hits == stats.report().reusable, f"{policy} evicts with room to spare"


@settings(max_examples=40)
@given(traffic(), st.integers(1, 30))
def test_a_simulated_lru_cache_agrees_with_stack_distances(sent, pages):
    now = 0
    replay = Replay(pages, policy_for_pages("lru", PAGE), lambda: now)
    stats = PrefixStats(PAGE, [pages * PAGE])
    for prompt, output, namespace in sent:
        now += 1
        stats.add(prompt, namespace, output)
        path = digest(TOKENS.pack(prompt + output), PAGE * 4, namespace)
        replay.add(path, capped(prompt) // PAGE)
    assert stats.curve("lru").points[0].hits == replay.hits * PAGE


def test_the_cost_policy_sees_positions_in_tokens():
    class At:
        floor, hits, start, end, length = 0.0, 1, 2048, 4096, 2048

    # 1,024 pages of 16 tokens at position 16,384: the middle is at 24,576 tokens, 3 x 8,192.
    assert policy_for_pages("cost", 16).rank(At) == 8 * (1 + 3)


@given(st.lists(st.integers(0, 9), max_size=20), st.lists(st.tuples(st.integers(0, 19))))
def test_counts_sum_what_comes_after(initial, changes):
    counts, model = Counts(initial, 20), initial + [0] * (20 - len(initial))
    for (at,) in changes:
        counts.add(at, 3)
        model[at] += 3
    assert [counts.after(at) for at in range(20)] == [sum(model[at + 1 :]) for at in range(20)]
    assert counts.total == sum(model)


def test_visits_that_nobody_remembers_make_room_for_new_ones():
    distances = StackDistances()
    paths = [digest(TOKENS.pack([n % 7] * PAGE), PAGE * 4, ()) for n in range(5000)]
    for path in paths[:7]:
        assert distances.add(path, 1)[0] == []
    for path in paths[7:]:
        assert distances.add(path, 1)[0] == [(6, 1)]
    assert distances.pages == 7


def test_shared_prefixes_are_whole_though_a_few_requests_left_them_half_way():
    stats = PrefixStats(page_size=4, sizes=[])
    system = list(range(100, 140))
    for n in range(50):
        stats.add(system + [n] * 8)
    stats.add(system[:20] + [7] * 8)
    for n in range(5):
        stats.add(list(range(200, 216)) + [n] * 8)
    first, second = stats.report().shared
    assert (first.start, first.end, first.requests) == (0, 40, 50)
    assert first.saved == 49 * 40 + 20, "and the one that left half way"
    assert (second.end, second.requests, second.saved) == (16, 5, 4 * 16)
    assert first.begins.startswith("100 101 102")
    assert len(stats.report(shared=1).shared) == 1


def test_a_prefix_of_few_within_a_prefix_of_many_is_listed_for_what_it_adds():
    stats = PrefixStats(page_size=4, sizes=[])
    for n in range(100):
        stats.add([1] * 8 + [2 + n % 10] * 40 + [50 + n] * 8)
    shared = stats.report(shared=20).shared
    assert [(s.start, s.end, s.requests) for s in shared if s.start] == [(8, 48, 10)] * 10
    assert [(s.start, s.end, s.requests, s.saved) for s in shared if not s.start] == [
        (0, 8, 100, 99 * 8)
    ]


def test_texts_are_counted_in_bytes_and_shown_as_text():
    stats = PrefixStats(page_size=4, sizes=[], unit=BYTES)
    stats.add("Grüße an alle: eins")
    stats.add("Grüße an alle: zwei", output="danke")
    report = stats.report()
    assert (report.unit, report.units_per_token) == ("bytes", 4.0)
    assert report.reusable == 16, "17 bytes are alike, of which 4 pages"
    assert report.shared[0].begins == "Grüße an alle:"


def test_nothing_is_counted_of_a_request_that_is_refused():
    stats = PrefixStats()
    with pytest.raises(TypeError, match="tokenize it"):
        stats.add("text")
    with pytest.raises(ValueError, match="int32"):
        stats.add([1], output=[2**31])
    assert stats.report().requests == 0
    assert stats.report().rate == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"page_size": 0}, "page_size 0 is less than 1"),
        ({"sizes": [8]}, "a cache of 8 holds no page of 16"),
        ({"sizes": [4096], "remember": 100}, "remember 100 is less than the largest size 4096"),
        ({"policies": ["best"]}, "policy 'best' is unknown"),
    ],
)
def test_options_that_cannot_be_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        PrefixStats(**options)
