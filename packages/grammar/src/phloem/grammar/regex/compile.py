"""From the tree of a regular expression to its `Dfa`: an automaton over classes of characters is
made and minimized, then spelled out in bytes."""

from __future__ import annotations

from collections.abc import Collection

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.dfa.minimize import equivalent
from phloem.grammar.regex.charset import ANY, CharSet
from phloem.grammar.regex.escapes import Dialect
from phloem.grammar.regex.nfa import Nfa
from phloem.grammar.regex.parser import read
from phloem.grammar.regex.subsets import Subsets
from phloem.grammar.regex.tree import Alternatives, Assertion, Chars, Node, Place, Repeat, Sequence
from phloem.grammar.regex.utf8 import encoded

_DEFAULT = Budget()
_START: tuple[Place, ...] = ("start",)
_END: tuple[Place, ...] = ("end",)
# What a whole text begins and ends with anyway.
_BEGINS: tuple[Place, ...] = ("start", "start of line")
_ENDS: tuple[Place, ...] = ("end", "end or last newline", "end of line")
_ANYTHING = Repeat(Chars(ANY), 0, None)


def parse(pattern: str, dialect: Dialect = "python", budget: Budget = _DEFAULT) -> Dfa:
    """The texts that a pattern matches as a whole, as `re.fullmatch` does.

    Groups capture nothing, and greedy or not makes no difference to which texts match.

    Raises:
        GrammarError: if the pattern is malformed.
        UnsupportedConstraint: for backreferences, lookaround, and what else no automaton can
            follow; its pointer is the offset in the pattern.
        ConstraintTooComplex: if the budget is spent.
    """
    node, word = read(pattern, dialect)
    return _compiled(_trimmed(node, _BEGINS, _ENDS), word, budget)


def search_dfa(pattern: str, dialect: Dialect = "ecma", budget: Budget = _DEFAULT) -> Dfa:
    """The texts that contain a match of a pattern, as `pattern` in a JSON schema asks.

    Raises:
        GrammarError, UnsupportedConstraint, ConstraintTooComplex: as `parse`.
    """
    node, word = read(pattern, dialect)
    options = node.options if isinstance(node, Alternatives) else (node,)
    # Where a match is at an end of the text, nothing is beside it.
    sides: dict[tuple[bool, bool], list[Node]] = {}
    for option in options:
        behind = _trimmed(option, _START, ())
        inner = _trimmed(behind, (), _END)
        sides.setdefault((behind is option, inner is behind), []).append(inner)
    found = [
        Sequence((*before * (_ANYTHING,), Alternatives(tuple(inner)), *after * (_ANYTHING,)))
        for (before, after), inner in sides.items()
    ]
    return _compiled(Alternatives(tuple(found)), word, budget)


def _trimmed(node: Node, begins: Collection[Place], ends: Collection[Place]) -> Node:
    """Without an assertion that it begins or ends with, of some places."""
    items = node.items if isinstance(node, Sequence) else (node,)
    first, last = 0, len(items)
    if items and isinstance(items[0], Assertion) and items[0].place in begins:
        first = 1
    if last > first and isinstance(items[-1], Assertion) and items[-1].place in ends:
        last -= 1
    return node if last - first == len(items) else Sequence(items[first:last])


def _compiled(node: Node, word: CharSet, budget: Budget) -> Dfa:
    subsets = Subsets(Nfa(node, budget), word, budget)
    rows, accepting = subsets.explore()
    blocks = equivalent(rows, accepting, budget)
    if blocks[0] < 0:
        return Dfa.empty()
    return Dfa.of_minimal(encoded(rows, accepting, blocks, subsets.classes, budget))
