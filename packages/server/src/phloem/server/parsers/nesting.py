"""Where a value ends in a text that comes in pieces: brackets are counted, strings passed over."""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r"""["'()\[\]{}]""")
_IN_STRING = re.compile(r"""["'\\]""")


class Nesting:
    """Follows one value, of JSON or (with `quotes` of both kinds) of Python."""

    def __init__(self, quotes: str = '"') -> None:
        self._quotes = quotes
        self._depth = 0
        self._quote = ""
        """That of the string that is open."""
        self._escaped = False

    def end_of_value(self, text: str) -> int | None:
        """Follow the next piece; where in it the value ends, behind its last character, or None."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._quote else _STRUCTURE).search(text, at)
            if found is None:
                return None
            at = found.end()
            if self._closes(found[0]):
                return at
        return None

    def _closes(self, character: str) -> bool:
        """Take what may change the nesting; whether it ends the value."""
        if self._quote:
            self._escaped = character == "\\"
            if character != self._quote:
                return False
            self._quote = ""
            return self._depth == 0
        if character in "\"'":
            self._quote = character if character in self._quotes else ""
            return False
        self._depth += 1 if character in "([{" else -1
        return self._depth <= 0
