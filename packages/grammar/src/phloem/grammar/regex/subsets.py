"""The deterministic automaton of a nondeterministic one, over classes of characters."""

from __future__ import annotations

from collections.abc import Iterable

from phloem.grammar.dfa import Budget
from phloem.grammar.dfa.plain import Rows
from phloem.grammar.regex import places
from phloem.grammar.regex.charset import NEWLINE, CharSet
from phloem.grammar.regex.nfa import FINAL, Nfa
from phloem.grammar.regex.utf8 import SURROGATES

Item = int
"""A reading state of the NFA times 32, plus what may follow (see `places`)."""
State = frozenset[Item]
"""Where the NFA may be before the next character."""

_ENDED = FINAL * 32 + places.END
"""The item of a text that is complete."""
_LARGE = 64


class Subsets:
    """The deterministic automaton of an NFA, state by state."""

    def __init__(self, nfa: Nfa, word: CharSet, budget: Budget) -> None:
        self._nfa = nfa
        self._budget = budget
        sets = list(dict.fromkeys(chars for chars in nfa.reading if chars is not None))
        asserting = any(place is not None for place in nfa.places)
        kinds = (NEWLINE, word) if asserting else ()
        self.classes, members = _partition([*sets, *kinds])
        """The characters of each class."""
        self._members = dict(zip(sets, members, strict=False))
        self._kinds = [places.OTHER] * len(self.classes)
        for kind, columns in zip(
            (places.NEWLINE, places.WORD)[: len(kinds)], members[len(sets) :], strict=True
        ):
            for column in columns:
                self._kinds[column] = kind
        self._closures: dict[tuple[Item, int], State] = {}
        self._steps: dict[Item, list[tuple[int, State]]] = {}

    def explore(self) -> tuple[Rows, list[bool]]:
        """By state, by class: the next state, or -1; and which states accept.

        Raises:
            ConstraintTooComplex: if the budget is spent.
        """
        dead = [-1] * len(self.classes)
        start = self._closure(self._nfa.start, places.START, places.ANYTHING)
        numbers = {start: 0}
        pending = [start]
        rows: Rows = []
        for state in pending:
            if not len(rows) & 31 or len(state) > _LARGE:
                self._budget.check(len(pending))
            row = dead.copy()
            for column, target in self._successors(state):
                number = numbers.get(target)
                if number is None:
                    number = numbers[target] = len(pending)
                    pending.append(target)
                row[column] = number
            rows.append(row)
        self._budget.check(len(rows))
        return rows, [_ENDED in state for state in pending]

    def _successors(self, state: State) -> Iterable[tuple[int, State]]:
        """The next state by class of character; dead ones are left out."""
        if len(state) == 1:
            return self._from(*state)
        found: dict[int, State | list[State]] = {}
        for number, item in enumerate(state):
            if number & 63 == 63:
                self._budget.check(0)
            for column, target in self._from(item):
                others = found.get(column)
                if others is None:
                    found[column] = target
                elif isinstance(others, list):
                    others.append(target)
                else:
                    found[column] = [others, target]
        return [
            (column, frozenset().union(*target) if isinstance(target, list) else target)
            for column, target in found.items()
        ]

    def _from(self, item: Item) -> list[tuple[int, State]]:
        """Where one item leads, by class of character."""
        known = self._steps.get(item)
        if known is not None:
            return known
        steps: list[tuple[int, State]] = []
        self._steps[item] = steps
        state, may_follow = item >> 5, item & 31
        chars = self._nfa.reading[state]
        if chars is None:  # the final one
            return steps
        (target,) = self._nfa.targets[state]
        for column in self._members[chars]:
            kind = self._kinds[column]
            following = places.after(kind, may_follow)
            if following:
                closure = self._closure(target, kind, following)
                if closure:
                    steps.append((column, closure))
        return steps

    def _closure(self, state: int, before: int, may_follow: int) -> State:
        """The items that are reached without reading, after a kind of character."""
        first = state * 32 + may_follow
        known = self._closures.get((first, before))
        if known is not None:
            return known
        nfa = self._nfa
        found, pending, items = {first}, [first], []
        for item in pending:
            at, may = item >> 5, item & 31
            place = nfa.places[at]
            if nfa.reading[at] is not None:
                items.append(item)
                continue
            if at == FINAL:
                if may & places.END:
                    items.append(_ENDED)
                continue
            if place is not None:
                may = places.asked(place, before, may)
            for target in nfa.targets[at] if may else ():
                new = target * 32 + may
                if new not in found:
                    found.add(new)
                    pending.append(new)
        if len(found) > _LARGE:
            self._budget.check(0)
        closure = self._closures[first, before] = frozenset(items)
        return closure


def _partition(sets: list[CharSet]) -> tuple[list[CharSet], list[list[int]]]:
    """The coarsest classes that each set is a union of, and each set's classes.

    Characters of no set are in no class, and neither are surrogates, which no text contains.
    """
    changes: dict[int, int] = {}
    for number, chars in enumerate((*sets, SURROGATES)):
        for first, last in chars:
            changes[first] = changes.get(first, 0) ^ (1 << number)
            changes[last + 1] = changes.get(last + 1, 0) ^ (1 << number)
    ranges: dict[int, list[tuple[int, int]]] = {}
    holding, begin, surrogates = 0, 0, 1 << len(sets)
    for place in sorted(changes):
        if 0 < holding < surrogates:
            ranges.setdefault(holding, []).append((begin, place - 1))
        holding ^= changes[place]
        begin = place
    members: list[list[int]] = [[] for _ in sets]
    for column, holders in enumerate(ranges):
        while holders:
            members[(holders & -holders).bit_length() - 1].append(column)
            holders &= holders - 1
    return [tuple(parts) for parts in ranges.values()], members
