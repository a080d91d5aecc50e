"""From the tree of a regular expression to its `Dfa`: subset construction over classes of
characters, then their bytes."""

from __future__ import annotations

from collections.abc import Iterable

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.dfa.subsets import explore
from phloem.grammar.regex import places
from phloem.grammar.regex.charset import ANY, NEWLINE, CharSet
from phloem.grammar.regex.escapes import Dialect
from phloem.grammar.regex.nfa import Nfa
from phloem.grammar.regex.parser import read
from phloem.grammar.regex.tree import Chars, Node, Repeat, Sequence
from phloem.grammar.regex.utf8 import encoded

_DEFAULT = Budget()
_LOOK_NO_BACK = {"start", "end", "end or last newline", "end of line"}
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
    return _compiled(*read(pattern, dialect), budget)


def search_dfa(pattern: str, dialect: Dialect = "ecma", budget: Budget = _DEFAULT) -> Dfa:
    """The texts that contain a match of a pattern, as `pattern` in a JSON schema asks.

    Raises:
        GrammarError, UnsupportedConstraint, ConstraintTooComplex: as `parse`.
    """
    node, word = read(pattern, dialect)
    return _compiled(Sequence((_ANYTHING, node, _ANYTHING)), word, budget)


def _compiled(node: Node, word: CharSet, budget: Budget) -> Dfa:
    subsets = _Subsets(Nfa(node, budget), word, budget)
    start = (frozenset([places.ANYTHING]), places.START)
    rows, accepting = explore(
        start, subsets.successors, subsets.accepts, len(subsets.classes), budget
    )
    return Dfa(encoded(rows, accepting, subsets.classes, budget), budget)


Item = int
"""A state of the NFA times 32, plus what may follow (see `places`)."""
State = tuple[frozenset[Item], int]
"""Where the NFA may be after the last character, and the kind of that character."""


class _Subsets:
    """The deterministic automaton of an NFA, state by state."""

    def __init__(self, nfa: Nfa, word: CharSet, budget: Budget) -> None:
        self._nfa = nfa
        self._budget = budget
        asserted = {place for edges in nfa.asserted for place, _ in edges}
        self._looks_back = bool(asserted - _LOOK_NO_BACK)
        sets = {edge[0] for edge in nfa.reading if edge is not None}
        kinds = (NEWLINE, word) if asserted else ()
        self.classes, members = _partition([*sets, *kinds])
        self._members = dict(zip([*sets, *kinds], members, strict=True))
        self._kinds = [places.OTHER] * len(self.classes)
        for chars, kind in zip(kinds, (places.NEWLINE, places.WORD), strict=False):
            for column in self._members[chars]:
                self._kinds[column] = kind
        self._steps: dict[tuple[Item, int], dict[int, list[Item]]] = {}
        self._ends: dict[tuple[Item, int], bool] = {}

    def successors(self, state: State) -> dict[int, State]:
        items, before = state
        found: dict[int, set[Item]] = {}
        for number, item in enumerate(items):
            if number & 63 == 63:
                self._budget.check(0)
            for column, targets in self._from(item, before).items():
                found.setdefault(column, set()).update(targets)
        if self._looks_back:
            return {c: (frozenset(targets), self._kinds[c]) for c, targets in found.items()}
        return {column: (frozenset(targets), places.OTHER) for column, targets in found.items()}

    def accepts(self, state: State) -> bool:
        items, before = state
        for item in items:
            self._from(item, before)
        return any(self._ends[item, before] for item in items)

    def _from(self, item: Item, before: int) -> dict[int, list[Item]]:
        """By class of character, where one item leads; as a by-product, whether it accepts."""
        known = self._steps.get((item, before))
        if known is not None:
            return known
        self._budget.check(0)
        nfa = self._nfa
        steps: dict[int, list[Item]] = {}
        ends = False
        for reached in self._without_reading(item, before):
            state, may_follow = divmod(reached, 32)
            ends = ends or (state == nfa.final and bool(may_follow & places.END))
            edge = nfa.reading[state]
            for column in self._members[edge[0]] if edge is not None else ():
                following = places.after(self._kinds[column], may_follow)
                if edge is not None and following:
                    steps.setdefault(column, []).append(edge[1] * 32 + following)
        self._steps[item, before] = steps
        self._ends[item, before] = ends
        return steps

    def _without_reading(self, item: Item, before: int) -> set[Item]:
        nfa = self._nfa
        found, pending = {item}, [item]
        while pending:
            state, may_follow = divmod(pending.pop(), 32)
            reached = [target * 32 + may_follow for target in nfa.empty[state]]
            for place, target in nfa.asserted[state]:
                asked = places.asked(place, before, may_follow)
                if asked:
                    reached.append(target * 32 + asked)
            for new in reached:
                if new not in found:
                    found.add(new)
                    pending.append(new)
        return found


def _partition(sets: Iterable[CharSet]) -> tuple[list[CharSet], list[list[int]]]:
    """The coarsest classes that each set is a union of, and each set's classes.

    Characters of no set are in no class.
    """
    sets = list(sets)
    changes: dict[int, int] = {}
    for number, chars in enumerate(sets):
        for first, last in chars:
            changes[first] = changes.get(first, 0) ^ (1 << number)
            changes[last + 1] = changes.get(last + 1, 0) ^ (1 << number)
    ranges: dict[int, list[tuple[int, int]]] = {}
    holding, begin = 0, 0
    for place in sorted(changes):
        if holding:
            ranges.setdefault(holding, []).append((begin, place - 1))
        holding ^= changes[place]
        begin = place
    members: list[list[int]] = [[] for _ in sets]
    for column, holders in enumerate(ranges):
        while holders:
            members[(holders & -holders).bit_length() - 1].append(column)
            holders &= holders - 1
    return [tuple(parts) for parts in ranges.values()], members
