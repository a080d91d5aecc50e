"""Masks over the whole vocabulary of the default model, beside trying every token."""

from __future__ import annotations

import random

import numpy as np
import pytest
from transformers import AutoTokenizer

from phloem.grammar import Constraint
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.regex import parse
from phloem.grammar.vocabulary import Vocabulary

PATTERNS = [
    r"[a-z]+( [a-z]+)*[.!?]",
    r"\w+@\w+\.(com|org)",
    r"(?s:.*)",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d",
    r'\{"name": "[^"\\\n]*", "age": \d{1,3}\}',
    r"SELECT \w+(, \w+)* FROM \w+( WHERE \w+ (=|<|>) ('[^']*'|\d+))?;",
    r"[^\x00-\x7f]{3,9}",
    r"( |\t|\n)*(def|class) [A-Za-z_]\w*(\(.*\))?:",
    r"(yes|no|it depends)(, because .{10,60})?",
    r"(?i)(the|a) (cat|dog)s? (sat|ran).*",
]
STATES = 500
SECONDS = 20.0
"""Compiling has these here: what is collected meanwhile may be the garbage of other tests."""


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    return Vocabulary.from_transformers(tokenizer)


def legal_by_trial(dfa, state, vocabulary):
    """The mask of a state: every token, by itself, byte by byte."""
    bits = np.zeros(vocabulary.words * 32, bool)
    for id, token in enumerate(vocabulary.tokens):
        bits[id] = token is not None and dfa.run(token, state) >= 0
    bits[list(vocabulary.stop_ids)] = dfa.accepting[state]
    return np.packbits(bits, bitorder="little").view(np.int32)


@pytest.mark.slow
def test_masks_of_500_random_states_equal_trying_every_token(vocabulary):
    backend = FsmBackend(vocabulary, seconds=SECONDS)
    choose = random.Random(7)
    compared = 0
    mask = np.zeros((1, vocabulary.words), np.int32)
    grammars = [(parse(p), backend.compile(Constraint.regex(p)), {}) for p in PATTERNS]
    while compared < STATES:
        dfa, grammar, tried = choose.choice(grammars)
        matcher, state = grammar.matcher(), 0
        for _ in range(choose.randint(1, 12)):
            matcher.fill_mask(mask, 0)
            if state not in tried:
                tried[state] = legal_by_trial(dfa, state, vocabulary)
            assert (mask[0] == tried[state]).all()
            compared += 1
            bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
            bits[list(vocabulary.stop_ids)] = 0
            legal = np.flatnonzero(bits).tolist()
            if not legal:
                break
            # Half of the time a short token, so that texts do not end at once.
            token = choose.choice(legal[: choose.choice([20, len(legal)])])
            assert matcher.accept(token)
            state = dfa.run(vocabulary.tokens[token], state)


def test_tokens_spell_what_the_tokenizer_encodes(tokenizer, vocabulary):
    choose = random.Random(8)
    pieces = [
        "the cat",
        " 日本語",
        "\n\n\t",
        "naïve café",
        "😀",
        "x = {'a': 1}",
        " ",
        "  ",
        "<p>",
        "ß",
    ]
    for _ in range(50):
        text = "".join(choose.choices(pieces, k=8))
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(vocabulary.tokens[id] for id in ids).decode() == text


def test_special_tokens_are_never_matched_by_their_names(tokenizer, vocabulary):
    assert set(tokenizer.all_special_ids) <= vocabulary.special_ids
    matcher = FsmBackend(vocabulary, seconds=SECONDS).compile(Constraint.regex("(?s:.*)")).matcher()
    mask = np.zeros((1, vocabulary.words), np.int32)
    matcher.fill_mask(mask, 0)
    bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
    for id in vocabulary.special_ids.difference(vocabulary.stop_ids):
        assert not bits[id]
        assert not matcher.accept(id)
    assert bits[tokenizer.eos_token_id]
    assert vocabulary.size == len(tokenizer)


def test_steered_texts_end_in_time_over_the_whole_vocabulary(vocabulary):
    backend = FsmBackend(vocabulary, seconds=SECONDS)
    choose = random.Random(9)
    mask = np.zeros((1, vocabulary.words), np.int32)
    for pattern in PATTERNS:
        matcher = backend.compile(Constraint.regex(pattern)).matcher()
        text = b""
        for left in range(matcher.distance_to_end() + 5, 0, -1):
            matcher.fill_mask(mask, 0, left)
            bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
            token = choose.choice(np.flatnonzero(bits).tolist())
            assert matcher.accept(token)
            text += vocabulary.tokens[token] or b""
            if matcher.is_terminated:
                break
        assert matcher.is_complete
        assert parse(pattern).accepts(text)
