"""The backend of this package's own automata: which kind of constraint becomes which automaton."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from phloem.grammar.automaton import Automaton
from phloem.grammar.constraint import Constraint
from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.dfa_automaton import DfaAutomaton
from phloem.grammar.errors import GrammarError, UnsupportedConstraint
from phloem.grammar.json_machine import JsonAutomaton, build_json, check_json
from phloem.grammar.matcher import AutomatonGrammar
from phloem.grammar.regex import parse
from phloem.grammar.sealed import unseal
from phloem.grammar.structural import (
    StructuralTagAutomaton,
    compile_structural_tag,
    read_structural_tag,
)
from phloem.grammar.sweeps import Sweeps
from phloem.grammar.vocabulary import Vocabulary

_VERSION = "2"
_SECONDS = 1.0


class AutomatonKind(NamedTuple):
    """How constraints of one kind become automata."""

    build: Callable[[Constraint, Vocabulary, Budget], Automaton]
    """Raises what `GrammarBackend.compile` does."""
    load: Callable[[bytes], Automaton]
    """Reads what `Automaton.serialize` gave; raises GrammarError if it is damaged."""
    check: Callable[[Constraint, Budget], None] | None = None
    """What is cheaper than building, if anything is."""


def build_regex(constraint: Constraint, vocabulary: Vocabulary, budget: Budget) -> DfaAutomaton:
    """The automaton of a regular expression in Python's notation."""
    return spelled_automaton(parse(constraint.source, "python", budget), vocabulary, budget)


def build_choice(constraint: Constraint, vocabulary: Vocabulary, budget: Budget) -> DfaAutomaton:
    """The automaton of a list of texts."""
    texts = json.loads(constraint.source)
    try:
        literals = [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        raise GrammarError(
            f"a choice is no text ({error.reason}): remove the lone surrogate"
        ) from error
    return spelled_automaton(Dfa.of_literals(literals, budget), vocabulary, budget)


def spelled_automaton(dfa: Dfa, vocabulary: Vocabulary, budget: Budget) -> DfaAutomaton:
    """The automaton of those texts of a DFA that the tokens of a vocabulary can spell.

    Raises:
        GrammarError: if there is none.
    """
    if dfa.is_empty:
        raise GrammarError("no text satisfies the constraint: allow at least one")
    dfa = spellable(dfa, vocabulary, budget)
    if dfa.is_empty:
        raise GrammarError(
            "no text that satisfies the constraint can be spelled by the vocabulary, which lacks "
            f"the bytes {vocabulary.missing_bytes.hex(' ')}: allow other characters"
        )
    return DfaAutomaton(dfa)


def spellable(dfa: Dfa, vocabulary: Vocabulary, budget: Budget) -> Dfa:
    """The DFA without dead ends for a vocabulary that lacks some bytes.

    Every state is to have a way to the end in bytes that are tokens. Where all have one, bytes that
    only longer tokens contain stay legal too; where not, they do not, which leaves out texts rather
    than let a text begin that cannot be ended.
    """
    if not vocabulary.missing_bytes:
        return dfa
    if dfa.lives_without(vocabulary.missing_bytes):
        return dfa
    return dfa.without_bytes(vocabulary.missing_bytes, budget)


def build_structural_tag(
    constraint: Constraint, vocabulary: Vocabulary, budget: Budget
) -> StructuralTagAutomaton:
    """The automaton of free text with constrained parts; see `structural/spec.py`."""

    def build_content(content: Constraint) -> Automaton:
        return PLAIN_KINDS[content.kind].build(content, vocabulary, budget)

    return compile_structural_tag(constraint, build_content)


def load_structural_tag(data: bytes) -> StructuralTagAutomaton:
    """Reads what `StructuralTagAutomaton.serialize` gave."""
    return read_structural_tag(data, lambda kind, content: PLAIN_KINDS[kind].load(content))


PLAIN_KINDS: Mapping[str, AutomatonKind] = {
    "regex": AutomatonKind(build_regex, DfaAutomaton.deserialize),
    "choice": AutomatonKind(build_choice, DfaAutomaton.deserialize),
    "json_schema": AutomatonKind(build_json, JsonAutomaton.deserialize, check_json),
    "json_object": AutomatonKind(build_json, JsonAutomaton.deserialize, check_json),
}
"""Those that may also be the content of a structural tag."""

KINDS: Mapping[str, AutomatonKind] = {
    **PLAIN_KINDS,
    "structural_tag": AutomatonKind(build_structural_tag, load_structural_tag),
}


class FsmBackend:
    """Compiles constraints to automata of this package; needs no other library.

    Args:
        automata: the kinds of constraints it takes.
        seconds: of processor time that compiling one constraint may take.
        max_states: how many states any one automaton may have meanwhile.
    """

    name = "fsm"

    def __init__(
        self,
        vocabulary: Vocabulary,
        automata: Mapping[str, AutomatonKind] = KINDS,
        *,
        seconds: float = _SECONDS,
        max_states: int = 100_000,
    ) -> None:
        self.vocabulary = vocabulary
        self._automata = automata
        self._seconds = seconds
        self._max_states = max_states
        self._sweeps = Sweeps(vocabulary)
        self._header = {
            "backend": self.name,
            "version": _VERSION,
            "vocabulary": vocabulary.fingerprint,
        }

    def check(self, constraint: Constraint) -> None:
        """Raise what `compile` would for what this backend cannot enforce.

        Raises:
            UnsupportedConstraint, GrammarError: see `GrammarBackend.check`.
        """
        kind = self._kind(constraint)
        budget = Budget.of_seconds(self._seconds, self._max_states)
        if kind.check is not None:
            kind.check(constraint, budget)
        else:
            kind.build(constraint, self.vocabulary, budget)

    def compile(self, constraint: Constraint) -> AutomatonGrammar:
        """Compile a constraint.

        Raises:
            UnsupportedConstraint, GrammarError, ConstraintTooComplex: see `GrammarBackend.compile`.
        """
        kind = self._kind(constraint)
        budget = Budget.of_seconds(self._seconds, self._max_states)
        return self._grammar(constraint.kind, kind.build(constraint, self.vocabulary, budget))

    def deserialize(self, data: bytes) -> AutomatonGrammar:
        """What `serialize` of a grammar of this backend gave.

        Raises:
            GrammarError: if the bytes are damaged, or of another vocabulary or version.
        """
        header, body = unseal(data, **self._header)
        name = header.get("kind", "")
        if name not in self._automata:
            raise GrammarError(
                f"a serialized grammar is of a {name!r} constraint, which this backend does not "
                "take: compile it again"
            )
        return self._grammar(name, self._automata[name].load(body))

    def _kind(self, constraint: Constraint) -> AutomatonKind:
        kind = self._automata.get(constraint.kind)
        if kind is None:
            raise UnsupportedConstraint(
                "", constraint.kind, f"fsm takes {', '.join(self._automata)}: use another backend"
            )
        return kind

    def _grammar(self, name: str, automaton: Automaton) -> AutomatonGrammar:
        return AutomatonGrammar(
            self.vocabulary,
            automaton,
            sweeps=self._sweeps,
            header={**self._header, "kind": name},
        )
