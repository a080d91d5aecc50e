"""Backends by name, and the one that picks: who compiles, and what is said when nobody can."""

from __future__ import annotations

import subprocess
import sys

import pytest
from grammar_vocabularies import END, byte_vocabulary

from phloem.grammar import (
    Constraint,
    ConstraintTooComplex,
    GrammarError,
    UnsupportedConstraint,
    backend_names,
    create_backend,
    register_backend,
)
from phloem.grammar.auto import AutoBackend
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.service import check

VOCABULARY = byte_vocabulary()
REGEX = Constraint.regex("ab")
CHOICE = Constraint.choice(["ab"])


class Picky:
    """Compiles one kind by `fsm`; refuses others as it is told."""

    def __init__(self, name, kind, refusal):
        self.name, self.kind, self.refusal, self.asked = name, kind, refusal, 0
        self.fsm = FsmBackend(VOCABULARY)

    def check(self, constraint):
        self.asked += 1
        if constraint.kind != self.kind:
            raise self.refusal
        self.fsm.check(constraint)

    def compile(self, constraint):
        self.check(constraint)
        return self.fsm.compile(constraint)

    def deserialize(self, data):
        return self.fsm.deserialize(data)


def missing(vocabulary):
    raise ImportError("install it")


def picking(*backends):
    return AutoBackend(
        VOCABULARY, {backend.name: lambda _, backend=backend: backend for backend in backends}
    )


def test_a_constraint_goes_to_the_first_that_enforces_it():
    first = Picky("first", "regex", UnsupportedConstraint("", "choice", "no"))
    second = Picky("second", "choice", UnsupportedConstraint("", "regex", "no"))
    auto = picking(first, second)
    assert auto.compile(REGEX).backend == "first"
    assert second.asked == 0
    assert auto.compile(CHOICE).backend == "second"
    auto.check(CHOICE)
    assert auto.compile(CHOICE).accepts("ab")


def test_when_nobody_can_all_reasons_are_told():
    first = Picky("first", "ebnf", UnsupportedConstraint("", "regex", "not my kind"))
    second = Picky("second", "ebnf", UnsupportedConstraint("/3", "(?=", "a look-ahead"))
    auto = AutoBackend(
        VOCABULARY, {"first": lambda _: first, "second": lambda _: second, "third": missing}
    )
    for ask in (auto.check, auto.compile):
        with pytest.raises(UnsupportedConstraint) as caught:
            ask(REGEX)
        assert (caught.value.pointer, caught.value.keyword) == ("/3", "(?=")
        assert caught.value.reason == "first: not my kind; second: a look-ahead; third: install it"


@pytest.mark.parametrize("error", [GrammarError("bad"), ConstraintTooComplex("deep")])
def test_what_is_malformed_or_too_complex_is_asked_of_nobody_else(error):
    second = Picky("second", "regex", None)
    first = Picky("first", "choice", error)
    for ask in (picking(first, second).compile, picking(first, second).check):
        with pytest.raises(type(error)):
            ask(REGEX)
    report = check(REGEX, ["first", "second"], {"first": first, "second": second}.__getitem__)
    assert [(each.backend, each.final) for each in report.backends] == [("first", True)]
    assert not report.supported
    assert second.asked == 0


def test_a_check_goes_on_after_what_is_unsupported_or_not_there():
    second = Picky("second", "choice", UnsupportedConstraint("", "regex", "no"))

    def make(name):
        if name == "first":
            raise ImportError("no such symbol")
        return second if name == "second" else FsmBackend(VOCABULARY)

    report = check(REGEX, ["first", "second", "fsm"], make)
    assert [each.supported for each in report.backends] == [False, False, True]
    assert report.backends[0].message == "no such symbol"
    assert not any(each.final for each in report.backends)


@pytest.mark.parametrize("error", [ImportError, GrammarError])
def test_a_backend_that_cannot_be_made_is_passed_over(error):
    def broken(vocabulary):
        raise error("no such symbol")

    second = Picky("second", "regex", UnsupportedConstraint("", "choice", "no"))
    auto = AutoBackend(VOCABULARY, {"first": broken, "second": lambda _: second})
    assert auto.compile(REGEX).backend == "second"
    with pytest.raises(UnsupportedConstraint, match="first: no such symbol"):
        auto.compile(CHOICE)


def test_a_serialized_grammar_remembers_its_backend():
    first = Picky("first", "regex", UnsupportedConstraint("", "choice", "no"))
    second = Picky("second", "choice", None)
    data = picking(first, second).compile(CHOICE).serialize()
    again = picking(first, second).deserialize(data)
    assert again.backend == "second"
    assert again.accepts("ab")
    matcher = again.matcher()
    assert all(matcher.accept(token) for token in (ord("a"), ord("b"), END))
    for damaged in (b"", b"third\n" + data, data[:20]):
        with pytest.raises(GrammarError):
            picking(first, second).deserialize(damaged)


def test_auto_takes_what_only_a_library_can():
    pytest.importorskip("xgrammar")
    auto = create_backend("auto", VOCABULARY)
    grammar = auto.compile(Constraint.ebnf('root ::= "(" root ")" | "x"'))
    assert grammar.backend == "xgrammar"
    assert auto.deserialize(grammar.serialize()).accepts("((x))")
    assert auto.compile(REGEX).backend == "fsm"


@pytest.mark.parametrize("name", ["auto", "fsm", "xgrammar", "llguidance"])
def test_backends_are_made_by_name(name):
    if name not in ("auto", "fsm"):
        pytest.importorskip(name)
    backend = create_backend(name, VOCABULARY)
    assert backend.name == name
    assert name in backend_names()
    grammar = backend.compile(CHOICE)
    assert grammar.accepts("ab")
    assert backend.deserialize(grammar.serialize()).accepts("ab")


def test_an_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(GrammarError, match="auto, fsm"):
        create_backend("outlines", VOCABULARY)


def test_others_may_register_theirs_under_a_free_name():
    register_backend("of-a-test", FsmBackend)
    register_backend("of-a-test", FsmBackend)
    assert isinstance(create_backend("of-a-test", VOCABULARY), FsmBackend)
    with pytest.raises(GrammarError, match="of-a-test"):
        register_backend("of-a-test", AutoBackend)
    with pytest.raises(GrammarError, match="fsm"):
        register_backend("fsm", AutoBackend)


def test_libraries_are_imported_by_nobody_who_does_not_need_them():
    code = (
        "import sys; from phloem.grammar import *; import phloem.grammar as g;"
        "b = g.create_backend('auto', g.Vocabulary([b'a', None], [1]));"
        "assert b.compile(g.Constraint.regex('a+')).accepts('aa');"
        "assert not {'xgrammar', 'llguidance', 'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
