r"""Whether some texts come to the end of a name, however they spell it.

The names of a schema are many and long, a token is short: hardly any goes through the rest of a
name and its closing quote. Where none does, all names that are not declared are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phloem.grammar.automaton import Texts
from phloem.grammar.json_machine.name_tree import NameTree
from phloem.grammar.json_machine.spelling import BACKSLASH, PLAIN, QUOTE, SHORT_ESCAPES

_PLAIN = frozenset(PLAIN)
_UNICODE = ord("u")


def spells(texts: Texts, rest: bytes) -> bool:
    r"""Whether one of some texts begins with the rest of a name and its quote; True as well if one
    has a `\uXXXX` there and a quote, whatever it spells.
    """
    pending = [(texts, 0)]
    while pending:
        here, at = pending.pop()
        below = here.below
        if at == len(rest):
            if QUOTE in below:
                return True
            continue
        byte = rest[at]
        if byte in _PLAIN and byte in below:
            pending.append((below[byte], at + 1))
        for code, child in _escapes(below):
            if code == _UNICODE:
                if _has_quote(child):
                    return True
            elif SHORT_ESCAPES.get(code) == byte:
                pending.append((child, at + 1))
    return False


def spells_one(texts: Texts, place: NameTree, choices: int) -> bool:
    """The same of the names that are below a place of the tree and among some."""
    pending = [(texts, place)]
    while pending:
        here, place = pending.pop()
        below = here.below
        if QUOTE in below and place.ends >= 0 and choices >> place.ends & 1:
            return True
        further = {b: after for b, after in place.children.items() if after.below & choices}
        pending += [(below[b], after) for b, after in further.items() if b in _PLAIN and b in below]
        for code, child in _escapes(below) if further else ():
            if code == _UNICODE:
                if _has_quote(child):
                    return True
            elif (after := further.get(SHORT_ESCAPES.get(code, -1))) is not None:
                pending.append((child, after))
    return False


def _escapes(below: Mapping[int, Texts]) -> Iterable[tuple[int, Texts]]:
    escaped = below.get(BACKSLASH)
    return () if escaped is None else escaped.below.items()


def _has_quote(texts: Texts) -> bool:
    pending = [texts]
    while pending:
        below = pending.pop().below
        if QUOTE in below:
            return True
        pending += below.values()
    return False
