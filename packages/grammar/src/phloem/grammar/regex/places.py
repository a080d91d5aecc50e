"""Anchors and word boundaries: what they ask of the character before, and of the one after.

The character before is known while a text is read. What is asked of the one after is carried along
as the set of things that may come next, and checked when it comes.
"""

from __future__ import annotations

from phloem.grammar.regex.tree import Place

# What may come next, as bits. The last newline is one that the text ends after.
END, LAST_NEWLINE, NEWLINE, WORD, OTHER = 1, 2, 4, 8, 16
ANYTHING = END | LAST_NEWLINE | NEWLINE | WORD | OTHER
START = 0  # instead of a character before, at the beginning


def asked(place: Place, before: int, may_follow: int) -> int:
    """What may come next if a place is asserted: `may_follow`, or less; 0 if it is elsewhere.

    `before` is START, NEWLINE, WORD or OTHER.
    """
    if place == "start":
        return may_follow if before == START else 0
    if place == "start of line":
        return may_follow if before in (START, NEWLINE) else 0
    if place == "end":
        return may_follow & END
    if place == "end or last newline":
        return may_follow & (END | LAST_NEWLINE)
    if place == "end of line":
        return may_follow & (END | LAST_NEWLINE | NEWLINE)
    if place == "no boundary, no empty text" and before == START:
        return may_follow & ~(WORD | END)
    if (place == "boundary") == (before == WORD):
        return may_follow & ~WORD
    return may_follow & WORD


def after(kind: int, may_follow: int) -> int:
    """What may come after a character of a kind (NEWLINE, WORD, OTHER); 0 if it may not come."""
    if kind & may_follow:
        return ANYTHING
    return END if kind == NEWLINE and may_follow & LAST_NEWLINE else 0
