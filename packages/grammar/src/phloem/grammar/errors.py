"""What goes wrong with constraints, told to whoever wrote the constraint."""

from __future__ import annotations


class GrammarError(ValueError):
    """A constraint that cannot be used; the message names the value, the rule and the cure."""


class UnsupportedConstraint(GrammarError):
    """A constraint that would not be enforced to the letter, and is therefore refused.

    Attributes:
        pointer: where in the constraint, as a JSON pointer (`""` is the whole of it); for a regular
            expression or a grammar, the offset in characters as a decimal number.
        keyword: the keyword or construct that is not supported.
        reason: why, and what to do instead.
    """

    def __init__(self, pointer: str, keyword: str, reason: str) -> None:
        super().__init__(f"{keyword!r} at {pointer or 'the root'} is not supported: {reason}")
        self.pointer = pointer
        self.keyword = keyword
        self.reason = reason

    def __reduce__(self) -> tuple[type[UnsupportedConstraint], tuple[str, str, str]]:
        # Exceptions rebuild themselves from their message by default; this one has three parts.
        return (UnsupportedConstraint, (self.pointer, self.keyword, self.reason))


class ConstraintTooComplex(GrammarError):
    """Compiling a constraint reached a limit of time, memory or states."""
