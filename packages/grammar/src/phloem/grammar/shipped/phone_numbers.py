"""Phone numbers, as regular expressions."""

from __future__ import annotations

from phloem.grammar.constraint import Constraint


def international_phone_number() -> Constraint:
    """A number as ITU-T E.164 writes it: `+`, a country code, fifteen digits at most."""
    return Constraint.regex(r"\+[1-9][0-9]{6,14}")


def us_phone_number() -> Constraint:
    """A number of the North American plan, like `(212) 555-0123`."""
    return Constraint.regex(r"\([2-9][0-9]{2}\) [2-9][0-9]{2}-[0-9]{4}")
