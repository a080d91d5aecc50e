"""Reasoning that is brought to its end in time, where nothing else constrains the output."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.server.grammars import thinking_guidance
from phloem.server.messages import ConstraintUse, Thinking
from phloem.server.thinking_budget import ThinkingBudget

WORDS = 2


def allowed(matcher):
    mask = np.full((2, WORDS), 7, np.int32)
    matcher.fill_mask(mask, 1)
    assert (mask[0] == 7).all()
    bits = np.unpackbits(mask[1].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def test_the_end_is_all_that_may_come_behind_the_budget():
    matcher = ThinkingBudget([40, 9], 2)
    assert allowed(matcher) == set(range(64))
    assert matcher.accept(1)
    assert matcher.accept(40)
    assert allowed(matcher) == {9}, "the end has begun by itself"
    assert not matcher.accept(3)
    assert matcher.accept(9)
    assert allowed(matcher) == set(range(64))
    assert all(matcher.accept(token) for token in (1, 1, 1, 40, 1))
    assert matcher.is_complete
    assert not matcher.is_terminated


def test_no_thinking_at_all_is_a_budget_too():
    matcher = ThinkingBudget([63], 0)
    assert allowed(matcher) == {63}


def test_reasoning_that_ended_before_is_bound_by_nothing():
    matcher = ThinkingBudget([40], 3)
    assert all(matcher.accept(token) for token in (1, 40, 2, 3, 4, 5))
    assert allowed(matcher) == set(range(64))


def test_an_answer_that_does_not_begin_with_reasoning_is_bound_by_nothing():
    matcher = ThinkingBudget([40], 1, begin=5)
    assert allowed(matcher) == set(range(64))
    assert matcher.accept(6)
    assert allowed(matcher) == set(range(64))
    matcher.rollback(1)
    assert matcher.accept(5)
    assert allowed(matcher) == {40}
    assert allowed(ThinkingBudget([40], 0, begin=5)) == set(range(64))


MAYBE = st.sampled_from([None, 0, 2])


@given(st.lists(st.integers(0, 2), max_size=12), st.integers(0, 4), MAYBE, st.data())
def test_what_is_taken_back_leaves_no_trace(tokens, budget, begin, data):
    matcher, end = ThinkingBudget([0, 1, 0], budget, begin), (0, 1, 0)
    taken = [token for token in tokens if matcher.accept(token)]
    count = data.draw(st.integers(0, len(taken)))
    other = matcher.fork()
    matcher.rollback(count)
    fresh = ThinkingBudget(end, budget, begin)
    for token in taken[: len(taken) - count]:
        assert fresh.accept(token)
    assert allowed(matcher) == allowed(fresh)
    for token in taken[len(taken) - count :]:
        assert matcher.accept(token)
    assert allowed(matcher) == allowed(other)


def test_more_than_was_taken_cannot_be_taken_back():
    with pytest.raises(ValueError, match="1 tokens cannot be taken back: 0 were accepted"):
        ThinkingBudget([1], 1).rollback(1)


def test_without_a_budget_nothing_guides():
    assert thinking_guidance(ConstraintUse("", thinking=Thinking([1]))).matcher is None
    assert thinking_guidance(ConstraintUse("")).matcher is None
