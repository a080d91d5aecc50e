"""`auto`: each constraint goes to the first backend that can enforce it.

Our own automata come first, since they alone know distances and enforce the most; then llguidance,
then xgrammar, where they can be imported. Only a constraint that a backend does not support goes on
to the next: one that is malformed or too complex is an error at once, and so is a JSON schema of
which it is not certain what it means, whoever could enforce one of its meanings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from phloem.grammar.base import Grammar, GrammarBackend, Matcher
from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import GrammarError, UnsupportedConstraint
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.libraries.meaning import check_meaning
from phloem.grammar.llguidance_backend import LLGuidanceBackend
from phloem.grammar.vocabulary import Vocabulary
from phloem.grammar.xgrammar_backend import XGrammarBackend

BackendMaker: TypeAlias = Callable[[Vocabulary], GrammarBackend]

ORDER: Mapping[str, BackendMaker] = MappingProxyType(
    {"fsm": FsmBackend, "llguidance": LLGuidanceBackend, "xgrammar": XGrammarBackend}
)


class AutoBackend:
    """Picks a backend for each constraint.

    Args:
        makers: the backends in the order in which they are asked. Each is made when it is first
            needed, and passed over if that raises ImportError (a library is missing or broken) or
            GrammarError (it cannot work with the vocabulary).
    """

    name = "auto"

    def __init__(
        self, vocabulary: Vocabulary, makers: Mapping[str, BackendMaker] | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._makers = dict(ORDER if makers is None else makers)
        self._made: dict[str, GrammarBackend] = {}

    def check(self, constraint: Constraint) -> None:
        """Raise if no backend enforces a constraint.

        Raises:
            UnsupportedConstraint, GrammarError: see `GrammarBackend.check`; the place is the one
                that the first backend named, and the reason has what all of them said.
        """
        self._first(constraint, lambda backend: backend.check(constraint))

    def compile(self, constraint: Constraint) -> AutoGrammar:
        """Compile a constraint by the first backend that enforces it.

        Raises:
            UnsupportedConstraint, GrammarError, ConstraintTooComplex: see `check`.
        """
        compiled: list[AutoGrammar] = []

        def compile_by(backend: GrammarBackend) -> None:
            compiled.append(AutoGrammar(backend.name, backend.compile(constraint)))

        self._first(constraint, compile_by)
        return compiled[0]

    def deserialize(self, data: bytes) -> AutoGrammar:
        """What `serialize` of a grammar of this backend gave.

        Raises:
            GrammarError: if the bytes are damaged, or of another vocabulary or version.
            ImportError: if the backend that compiled it is not installed here.
        """
        name, _, body = data.partition(b"\n")
        chosen = name.decode(errors="replace")
        if chosen not in self._makers:
            raise GrammarError(
                f"a serialized grammar is of the backend {chosen[:50]!r}, which is none of "
                f"{', '.join(self._makers)}: compile it again"
            )
        return AutoGrammar(chosen, self._backend(chosen).deserialize(body))

    def _first(self, constraint: Constraint, use: Callable[[GrammarBackend], None]) -> None:
        """Call `use` with one backend after the other, until one does not refuse."""
        refusals: dict[str, UnsupportedConstraint] = {}
        for name in self._makers:
            refusal = self._attempt(name, use)
            if refusal is None:
                return
            if not refusals and constraint.kind == "json_schema":
                check_meaning(json.loads(constraint.source))
            refusals[name] = refusal
        # Of a refusal as a whole (there is no such kind), and one of a part, the latter says more.
        first = max(refusals.values(), key=lambda refusal: bool(refusal.pointer))
        reasons = "; ".join(f"{name}: {refusal.reason}" for name, refusal in refusals.items())
        raise UnsupportedConstraint(first.pointer, first.keyword, reasons)

    def _attempt(
        self, name: str, use: Callable[[GrammarBackend], None]
    ) -> UnsupportedConstraint | None:
        try:
            backend = self._backend(name)
        except (ImportError, GrammarError) as error:
            return UnsupportedConstraint("", name, str(error))
        try:
            use(backend)
        except UnsupportedConstraint as refusal:
            return refusal
        return None

    def _backend(self, name: str) -> GrammarBackend:
        if name not in self._made:
            self._made[name] = self._makers[name](self._vocabulary)
        return self._made[name]


class AutoGrammar:
    """A compiled constraint, and the name of the backend that it is of."""

    def __init__(self, backend: str, grammar: Grammar) -> None:
        self.backend = backend
        self.grammar = grammar

    def matcher(self) -> Matcher:
        """A matcher of the chosen backend at the beginning of a text."""
        return self.grammar.matcher()

    def accepts(self, text: str | bytes) -> bool:
        """Whether a whole text is legal."""
        return self.grammar.accepts(text)

    def serialize(self) -> bytes:
        """The name of the backend, and its compiled form."""
        return self.backend.encode() + b"\n" + self.grammar.serialize()
