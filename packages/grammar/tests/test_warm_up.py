"""What is found out ahead of the first answer: for all JSON, and for nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from grammar_vocabularies import encode, toy_vocabulary

from phloem.grammar import Constraint
from phloem.grammar.errors import GrammarError
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.sweeps import Template
from phloem.grammar.token_trie import TokenTrie
from phloem.grammar.vocabulary import Vocabulary
from phloem.grammar.warm_up import warm_up

VOCABULARY = toy_vocabulary()
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "nick": {"type": "string", "maxLength": 25},
        "note": {"type": "string"},
        "mail": {"type": "string", "format": "email"},
    },
    "required": ["name", "nick", "note", "mail"],
    "additionalProperties": False,
}
TEXT = b'{"name": "Ann Lee", "nick": "ann", "note": "a\\n b", "mail": "a.b@c.org"}'


def masks(backend):
    matcher = backend.compile(Constraint.json_schema(SCHEMA)).matcher()
    mask = np.zeros((1, VOCABULARY.words), np.int32)
    found = []
    for token in encode(VOCABULARY, TEXT):
        matcher.fill_mask(mask, 0)
        found.append(mask.tolist())
        assert matcher.accept(token)
    return found


def test_a_backend_that_is_warm_sweeps_less_for_the_same_masks(monkeypatch):
    swept = []
    sweep = TokenTrie.sweep

    def counted(self, dfa, state, nodes=(0,), leaving=None):
        swept.append(len(nodes))
        return sweep(self, dfa, state, nodes, leaving)

    monkeypatch.setattr(TokenTrie, "sweep", counted)
    cold, warm = FsmBackend(VOCABULARY), FsmBackend(VOCABULARY)
    warm_up(warm, VOCABULARY)
    swept.clear()
    expected = masks(cold)
    alone = len(swept)
    swept.clear()
    assert masks(warm) == expected
    assert len(swept) < alone / 4


def test_strings_of_other_limits_share_what_is_known_of_the_rest(monkeypatch):
    backend = FsmBackend(VOCABULARY)
    mask = np.zeros((1, VOCABULARY.words), np.int32)
    walked = []
    template = Template.of
    monkeypatch.setattr(Template, "of", lambda *given: walked.append(given) or template(*given))
    # As many characters may follow; in the last one, no fewer than three must.
    rests = [
        ({"maxLength": 40}, 20),
        ({"maxLength": 25}, 5),
        ({"maxLength": 30, "minLength": 13}, 10),
    ]
    found = []
    for limits, length in rests:
        matcher = backend.compile(Constraint.json_schema({"type": "string", **limits})).matcher()
        for byte in b'"' + b"x" * length:
            assert matcher.accept(byte)
        walked.clear()
        matcher.fill_mask(mask, 0)
        found.append((mask.tolist(), bool(walked)))
    (first, was_new), (second, is_new), (other, is_other) = found
    assert (was_new, is_new, is_other) == (True, False, True)
    assert first == second != other


@pytest.mark.parametrize("spells", [b"a", b"1"])
def test_a_vocabulary_that_cannot_spell_json_is_left_alone(spells):
    vocabulary = Vocabulary([spells], [])
    backend = FsmBackend(vocabulary)
    warm_up(backend, vocabulary)
    with pytest.raises(GrammarError):
        backend.compile(Constraint.json_schema(SCHEMA))


def test_a_backend_that_keeps_nothing_is_left_alone():
    class Other:
        name = "other"

        def compile(self, constraint):
            raise AssertionError("compiled")

    warm_up(Other(), VOCABULARY)
