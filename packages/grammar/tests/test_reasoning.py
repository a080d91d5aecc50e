"""Thinking before a constraint: where it begins, what a budget forces, and the way back."""

from __future__ import annotations

import random

import numpy as np
import pytest

from phloem.grammar import Constraint, GrammarError
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.reasoning import Reasoning
from phloem.grammar.vocabulary import Vocabulary

A, B, HASH, JSON, FENCE, OPEN, CLOSE, STOP, HOLE, AB = range(10)
VOCABULARY = Vocabulary(
    [b"a", b"b", b"#", b"json", b"```", None, None, None, None, b"ab"],
    stop_ids=[STOP],
    special_ids=[OPEN, CLOSE],
)
GRAMMAR = FsmBackend(VOCABULARY).compile(Constraint.regex("ab+"))
THOUGHTS = {A, B, HASH, JSON, FENCE, OPEN, CLOSE, AB}


def thinking(end=(CLOSE,), budget=None):
    return Reasoning(VOCABULARY, end).wrap(GRAMMAR.matcher(), budget)


def legal(matcher, left=None) -> set[int]:
    mask = np.full((2, VOCABULARY.words + 1), -1, np.int32)
    matcher.fill_mask(mask, 1, left)
    return set(np.flatnonzero(np.unpackbits(mask[1].view(np.uint8), bitorder="little")).tolist())


def take(matcher, *tokens):
    assert all(matcher.accept(token) for token in tokens)
    return matcher


def test_the_constraint_binds_from_the_very_next_token():
    matcher = take(thinking(), FENCE, CLOSE)
    assert legal(matcher) == {A, AB}
    assert not matcher.accept(FENCE)
    assert not matcher.accept(JSON)
    assert take(matcher, AB).is_complete
    assert take(matcher, STOP).is_terminated


def test_thinking_is_free_but_does_not_end_the_text():
    matcher = thinking()
    assert legal(matcher) == THOUGHTS
    assert not matcher.accept(STOP)
    assert not matcher.accept(HOLE)
    assert not any(matcher.accept(token) for token in (-1, 10, 10_000))
    take(matcher, A, B, OPEN, JSON)
    assert not matcher.is_complete
    assert not matcher.is_terminated
    assert matcher.forced() == b""


def test_a_sequence_of_tokens_ends_the_thinking_wherever_it_begins():
    end = (A, A, B)
    matcher = take(thinking(end), A, A, A)
    assert matcher.is_thinking
    assert not take(matcher, B).is_thinking
    rng = random.Random(1)
    for _ in range(200):
        matcher, taken = thinking(end), []
        while matcher.is_thinking:
            taken += rng.choices((A, B, HASH), (5, 3, 1))
            take(matcher, taken[-1])
            assert matcher.is_thinking == (tuple(taken[-3:]) != end)


def test_a_budget_forces_the_rest_of_the_end():
    matcher = take(thinking((HASH, CLOSE), budget=2), A, HASH)
    assert legal(matcher) == {CLOSE}
    assert not matcher.accept(A)
    assert not take(matcher, CLOSE).is_thinking
    matcher = thinking((HASH, CLOSE), budget=0)
    assert legal(matcher) == {HASH}
    assert legal(take(matcher, HASH)) == {CLOSE}
    assert legal(take(matcher, CLOSE)) == {A, AB}


def test_thinking_leaves_room_for_the_shortest_text():
    matcher = thinking((HASH, CLOSE))
    assert matcher.distance_to_end() == 3
    assert legal(matcher, 4) == THOUGHTS
    assert legal(matcher, 3) == {HASH}
    assert take(matcher, HASH).distance_to_end() == 2
    assert legal(matcher, 2) == {CLOSE}
    assert legal(take(matcher, CLOSE), 1) == {AB}


def test_the_way_back_leads_through_the_border():
    rng = random.Random(2)
    for _ in range(100):
        matcher, taken = thinking((HASH, CLOSE), budget=4), []
        for _ in range(30):
            back = rng.choice((0, 0, 1, 2, 3))
            if back > len(taken):
                with pytest.raises(ValueError, match="taken back"):
                    matcher.rollback(back)
                continue
            matcher.rollback(back)
            taken = taken[: len(taken) - back]
            fresh = take(thinking((HASH, CLOSE), budget=4), *taken)
            assert legal(matcher) == legal(fresh)
            assert matcher.distance_to_end() == fresh.distance_to_end()
            if legal(matcher):
                token = rng.choice(sorted(legal(matcher)))
                assert matcher.fork().accept(token)
                take(matcher, token)
                taken.append(token)


def test_masks_have_exactly_what_is_accepted():
    rng = random.Random(3)
    matcher = thinking((A, B), budget=5)
    for _ in range(12):
        tokens = legal(matcher)
        assert tokens == {token for token in range(-1, 40) if matcher.fork().accept(token)}
        if tokens:
            take(matcher, rng.choice(sorted(tokens)))


@pytest.mark.parametrize("end", [(), (STOP,), (HOLE,), (10,), (CLOSE, -1)])
def test_an_end_that_cannot_come_is_refused(end):
    with pytest.raises(GrammarError):
        Reasoning(VOCABULARY, end)


def test_a_negative_budget_is_refused():
    with pytest.raises(GrammarError, match="-1"):
        thinking(budget=-1)
