"""Jumps over forced text: the same output with and without, in fewer forward passes."""

from __future__ import annotations

from itertools import product

import pytest
from constraint_support import (
    EOS,
    IDS,
    LETTERS,
    MergingTokenizer,
    WordsMatcher,
    preferring,
    spell,
    spread_script,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phloem.scheduler import PlainTokens

PROMPT = [40, 41, 42]
LONG = ("abbacdfab" * 3 + "e", "abbacdfab" * 3 + "f", "fff")


def ids(*spellings):
    return [IDS[s.encode()] for s in spellings]


@pytest.fixture
def jumping(harness, overlap):
    """Makes harnesses with a tokenizer."""

    def make(jump=True, script=spread_script, **options):
        tokenizer = MergingTokenizer()
        return harness(
            overlap=overlap,
            script=script,
            tokenizer=tokenizer,
            enable_jump_forward=jump,
            **options,
        )

    return make


def forwards(h):
    """Rows that were computed, all steps together."""
    return sum(batch.num_rows for batch in h.runner.steps)


def test_forced_text_comes_without_forward_passes(jumping, overlap):
    counted = {}
    for jump in (True, False):
        h = jumping(jump, preferring(*ids("a")))
        h.add("r", PROMPT, max_new_tokens=60, matcher=WordsMatcher(LONG))
        got = h.run()["r"]
        assert spell(got.token_ids) in LONG
        counted[jump] = forwards(h), got
    (few, jumped), (many, went) = counted[True], counted[False]
    assert jumped.token_ids == went.token_ids
    assert went.last.jump_forward_tokens == 0
    saved = jumped.last.jump_forward_tokens
    assert saved > 10
    # What a step in flight computed that is not wanted costs a row.
    assert few <= many - saved + 2 * overlap
    assert few <= 4 + 2 * overlap


def test_all_news_say_how_much_was_jumped_over(jumping):
    """Also of tokens of which nothing else comes, which all requests get together."""
    h = jumping(True, preferring(*ids("a")))
    words = [f"abbacdfab{end}{more}" for end in "ef" for more in ("aab", "aba", "bab", "bba")]
    request = h.add("r", PROMPT, max_new_tokens=60, matcher=WordsMatcher(words))
    told, jumped = [], []
    while not h.loop.idle:
        for output in h.step():
            told.append(output.jump_forward_tokens)
            jumped.append(request.guide.jumped)
    assert told == jumped
    assert told.count(told[-1]) > 2, "nothing came behind what was jumped over"


def test_a_request_may_say_whether_it_jumps(jumping):
    for configured in (True, False):
        for asked in (True, False):
            h = jumping(configured, preferring(*ids("a")))
            h.add("r", PROMPT, max_new_tokens=60, jump_forward=asked, matcher=WordsMatcher(LONG))
            assert bool(h.run()["r"].last.jump_forward_tokens) == asked


def test_tokens_may_be_replaced_again_and_again_up_to_the_end_of_the_context(jumping):
    """Each time a step in flight is taken back, and its slot is not reserved a second time."""
    words = ["".join(parts) for parts in product(("cdf", "ef"), repeat=5)]
    for jump in (True, False):
        h = jumping(
            jump,
            lambda history: {IDS[b"c"]: 9.0} | dict.fromkeys(range(4, 50), 1.0),
            context_len=13,
        )
        h.add("r", PROMPT, max_new_tokens=10, matcher=WordsMatcher(words))
        got = h.run()["r"]
        assert got.token_ids == ids("cd", "f") * 5


def test_tokens_that_are_cut_anew_are_taken_in_with_those_of_others(jumping, overlap):
    words = ["".join(parts) for parts in product(("cdf", "ef"), repeat=5)]
    h = jumping(False, lambda _: {IDS[b"c"]: 9.0} | dict.fromkeys(range(4, 50), 1.0))
    h.add("plain", PROMPT, max_new_tokens=20, ignore_eos=True)
    h.add("held", PROMPT, max_new_tokens=20, matcher=WordsMatcher(words))
    together = 0
    while not h.loop.idle:
        parts = h.step().parts
        together += any(isinstance(p, PlainTokens) and p.rids == ["plain", "held"] for p in parts)
    assert h.outputs["held"].token_ids == ids("cd", "f") * 5
    # All but the first and the last; what a step in flight computes with is looked at.
    assert together == (4 if overlap else 8)


def test_the_beginning_of_an_output_is_jumped_over_too(jumping):
    h = jumping()
    h.add("r", PROMPT, max_new_tokens=60, matcher=WordsMatcher(["abcdefabcdef", "abcdefabcdeb"]))
    got = h.run()["r"]
    assert got.last.jump_forward_tokens >= 1


def test_a_sampled_token_gives_way_before_anybody_sees_it(jumping):
    for jump in (True, False):
        h = jumping(jump, preferring(*ids("c", "f")))
        h.add("r", PROMPT, max_new_tokens=9, matcher=WordsMatcher(["cdf", "cdcf", "ab"]))
        assert h.run()["r"].token_ids == ids("cd", "f")


def test_who_wants_logprobs_does_not_jump_and_keeps_what_was_sampled(jumping):
    h = jumping(True, preferring(*ids("c", "d")))
    h.add("r", PROMPT, max_new_tokens=60, top_logprobs=1, matcher=WordsMatcher(["cdfdab", "ab"]))
    got = h.run()["r"]
    assert got.token_ids[0] == IDS[b"c"]
    assert spell(got.token_ids) == "cdfdab"
    assert len(got.logprobs) == len(got.token_ids)
    assert got.last.jump_forward_tokens == 0


def test_forced_text_ends_by_length_and_by_stop_ids_like_any_other(jumping):
    word = "f" + "dab" * 8
    for options in (
        {"max_new_tokens": 7},
        {"max_new_tokens": 40, "stop_token_ids": tuple(ids("ab"))},
    ):
        outputs = []
        for jump in (True, False):
            h = jumping(jump, preferring(*ids("f")))
            h.add("r", PROMPT, matcher=WordsMatcher([word, "e"]), **options)
            got = h.run()["r"]
            outputs.append((got.token_ids, got.finish_reason))
        assert outputs[0] == outputs[1]
        assert word.startswith(spell(outputs[0][0]))


def test_a_stop_id_is_not_merged_into_forced_text(jumping):
    h = jumping(script=preferring(*ids("c")))
    h.add(
        "r", PROMPT, max_new_tokens=9, stop_token_ids=tuple(ids("c")), matcher=WordsMatcher(["cdf"])
    )
    # The beginning of the word is fixed before anything is sampled; here there is a choice.
    h.add(
        "s",
        PROMPT,
        max_new_tokens=9,
        stop_token_ids=tuple(ids("c")),
        matcher=WordsMatcher(["cdf", "e"]),
    )
    assert h.run()["s"].token_ids == ids("c")


def test_many_forced_tokens_are_computed_in_chunks(jumping):
    h = jumping(chunked_prefill_size=8)
    for i in range(3):
        h.add(
            f"r{i}",
            [40 + i] * 4,
            max_new_tokens=150,
            matcher=WordsMatcher(["fe" * 60 + "a", "fe" * 60 + "b"]),
        )
    out = h.run()
    assert all(spell(got.token_ids)[:-1] == "fe" * 60 for got in out.values())
    assert max(batch.num_tokens for batch in h.runner.steps) <= 8 + 3


def test_a_jump_that_the_pool_cannot_hold_retracts_somebody(jumping):
    words = ["bf" * 30 + c for c in LETTERS]
    outputs = []
    for capacity in (400, 100):
        h = jumping(capacity=capacity, schedule_conservativeness=0.01)
        for i in range(4):
            h.add(
                f"r{i}",
                [40 + i] * 6,
                max_new_tokens=80,
                temperature=1,
                seed=i,
                matcher=WordsMatcher(words),
            )
        outputs.append(h.run())
    roomy, tight = outputs
    assert sum(got.last.retractions for got in tight.values())
    assert {r: got.token_ids for r, got in tight.items()} == {
        r: got.token_ids for r, got in roomy.items()
    }


def test_a_jumping_row_has_no_step_in_flight(harness):
    h = harness(overlap=True, script=preferring(*ids("a")), tokenizer=MergingTokenizer())
    request = h.add("r", PROMPT, max_new_tokens=60, matcher=WordsMatcher(LONG))
    before = 0
    while not h.loop.idle:
        jumped = request.guide.jumped
        h.step()
        if request.guide.jumped > jumped and request.lease is not None:
            # The step that was scheduled before the jump does not contain it.
            assert request.in_flight == 0
            before += 1
    assert before


WORDS = st.lists(st.text(LETTERS, max_size=14), min_size=1, max_size=6, unique=True)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.one_of(
        WORDS,
        st.tuples(st.text(LETTERS, max_size=12), WORDS).map(lambda p: [p[0] + w for w in p[1]]),
    ),
    sealed=st.booleans(),
    greedy=st.booleans(),
    seed=st.integers(0, 1000),
    limit=st.integers(1, 20),
    least=st.integers(0, 4),
    steer=st.booleans(),
    stop_ids=st.sampled_from([(), (IDS[b"ab"],), (IDS[b"e"], IDS[b"cd"])]),
    presence=st.sampled_from([0.0, 1.0]),
    page_size=st.sampled_from([1, 4]),
    chunk=st.sampled_from([None, 4]),
)
@pytest.mark.parametrize("overlap", [False, True], ids=["normal", "overlap"])
def test_jumps_change_nothing_but_the_number_of_forward_passes(
    harness,
    overlap,
    words,
    sealed,
    greedy,
    seed,
    limit,
    least,
    steer,
    stop_ids,
    presence,
    page_size,
    chunk,
):
    def run(jump, overlap):
        h = harness(
            overlap=overlap,
            script=spread_script,
            tokenizer=MergingTokenizer(),
            enable_jump_forward=jump,
            page_size=page_size,
            chunked_prefill_size=chunk,
            context_len=5 + limit,
        )
        for i in range(3):
            h.add(
                f"r{i}",
                [40 + i] * 5,
                max_new_tokens=limit,
                min_new_tokens=min(least, limit),
                temperature=0 if greedy else 1,
                seed=seed + i,
                steer=steer,
                stop_token_ids=stop_ids,
                presence_penalty=presence,
                matcher=WordsMatcher(words, sealed=sealed),
            )
        return h, h.run()

    plain, expected = run(False, False)
    jumping, got = run(True, overlap)
    _, went = run(False, overlap)
    for rid, want in expected.items():
        text = spell(want.token_ids)
        assert any(word.startswith(text) for word in words)
        if want.finish_reason.type == "stop" and want.finish_reason.matched in (None, EOS):
            assert text in words
        for other in (got[rid], went[rid]):
            assert (other.token_ids, other.finish_reason) == (want.token_ids, want.finish_reason)
    if not overlap:
        assert forwards(jumping) <= forwards(plain) + (chunk is not None) * 20
