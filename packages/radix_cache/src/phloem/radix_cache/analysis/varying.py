"""Finds parts near the front of prompts that differ between prompts which then go on alike.

Owns the search in one sample of requests. Content that was sent before, but behind something new,
is found by fingerprints: at places chosen by the content itself, so that they are the same wherever
it stands (as in Manber, "Finding similar files in a large file system", 1994). Prompts that share a
fingerprint after their cached prefix are laid side by side to see where exactly they differ.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import Final, TypeVar

from ..key import Namespace, common_prefix
from .kinds import Kind, Place, kind_of, kind_of_ids
from .sample import Request
from .units import Unit

MIN_REQUESTS: Final = 3
_SHARED_TOKENS: Final = 64
_VARYING_TOKENS: Final = 96
_WINDOW_TOKENS: Final = 768
_CONTEXT_TOKENS: Final = 16
_PROBE_BYTES: Final = 32
_MEMBERS: Final = 24
_ATTEMPTS: Final = 4
_TEMPLATES: Final = 16

Item = TypeVar("Item")
Anchor = tuple[int, int]
"""The hash of a fingerprint, and the packed byte at which it begins."""
Member = tuple[int, int]
"""The index of a request, and the packed byte at which a fingerprint begins in its prompt."""


@dataclass(frozen=True, slots=True)
class Template:
    """Prompts that begin with `before`, go on with something new, and then with `after`.

    `reach` is how far behind `before` the beginning of `after` is looked for, in packed bytes.
    """

    before: bytes
    after: bytes
    reach: int
    width: int

    def varying(self, prompt: bytes) -> slice | None:
        """The part of a packed prompt that varies; None if the prompt has another form."""
        start = len(self.before)
        if not prompt.startswith(self.before):
            return None
        stop = prompt.find(self.after, start, start + self.reach + len(self.after))
        while stop > 0 and (stop - start) % self.width:
            stop = prompt.find(self.after, stop + 1, start + self.reach + len(self.after))
        return slice(start, stop) if stop > start else None


@dataclass(frozen=True, slots=True)
class Varying:
    """A template found in so many `requests`, and the kind of its varying part.

    `shared` is the packed bytes behind that part that these prompts have in common (the median).
    """

    template: Template
    kind: str
    shared: int
    requests: int


def find_varying(requests: Sequence[Request], found: Sequence[int], unit: Unit) -> list[Varying]:
    """The templates of a sample, those with the most content behind a varying part first.

    `found` says how many packed bytes of each prompt an unbounded cache had. Only content of 64
    tokens and more counts, sent again in 3 requests and more behind a part of at most 96 tokens.
    """
    scale = round(unit.width * unit.per_token)
    anchors = {
        i: _anchors(request.prompt, found[i], scale, unit)
        for i, request in enumerate(requests)
        if len(request.prompt) - found[i] >= _SHARED_TOKENS * scale
    }
    sent = Counter(mark for marks in anchors.values() for mark in {mark for mark, _ in marks})
    reach = _VARYING_TOKENS * scale
    waiting = {i: _repeated(marks, sent, reach) for i, marks in anchors.items()}
    results: list[Varying] = []
    for _ in range(_ATTEMPTS):
        for members in _groups(requests, waiting):
            for side_by_side in _alike(requests, members, unit.width, reach):
                varying = _compare(requests, side_by_side, unit, scale)
                if varying is not None:
                    results.append(varying)
                    for i, _ in side_by_side:
                        del waiting[i]
    results.sort(key=lambda varying: -(varying.requests - 1) * varying.shared)
    return results


def _anchors(prompt: bytes, start: int, scale: int, unit: Unit) -> list[Anchor]:
    """Fingerprints behind byte `start`: about one in 16 units, where two neighbours say so."""
    width = unit.width
    window = prompt[start : start + _WINDOW_TOKENS * scale]
    values = window if width == 1 else array("i", window)
    last = len(values) - _PROBE_BYTES // width
    chosen = [
        i
        for i, (a, b) in enumerate(pairwise(values))
        if not (a * 0x9E3779B1 + b * 0x85EBCA6B) & 0xF0000
    ]
    return [
        (hash(window[i * width : i * width + _PROBE_BYTES]), start + i * width)
        for i in chosen
        if i <= last
    ]


def _repeated(marks: list[Anchor], sent: Counter[int], reach: int) -> Iterator[Anchor]:
    """Fingerprints sent by several requests, front to back.

    Of those close together, the first of the most frequent: a rarer one holds a part that varies
    too, only less often (the date beside the time).
    """
    rest = [anchor for anchor in marks if sent[anchor[0]] >= MIN_REQUESTS]
    while rest:
        near = [anchor for anchor in rest if anchor[1] <= rest[0][1] + reach]
        most = max(sent[mark] for mark, _ in near)
        chosen = next(anchor for anchor in near if sent[anchor[0]] >= 0.9 * most)
        yield chosen
        rest = [anchor for anchor in rest if anchor[1] > chosen[1]]


def _groups(
    requests: Sequence[Request], waiting: dict[int, Iterator[Anchor]]
) -> list[list[Member]]:
    """Requests whose next repeated fingerprint is the same."""
    groups: defaultdict[tuple[Namespace, int], list[Member]] = defaultdict(list)
    for i in [*waiting]:
        anchor = next(waiting[i], None)
        if anchor is None:
            del waiting[i]
        else:
            groups[requests[i].namespace, anchor[0]].append((i, anchor[1]))
    return [members for members in groups.values() if len(members) >= MIN_REQUESTS]


def _alike(
    requests: Sequence[Request], members: list[Member], width: int, reach: int
) -> Iterator[list[Member]]:
    """Splits a group into those that differ in no more than `reach` bytes before the fingerprint.

    Gives up on what the first few templates leave.
    """
    for _ in range(_TEMPLATES):
        if len(members) < MIN_REQUESTS:
            return
        first, first_at = members[0]
        prompt = requests[first].prompt
        front = prompt[:first_at]
        alike: list[Member] = [members[0]]
        rest: list[Member] = []
        for i, at in members[1:]:
            other = requests[i].prompt
            back = _common_suffix(front, other[:at], width)
            ahead = common_prefix(prompt, other, 0, width)
            differs = max(first_at, at) - back - ahead
            (alike if differs <= reach else rest).append((i, at))
        yield alike
        members = rest


def _compare(
    requests: Sequence[Request], members: list[Member], unit: Unit, scale: int
) -> Varying | None:
    """Lays prompts side by side at a fingerprint they share; None if that is not worth a word."""
    if len(members) < MIN_REQUESTS:
        return None
    chosen = _thinned(members)
    prompts = [requests[i].prompt for i, _ in chosen]
    ats = [at for _, at in chosen]
    width, first = unit.width, prompts[0]
    others = list(zip(prompts[1:], ats[1:]))
    start = min(common_prefix(first, other, 0, width) for other, _ in others)
    back = min(_common_suffix(first[: ats[0]], other[:at], width) for other, at in others)
    ahead = first[ats[0] :]
    forward = median_low(common_prefix(ahead, other, at, width) for other, at in others)
    stops = [at - back for at in ats]
    start = min(start, *stops)
    longest = max(stops) - start
    if not 0 < longest <= _VARYING_TOKENS * scale or back + forward < _SHARED_TOKENS * scale:
        return None
    template = _template(first, start, stops[0], unit, scale)
    # Also those that hit, because an earlier one had the same part: they tell a counter from a day.
    parts = [
        (request.prompt, place.stop)
        for request in requests
        if (place := template.varying(request.prompt)) is not None
    ]
    if len(parts) < MIN_REQUESTS:
        return None
    kind = _kind(_thinned(parts), start, unit, _CONTEXT_TOKENS * scale)
    return Varying(
        _template(first, start - kind.left, stops[0] + kind.right, unit, scale),
        kind.name,
        back + forward - kind.right,
        len(members),
    )


def _template(prompt: bytes, start: int, stop: int, unit: Unit, scale: int) -> Template:
    """The template of a prompt whose part [start, stop) varies."""
    after = prompt[stop : stop + _PROBE_BYTES]
    return Template(prompt[:start], after, 2 * _VARYING_TOKENS * scale, unit.width)


def _thinned(items: Sequence[Item]) -> Sequence[Item]:
    """At most so many of the items as are laid side by side, from first to last."""
    return items[:: max(1, -(-len(items) // _MEMBERS))]


def _kind(parts: Sequence[tuple[bytes, int]], start: int, unit: Unit, context: int) -> Kind:
    """The kind of the parts from `start` to each stop, and the packed bytes beside that belong."""
    width = unit.width
    left = min(context, start)
    places, sizes = [], []
    for prompt, stop in parts:
        pieces = unit.pieces(prompt[start - left : stop + context])
        if pieces is None:
            return Kind(kind_of_ids([unit.ids(prompt[start:stop]) for prompt, stop in parts]), 0, 0)
        begin, end = left // width, (left + stop - start) // width
        lengths = [len(piece) for piece in pieces]
        places.append(Place("".join(pieces), sum(lengths[:begin]), sum(lengths[:end])))
        sizes.append((lengths[:begin][::-1], lengths[end:]))
    kind = kind_of(places)
    before, after = sizes[0]
    return Kind(kind.name, _units(before, kind.left) * width, _units(after, kind.right) * width)


def _units(lengths: Sequence[int], characters: int) -> int:
    """How many pieces of these lengths it takes to cover so many characters."""
    count = 0
    while characters > 0 and count < len(lengths):
        characters -= lengths[count]
        count += 1
    return count


def _common_suffix(a: bytes, b: bytes, width: int) -> int:
    """How many packed bytes two prompts have in common at their ends."""
    if width == 1:
        return common_prefix(a[::-1], b[::-1], 0, 1)
    backwards = array("i", a)[::-1].tobytes()
    return common_prefix(backwards, array("i", b)[::-1].tobytes(), 0, width)
