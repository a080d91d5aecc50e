"""Sets of strings: unions of terms, each a regular language and bounds on the characters.

Bounds stay numbers as long as they can, since counting is what makes automata large.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import groupby
from typing import NamedTuple, TypeAlias

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.json_schema.shape import StringShape
from phloem.grammar.json_schema.unions import union_of

ANY = Dfa.any_text()
_FEW = 8
"""Bounds up to this many characters are folded into the automaton."""


class StringTerm(NamedTuple):
    """Texts of `dfa` that have `fewest` to `most` characters (None: no limit)."""

    dfa: Dfa = ANY
    fewest: int = 0
    most: int | None = None


Strings: TypeAlias = tuple[StringTerm, ...]
ALL: Strings = (StringTerm(),)


def intersect(left: Strings, right: Strings, budget: Budget) -> Strings:
    """Strings of both."""
    pairs = [_meet(one, two, budget) for one in left for two in right]
    return tuple(term for term in pairs if term is not None)


def constrained(fewest: int, most: int | None, languages: Iterable[Dfa], budget: Budget) -> Strings:
    """Strings of so many characters that are in all of some languages."""
    result = intersect((StringTerm(ANY, fewest, most),), ALL, budget)
    for language in languages:
        result = intersect(result, (StringTerm(language),), budget)
    return result


def difference(left: Strings, right: Strings, budget: Budget) -> Strings:
    """Strings of `left` that are not in `right`."""
    for term in right:
        outside: list[StringTerm] = []
        if term.dfa is not ANY:
            outside.append(StringTerm(ANY.difference(term.dfa, budget)))
        if term.fewest:
            outside.append(StringTerm(most=term.fewest - 1))
        if term.most is not None:
            outside.append(StringTerm(fewest=term.most + 1))
        left = intersect(left, tuple(outside), budget)
    return left


def language(strings: Strings, budget: Budget) -> Dfa:
    """All of the strings as one automaton, with their bounds counted out."""
    return union_of([_counted(term, budget) for term in strings], budget)


def shapes(strings: Strings, budget: Budget) -> tuple[StringShape, ...]:
    """The normal form: bounds only beside free text, everything else in one automaton."""
    if StringTerm() in strings:
        return (StringShape(ANY),)
    counted, free = [], []
    for term in dict.fromkeys(strings):
        if term.dfa is ANY and max(term.fewest, term.most or 0) > _FEW:
            free.append(StringShape(ANY, term.fewest, term.most))
        else:
            counted.append(term)
    whole = language(tuple(counted), budget)
    return (*(() if whole.is_empty else (StringShape(whole),)), *free)


def _meet(one: StringTerm, two: StringTerm, budget: Budget) -> StringTerm | None:
    if one.dfa is ANY or two.dfa is ANY:
        dfa = two.dfa if one.dfa is ANY else one.dfa
    else:
        dfa = one.dfa.intersect(two.dfa, budget)
    limits = [most for most in (one.most, two.most) if most is not None]
    term = StringTerm(dfa, max(one.fewest, two.fewest), min(limits, default=None))
    if dfa.is_empty or (term.most is not None and term.most < term.fewest):
        return None
    if dfa is ANY or (not term.fewest and term.most is None):
        return term
    # Short bounds, and finite languages, show at once whether anything is left.
    if dfa.is_finite or max(term.fewest, term.most or 0) <= _FEW:
        dfa = _counted(term, budget)
        return None if dfa.is_empty else StringTerm(dfa)
    return None if _too_long(term) else term


def _too_long(term: StringTerm) -> bool:
    return term.most is not None and int(term.dfa.char_distances[0]) > term.most


def _counted(term: StringTerm, budget: Budget) -> Dfa:
    if not term.fewest and term.most is None:
        return term.dfa
    most, longest = term.most, term.dfa.longest
    if longest is not None:
        if longest < term.fewest:
            return Dfa.empty()
        most = longest if most is None else min(longest, most)
        if most == longest and not term.fewest:
            return term.dfa
    lengths = Dfa.of_lengths(term.fewest, most, budget)
    return lengths if term.dfa is ANY else term.dfa.intersect(lengths, budget)


@lru_cache(maxsize=256)
def any_except(texts: tuple[str, ...]) -> Dfa:
    """All strings but some: a prefix tree of them, left by any other character."""
    if not texts:
        return ANY
    tree: list[dict[int, int]] = [{}]
    within = [0]  # the state of ANY at each node
    ends = set()
    for text in texts:
        node = 0
        for byte in text.encode():
            if byte not in tree[node]:
                tree[node][byte] = len(tree)
                tree.append({})
                within.append(ANY.step(within[node], byte))
            node = tree[node][byte]
        ends.add(node)
    shift = len(tree)
    edges = [
        (node, byte, byte, child) for node, row in enumerate(tree) for byte, child in row.items()
    ]
    for node, state in enumerate((*within, *range(ANY.states))):
        children = sorted(tree[node]) if node < shift else []
        for first, last, target in _ranges_of_any(state):
            for byte in children:
                if first <= byte <= last:
                    edges.append((node, first, byte - 1, shift + target))
                    first = byte + 1
            edges.append((node, first, last, shift + target))
    accepting = [bool(ANY.accepting[state]) for state in (*within, *range(ANY.states))]
    for node in ends:
        accepting[node] = False
    return Dfa.of_ranges([edge for edge in edges if edge[1] <= edge[2]], accepting)


@cache
def _ranges_of_any(state: int) -> list[tuple[int, int, int]]:
    """The edges of a state of `ANY`: first byte, last byte, target."""
    runs = groupby(range(256), key=lambda byte: ANY.step(state, byte))
    ranges = [(target, list(run)) for target, run in runs]
    return [(run[0], run[-1], target) for target, run in ranges if target >= 0]


def texts_of(dfa: Dfa, limit: int) -> list[bytes] | None:
    """The texts of a language, shorter ones first; None if there are more than `limit`."""
    if not dfa.is_finite:
        return None
    found: list[bytes] = []
    level = [] if dfa.is_empty else [(0, b"")]
    while level:
        found += [text for state, text in level if dfa.accepting[state]]
        level = [
            (dfa.step(state, byte), text + bytes([byte]))
            for state, text in level
            for byte in dfa.first_bytes(state)
        ]
        if len(found) + len(level) > 4 * limit:
            return None
    return found if len(found) <= limit else None
