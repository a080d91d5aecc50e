"""A command line by a template, as a regular expression: no more than it says can be run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import GrammarError

WORD = r"(?:[A-Za-z0-9_./:=@%+,][A-Za-z0-9_./:=@%+,\-]*|'[^'\x00-\x1f\x7f]*')"
"""A word that a POSIX shell takes literally: without quotes if all its characters are plain (and
not the first a dash, which would make it an option), or in single quotes."""


@dataclass(frozen=True)
class Option:
    """An option of a command, such as `--depth 3`."""

    flag: str
    value: str | None = None
    """A regular expression for its value; `WORD` is any. None: it takes no value."""
    required: bool = False


def command_line(program: str, options: Sequence[Option], arguments: tuple[int, int]) -> Constraint:
    """A program with some options, in their order, and words as its arguments.

    Nothing that a shell treats specially can be in a command, but within single quotes.

    Args:
        arguments: how many of them, at least and at most.

    Raises:
        GrammarError: if the program or a flag is no plain word, or the numbers are no range.
    """
    for word in (program, *(option.flag for option in options)):
        if not re.fullmatch(r"[A-Za-z0-9_./+-]+", word):
            raise GrammarError(f"{word!r} is no plain word: take letters, digits and any of _./+-")
    fewest, most = arguments
    if not 0 <= fewest <= most:
        raise GrammarError(f"{fewest} to {most} arguments is no range: give two numbers in order")
    parts = [re.escape(program)]
    for option in options:
        value = "" if option.value is None else f" (?:{option.value})"
        parts.append(f"(?: {re.escape(option.flag)}{value}){'' if option.required else '?'}")
    parts.append(f"(?: {WORD}){{{fewest},{most}}}")
    return Constraint.regex("".join(parts))
