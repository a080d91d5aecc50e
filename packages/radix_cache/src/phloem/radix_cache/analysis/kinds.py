"""What a part of a prompt that keeps changing looks like: a timestamp, an id, a counter.

Owns the patterns. Given the same place in several prompts, says what kind of thing is there and
where the whole of it begins and ends, since two timestamps of one day differ only in the middle.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import Final

_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_WEEKDAY: Final = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? )?"
_CLOCK: Final = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp][Mm]\b)?"
_ZONE: Final = r"(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)\b)?"
_DATE: Final = (
    rf"{_WEEKDAY}(?:\d{{4}}[-/.]\d\d?[-/.]\d\d?|\d{{1,2}}[-/.]\d{{1,2}}[-/.](?:\d{{4}}|\d\d)"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{1,2}} {_MONTH},? \d{{4}})"
)
_PATTERNS: Final = (
    ("ip address", r"\d{1,3}(?:\.\d{1,3}){3}"),
    ("uuid", r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    ("timestamp", rf"{_DATE}(?:T|,? (?:at )?){_CLOCK}{_ZONE}"),
    ("date", _DATE),
    ("time", rf"{_CLOCK}{_ZONE}"),
    ("unix time", r"1\d{9}(?:\.\d+|\d{3}|\d{6}|\d{9})?(?![0-9A-Za-z])"),
    ("email address", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    ("hex string", r"(?:0x)?(?=[0-9a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{6,}(?![0-9A-Za-z])"),
    (
        "random string",
        r"(?=[\w-]{0,80}?[0-9])(?=[\w-]{0,80}?[A-Za-z])[A-Za-z0-9_-]{10,}",
    ),
    ("number", r"\d+(?:\.\d+)?"),
)
_ANY: Final = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    + "|".join(f"(?P<k{i}>{pattern})" for i, (_, pattern) in enumerate(_PATTERNS))
    + r")|(?P<n>(?<=[A-Za-z])\d+)"
)
_MAJORITY: Final = 0.6

Thing = tuple[str, int, int]
"""A kind, and where in a text the thing begins and ends."""


@dataclass(frozen=True, slots=True)
class Place:
    """A part [start, stop) of a text."""

    text: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Kind:
    """What the parts are, and by how many characters the whole things are longer than they."""

    name: str
    left: int
    right: int


def kind_of(places: Sequence[Place]) -> Kind:
    """The kind of the parts at `places`, given in the order in which the prompts arrived.

    Parts that hold several things of known kinds are named in order ("date + number"). If there is
    no such thing in most of them, they are "text".
    """
    found = [_things(place) for place in places]
    named = Counter(tuple(name for name, _, _ in things) for things in found)
    names, count = named.most_common(1)[0]
    if not names or count < _MAJORITY * len(places):
        return Kind("text", 0, 0)
    typical = [
        (place, things)
        for place, things in zip(places, found)
        if tuple(name for name, _, _ in things) == names
    ]
    left = median_low(max(0, place.start - things[0][1]) for place, things in typical)
    right = median_low(max(0, things[-1][2] - place.stop) for place, things in typical)
    called = [_counted(name, i, typical) for i, name in enumerate(names)]
    return Kind(" + ".join(dict.fromkeys(called)), left, right)


def _counted(name: str, at: int, typical: Sequence[tuple[Place, list[Thing]]]) -> str:
    """The name of the thing `at` that index, which is "counter" if it is a number that goes up."""
    if name != "number":
        return name
    values = [float(place.text[things[at][1] : things[at][2]]) for place, things in typical]
    return "counter" if all(a < b for a, b in pairwise(values)) else name


def kind_of_ids(parts: Sequence[Sequence[int]]) -> str:
    """The kind of parts of which only token ids are known, in the order of arrival."""
    if all(len(part) == 1 for part in parts) and all(a[0] < b[0] for a, b in pairwise(parts)):
        return "counter"
    distinct = {tuple(part) for part in parts}
    return "unique ids" if len(distinct) == len(parts) else "changing ids"


def _things(place: Place) -> list[Thing]:
    """Known things that overlap the part: their kind, start and stop."""
    things = []
    for match in _ANY.finditer(place.text):
        if match.start() < place.stop and match.end() > place.start:
            group = match.lastgroup
            name = "number" if group in (None, "n") else _PATTERNS[int(str(group)[1:])][0]
            things.append((name, match.start(), match.end()))
    return things
