r"""Whether some texts come to the end of a name, however they spell it.

The names of a schema are many and long, a token is short: hardly any goes through the rest of a
name and its closing quote. Where none does, all names that are not declared are alike.
"""

from __future__ import annotations

from phloem.grammar.automaton import Texts
from phloem.grammar.json_machine.name_tree import NameTree
from phloem.grammar.json_machine.spelling import BACKSLASH, PLAIN, QUOTE, SHORT_ESCAPES

_PLAIN = frozenset(PLAIN)
_UNICODE = ord("u")


def spells(texts: Texts, rest: bytes) -> bool:
    r"""Whether one of some texts begins with the rest of a name and its quote; True as well if one
    has a `\uXXXX` there and a quote, whatever it spells.
    """
    below = texts.below
    if not rest:
        return QUOTE in below
    byte, longer = rest[0], rest[1:]
    child = below.get(byte) if byte in _PLAIN else None
    if child is not None and spells(child, longer):
        return True
    escaped = below.get(BACKSLASH)
    return escaped is not None and any(
        _has_quote(child) if code == _UNICODE else spells(child, longer)
        for code, child in escaped.below.items()
        if code == _UNICODE or SHORT_ESCAPES.get(code) == byte
    )


def spells_one(texts: Texts, place: NameTree, choices: int) -> bool:
    """The same of the names that are below a place of the tree and among some."""
    below = texts.below
    if QUOTE in below and place.ends >= 0 and choices >> place.ends & 1:
        return True
    for byte, further in place.children.items():
        child = below.get(byte) if further.below & choices and byte in _PLAIN else None
        if child is not None and spells_one(child, further, choices):
            return True
    escaped = below.get(BACKSLASH)
    for code, child in () if escaped is None else escaped.below.items():
        if code == _UNICODE:
            if place.children and _has_quote(child):
                return True
            continue
        after = place.children.get(SHORT_ESCAPES.get(code, -1))
        if after is not None and after.below & choices and spells_one(child, after, choices):
            return True
    return False


def _has_quote(texts: Texts) -> bool:
    return QUOTE in texts.below or any(_has_quote(child) for child in texts.below.values())
