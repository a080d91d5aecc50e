"""Dates that exist, as regular expressions over the Gregorian calendar."""

from __future__ import annotations

from phloem.grammar.constraint import Constraint

_YEAR = "[0-9]{4}"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_OFFSET = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"


def iso_date() -> Constraint:
    """A date like `2024-02-29`; days that a month has not got are not legal."""
    return Constraint.regex(_DATE)


def iso_date_time() -> Constraint:
    """A date and time like `2024-02-29T23:59:00Z`, with `Z` or an offset from UTC."""
    return Constraint.regex(f"{_DATE}T{_TIME}{_OFFSET}")
