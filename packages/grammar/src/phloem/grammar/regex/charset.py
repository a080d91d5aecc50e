"""Sets of characters as ranges of code points, and the named ones."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

CharSet = tuple[tuple[int, int], ...]
"""Disjoint inclusive ranges, ascending, none adjacent to the next."""

LAST = sys.maxunicode
ANY: CharSet = ((0, LAST),)
NEWLINE: CharSet = ((10, 10),)
ASCII_DIGITS: CharSet = ((48, 57),)
ASCII_WORD: CharSet = ((48, 57), (65, 90), (95, 95), (97, 122))
ASCII_SPACE: CharSet = ((9, 13), (32, 32))


def union(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The set of any ranges, which may overlap."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(chars: CharSet) -> CharSet:
    """All other characters."""
    ranges, first = [], 0
    for low, high in chars:
        if first < low:
            ranges.append((first, low - 1))
        first = high + 1
    if first <= LAST:
        ranges.append((first, LAST))
    return tuple(ranges)


@lru_cache(maxsize=16)
def as_python_matches(pattern: str) -> CharSet:
    """What `re` matches with a pattern for one character, such as `\\w`: its own word on it."""
    return tuple(
        (found.start(), found.end() - 1) for found in re.finditer(f"(?s:{pattern})+", _all_chars())
    )


@lru_cache(maxsize=1)
def _all_chars() -> str:
    return "".join(map(chr, range(LAST + 1)))


@lru_cache(maxsize=1)
def _by_category() -> dict[str, CharSet]:
    found: dict[str, list[tuple[int, int]]] = {}
    begin, current = 0, "Cc"
    for code, char in enumerate(_all_chars()):
        category = unicodedata.category(char)
        if category != current:
            found.setdefault(current, []).append((begin, code - 1))
            begin, current = code, category
    found.setdefault(current, []).append((begin, LAST))
    return {category: union(ranges) for category, ranges in found.items()}


def of_property(name: str) -> CharSet | None:
    """The characters of `\\p{name}`: a general category, short or long, or None if unknown."""
    key, equals, value = name.partition("=")
    if equals and key not in ("General_Category", "gc"):
        return None
    wanted = value or key
    if wanted in ("Any", "ASCII"):
        return ANY if wanted == "Any" else ((0, 127),)
    short = _LONG_NAMES.get(wanted, wanted)
    categories = _by_category()
    if short == "LC":
        return union(r for c in ("Lu", "Ll", "Lt") for r in categories[c])
    members = [c for c in categories if c == short or (len(short) == 1 and c[0] == short)]
    return union(r for c in members for r in categories[c]) if members else None


_LONG_NAMES = {
    "Letter": "L",
    "Cased_Letter": "LC",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Surrogate": "Cs",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}


def ignoring_case(chars: CharSet, ascii_only: bool) -> CharSet:
    """The characters that `re` holds equal to one of the set under IGNORECASE."""
    if ascii_only:
        both = [
            (code ^ 32, code ^ 32)
            for first, last in ((65, 90), (97, 122))
            for low, high in chars
            for code in range(max(low, first), min(high, last) + 1)
        ]
        return union([*chars, *both])
    kin = _case_kin()
    cased = [code for code in kin if any(low <= code <= high for low, high in chars)]
    return union([*chars, *((other, other) for code in cased for other in kin[code])])


@lru_cache(maxsize=1)
def _case_kin() -> dict[int, tuple[int, ...]]:
    """Characters with the same lower case, or whose lower cases have the same upper case."""
    groups: dict[str, list[int]] = {}
    for code in range(0x1F000):  # no character beyond has a case
        char = chr(code)
        lower = "i" if code == 0x130 else char.lower()
        if lower == char == char.upper():
            continue
        lower = lower if len(lower) == 1 else char
        upper = lower.upper()
        groups.setdefault(upper if len(upper) == 1 else lower, []).append(code)
    return {code: tuple(group) for group in groups.values() if len(group) > 1 for code in group}
