"""A constraint on an output that may begin with reasoning: its first token tells."""

from __future__ import annotations

import numpy as np
import pytest

from phloem.grammar import Constraint, Reasoning
from phloem.grammar.registry import create_backend
from phloem.grammar.vocabulary import Vocabulary
from phloem.server.maybe_thinking import MaybeThinking

BEGIN, END, STOP = 3, 4, 5
VOCABULARY = Vocabulary([b"a", b"b", b"c", None, None, None], [STOP], [BEGIN, END, STOP])


@pytest.fixture
def matcher():
    grammar = create_backend("fsm", VOCABULARY).compile(Constraint.regex("ab"))
    thinking = Reasoning(VOCABULARY, [END]).wrap(grammar.matcher())
    return MaybeThinking(BEGIN, thinking, grammar.matcher())


def allowed(matcher):
    mask = np.zeros((1, 1), np.int32)
    matcher.fill_mask(mask, 0)
    return {token for token in range(6) if mask[0, 0] >> token & 1}


def test_an_answer_keeps_to_the_constraint_from_its_first_token(matcher):
    assert allowed(matcher) == {0, BEGIN}
    assert matcher.forced() == b"", "reasoning may come instead"
    assert not matcher.accept(1)
    assert matcher.accept(0)
    assert allowed(matcher) == {1}
    assert matcher.forced() == b"b"
    assert matcher.accept(1)
    assert matcher.is_complete
    assert matcher.accept(STOP)
    assert matcher.is_terminated


def test_reasoning_is_free_and_the_answer_behind_it_is_not(matcher):
    assert all(matcher.accept(token) for token in (BEGIN, 2, 1))
    assert allowed(matcher) == {0, 1, 2, BEGIN, END}
    assert not matcher.is_complete
    assert matcher.accept(END)
    assert allowed(matcher) == {0}


def test_what_is_taken_back_leaves_the_choice_open_again(matcher):
    for tokens in ((BEGIN, 2, END, 0), (0, 1)):
        assert all(matcher.accept(token) for token in tokens)
        other = matcher.fork()
        matcher.rollback(len(tokens))
        assert allowed(matcher) == {0, BEGIN}
        assert allowed(other) == ({1} if BEGIN in tokens else {STOP})
    with pytest.raises(ValueError, match="1 tokens"):
        matcher.rollback(1)
