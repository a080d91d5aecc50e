"""The fsm backend: regular expressions and choices from a constraint to a grammar and back."""

from __future__ import annotations

import numpy as np
import pytest
from grammar_vocabularies import byte_vocabulary, toy_vocabulary

from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.vocabulary import Vocabulary


@pytest.fixture
def backend():
    return FsmBackend(toy_vocabulary())


def test_choices_are_legal_and_nothing_else(backend):
    choices = ["yes", "no", "", "日本", "yes, but"]
    grammar = backend.compile(Constraint.choice(choices))
    assert all(grammar.accepts(choice) for choice in choices)
    assert not any(grammar.accepts(text) for text in ("ye", "yes,", "maybe", "日", "yesno"))


def test_a_regular_expression_is_pythons(backend):
    grammar = backend.compile(Constraint.regex(r"\d{2}(?i:am|PM)"))
    assert grammar.accepts("10Am")
    assert grammar.accepts("٣٣pm".encode())
    assert not grammar.accepts("10")
    assert not grammar.accepts(b"10\xff")


@pytest.mark.parametrize("constraint", [Constraint.regex(r"[a-z]+\d"), Constraint.choice(["x"])])
def test_a_grammar_comes_back_from_its_serialized_form(backend, constraint):
    grammar = backend.compile(constraint)
    again = FsmBackend(toy_vocabulary()).deserialize(grammar.serialize())
    masks = np.zeros((2, toy_vocabulary().words), np.int32)
    for row, matcher in enumerate((grammar.matcher(), again.matcher())):
        matcher.fill_mask(masks, row)
    assert (masks[0] == masks[1]).all()
    assert again.serialize() == grammar.serialize()


def test_what_is_damaged_or_of_another_vocabulary_is_refused(backend):
    data = backend.compile(Constraint.regex("[a-z]+")).serialize()
    with pytest.raises(GrammarError, match="compile it again"):
        FsmBackend(byte_vocabulary()).deserialize(data)
    for damaged in (b"", b"phloem-fsm\n", data[:-4], b"x" + data):
        with pytest.raises(GrammarError, match="compile"):
            backend.deserialize(damaged)


@pytest.mark.parametrize(
    "constraint",
    [Constraint.regex("[^\\s\\S]"), Constraint.regex("a\\bb"), Constraint.choice(["\ud800"])],
)
def test_a_constraint_that_no_text_satisfies_is_refused(backend, constraint):
    for use in (backend.check, backend.compile):
        with pytest.raises(GrammarError, match="text"):
            use(constraint)


def test_other_kinds_are_refused_by_name(backend):
    with pytest.raises(UnsupportedConstraint) as refusal:
        backend.check(Constraint.ebnf('root ::= "a"'))
    assert refusal.value.keyword == "ebnf"


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint.regex("(a{1,1000}){1,1000}"),
        Constraint.regex("(x?){100000}"),
        Constraint.choice([f"{n:x}" * 50 for n in range(10_000, 20_000)]),
    ],
)
def test_hostile_constraints_reach_a_limit(constraint):
    backend = FsmBackend(toy_vocabulary(), seconds=0.5)
    with pytest.raises(ConstraintTooComplex):
        backend.compile(constraint)


def test_no_text_begins_that_the_vocabulary_cannot_end():
    # No token begins with the byte 0xC3 but one that also has a second byte.
    single = [bytes([byte]) for byte in range(256) if byte != 0xC3]
    vocabulary = Vocabulary([*single, "é".encode()], [])
    backend = FsmBackend(vocabulary)
    grammar = backend.compile(Constraint.regex("xü|ab"))
    assert not grammar.matcher().accept(ord("x"))
    assert grammar.matcher().accept(ord("a"))
    with pytest.raises(GrammarError, match="c3"):
        backend.compile(Constraint.regex("ü"))
    assert backend.compile(Constraint.regex("[éa]+")).matcher().accept(vocabulary.size - 1)
