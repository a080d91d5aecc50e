"""Reading a pattern character by character, and saying where it is wrong."""

from __future__ import annotations

from phloem.grammar.errors import GrammarError, UnsupportedConstraint


class Scanner:
    """A place in a pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return self.at >= len(self.pattern)

    def peek(self, length: int = 1) -> str:
        """What comes next; shorter, or empty, at the end."""
        return self.pattern[self.at : self.at + length]

    def take(self, text: str) -> bool:
        """Go past `text` if it comes next."""
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def next(self) -> str:
        """Go past one character.

        Raises:
            GrammarError: at the end.
        """
        at = self.at
        if at >= len(self.pattern):
            raise self.error("the pattern ends too early")
        self.at = at + 1
        return self.pattern[at]

    def digits(self, alphabet: str, most: int) -> str:
        """Go past up to `most` characters of an alphabet."""
        end = self.at
        while end < len(self.pattern) and end - self.at < most and self.pattern[end] in alphabet:
            end += 1
        found = self.pattern[self.at : end]
        self.at = end
        return found

    def until(self, end: str) -> str:
        """What comes before `end`; go past both.

        Raises:
            GrammarError: if `end` does not come.
        """
        place = self.pattern.find(end, self.at)
        if place < 0:
            raise self.error(f"{end!r} is missing")
        found = self.pattern[self.at : place]
        self.at = place + len(end)
        return found

    def error(self, what: str, at: int | None = None) -> GrammarError:
        """A malformed pattern."""
        place = self.at if at is None else at
        shown = self.pattern if len(self.pattern) <= 80 else self.pattern[:77] + "..."
        return GrammarError(
            f"the regular expression {shown!r} is malformed at offset {place}: {what}"
        )

    def unsupported(self, construct: str, reason: str, at: int) -> UnsupportedConstraint:
        """A construct that no finite automaton, or not this package, can follow."""
        return UnsupportedConstraint(str(at), construct, reason)
