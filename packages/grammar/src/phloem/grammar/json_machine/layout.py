"""Where blanks may stand between the parts of a JSON text, and in which order properties come.

Blanks are legal in three kinds of places, and nowhere else: one space after a colon; after `{`,
`[` and `,`; before the `}` and `]` of a container that is not empty. In the latter two, they are
one space, or a newline and the indentation of that line. The first newline in front of something
indented decides what indentation is: a number of spaces per level of depth, or one tab.
"""

from __future__ import annotations

from typing import NamedTuple

SPACE, TAB, NEWLINE = 0x20, 0x09, 0x0A
MOST_SPACES = 8
"""The widest indentation of one level."""


class Layout(NamedTuple):
    """What was decided about indentation so far."""

    blank: int
    """The byte that indents; 0 while nothing is decided."""
    width: int
    """How many of them per level of depth."""


UNDECIDED = Layout(0, 0)


def blanks(layout: Layout, depth: int, blank: int, count: int) -> tuple[int, ...]:
    """The bytes by which `count` bytes `blank` of indentation may go on, at a depth."""
    if layout.blank:
        return (layout.blank,) if count < depth * layout.width else ()
    return tuple(
        byte
        for byte, most in ((TAB, depth), (SPACE, MOST_SPACES * depth))
        if count < most and blank in (0, byte)
    )


def missing(layout: Layout, depth: int, blank: int, count: int) -> int:
    """How many more blanks make up a whole indentation, at least."""
    if layout.blank:
        return depth * layout.width - count
    if not depth:
        return 0
    return depth - count if blank == TAB else -count % depth


def decided(layout: Layout, depth: int, blank: int, count: int) -> Layout:
    """What is decided when the indentation ends, with nothing missing."""
    if layout.blank or not depth:
        return layout
    return Layout(blank or SPACE, count // depth)
