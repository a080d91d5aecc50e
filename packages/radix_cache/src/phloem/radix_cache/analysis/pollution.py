"""Polluted prefixes: what it would bring to move the parts that keep changing to the end.

Owns the trial: the parts found are really moved in a copy of the sample, the hits are counted anew,
and a part that brings its own requests too little is not reported and not moved. Then the search
starts over on the moved prompts, since a part may hide another one behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median_low
from typing import Final

from .lru_pass import LruPass
from .report import Pollution, PollutionReport
from .sample import Request
from .units import Unit
from .varying import MIN_REQUESTS, Varying, find_varying

_MIN_GAIN: Final = 0.005
_ROUNDS: Final = 4
_TRIALS: Final = 32
_EXAMPLES: Final = 3
_SHOWN_TOKENS: Final = 12


@dataclass(frozen=True, slots=True)
class _Pass:
    """Requests, what an unbounded cache found of each (packed bytes), and the totals."""

    requests: list[Request]
    found: list[int]
    lru: LruPass


@dataclass(frozen=True, slots=True)
class _Part:
    """A varying part: the requests (by index) that have it, where, and what moving it brought."""

    varying: Varying
    places: dict[int, slice]
    gain: float


def find_pollution(
    requests: list[Request], unit: Unit, page_size: int, sizes: Sequence[int]
) -> PollutionReport | None:
    """Looks for polluted prefixes in a sample of requests; None if it is empty.

    Reports parts that raise the unbounded hit rate of the sample by half a percentage point and
    more. `sizes` are in pages.
    """
    if not requests:
        return None

    def serve(requests: list[Request]) -> _Pass:
        lru = LruPass(unit, page_size, sizes)
        page_bytes = page_size * unit.width
        found = [lru.add(request).found * page_bytes for request in requests]
        return _Pass(requests, found, lru)

    first = now = serve(requests)
    listed: list[Pollution] = []
    for _ in range(_ROUNDS):
        candidates = find_varying(now.requests, now.found, unit)[:_TRIALS]
        parts, moved = _trial(now, candidates, serve)
        if not parts or moved.lru.rate <= now.lru.rate:
            break
        listed += [_describe(part, now.requests, unit) for part in parts]
        now = moved
    listed.sort(key=lambda part: -part.gain)
    return PollutionReport(
        requests=len(requests),
        prompt=first.lru.prompt,
        rate=first.lru.rate,
        moved_rate=now.lru.rate,
        found=tuple(listed),
        curve=first.lru.curve(),
        moved_curve=now.lru.curve(),
    )


def _trial(
    now: _Pass, candidates: list[Varying], serve: Callable[[list[Request]], _Pass]
) -> tuple[list[_Part], _Pass]:
    """Moves the candidates' parts, leaves out those that bring too little, and moves the rest."""
    while candidates:
        requests = list(now.requests)
        places: list[dict[int, slice]] = [{} for _ in candidates]
        for i, request in enumerate(now.requests):
            for at, varying in enumerate(candidates):
                place = varying.template.varying(request.prompt)
                if place is not None:
                    places[at][i] = place
                    requests[i] = replace(request, prompt=_moved(request.prompt, place))
                    break
        moved = serve(requests)
        total = sum(len(request.prompt) for request in requests)
        parts = [
            _Part(varying, having, sum(moved.found[i] - now.found[i] for i in having) / total)
            for varying, having in zip(candidates, places)
        ]
        kept = [
            part for part in parts if part.gain >= _MIN_GAIN and len(part.places) >= MIN_REQUESTS
        ]
        if len(kept) == len(candidates):
            return kept, moved
        candidates = [part.varying for part in kept]
    return [], now


def _moved(prompt: bytes, place: slice) -> bytes:
    return prompt[: place.start] + prompt[place.stop :] + prompt[place]


def _describe(part: _Part, requests: Sequence[Request], unit: Unit) -> Pollution:
    template, kind, width = part.varying.template, part.varying.kind, unit.width
    contents = [requests[i].prompt[place] for i, place in part.places.items()]
    distinct = dict.fromkeys(contents)
    start = len(template.before) // width
    length = median_low(map(len, contents)) // width
    shown = round(_SHOWN_TOKENS * unit.per_token) * width
    return Pollution(
        kind=kind,
        start=start,
        length=length,
        shared=part.varying.shared // width,
        requests=len(contents),
        distinct=len(distinct),
        before=unit.show(template.before[-shown:]),
        examples=tuple(unit.show(content) for content in islice(distinct, _EXAMPLES)),
        after=unit.show(template.after[:shown]),
        gain=part.gain,
        advice=(
            f"Move the {kind} at {unit.name} {start} to {start + length} to the end of the prompt, "
            f"behind what these {len(contents)} requests have in common."
        ),
    )
