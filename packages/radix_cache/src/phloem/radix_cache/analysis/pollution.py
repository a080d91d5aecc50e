"""Polluted prefixes: what it would bring to move the parts that keep changing to the end.

Owns the trial: each part found is really moved in a copy of the sample, the hit rate is computed
anew, and what brings too little is not reported. Then the search starts over on the moved prompts,
since a part may hide another one behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Final

from .lru_pass import LruPass
from .report import Pollution, PollutionReport
from .sample import Request
from .units import Unit
from .varying import Template, Varying, find_varying

_MIN_GAIN: Final = 0.005
_ROUNDS: Final = 3
_TRIALS: Final = 6
_EXAMPLES: Final = 3
_SHOWN_TOKENS: Final = 12


@dataclass(frozen=True, slots=True)
class _Pass:
    """Requests, what an unbounded cache found of each (packed bytes), and the totals."""

    requests: list[Request]
    found: list[int]
    lru: LruPass


def find_pollution(
    requests: list[Request], unit: Unit, page_size: int, sizes: Sequence[int]
) -> PollutionReport | None:
    """Looks for polluted prefixes in a sample of requests; None if it is empty.

    Reports what raises the unbounded hit rate of the sample by half a percentage point and more.
    `sizes` are in pages.
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
        before = len(listed)
        for varying in find_varying(now.requests, now.found, unit)[:_TRIALS]:
            moved = serve([_move(varying.template, request) for request in now.requests])
            if moved.lru.rate - now.lru.rate >= _MIN_GAIN:
                listed.append(_describe(varying, now, moved, unit))
                now = moved
        if len(listed) == before:
            break
    return PollutionReport(
        requests=len(requests),
        prompt=first.lru.prompt,
        rate=first.lru.rate,
        moved_rate=now.lru.rate,
        found=tuple(listed),
        curve=first.lru.curve(),
        moved_curve=now.lru.curve(),
    )


def _move(template: Template, request: Request) -> Request:
    return replace(request, prompt=template.move(request.prompt))


def _describe(varying: Varying, now: _Pass, moved: _Pass, unit: Unit) -> Pollution:
    template = varying.template
    parts = [
        request.prompt[part]
        for request in now.requests
        if (part := template.varying(request.prompt)) is not None
    ]
    distinct = dict.fromkeys(parts)
    width = unit.width
    start = len(template.before) // width
    length = median_low(len(part) for part in parts) // width
    shown = round(_SHOWN_TOKENS * unit.per_token) * width
    return Pollution(
        kind=varying.kind,
        start=start,
        length=length,
        shared=varying.shared // width,
        requests=len(parts),
        distinct=len(distinct),
        before=unit.show(template.before[-shown:]),
        examples=tuple(unit.show(part) for part, _ in zip(distinct, range(_EXAMPLES))),
        after=unit.show(template.after[:shown]),
        rate=moved.lru.rate,
        gain=moved.lru.rate - now.lru.rate,
        advice=(
            f"Move the {varying.kind} at {unit.name} {start} to {start + length} to the end of the "
            f"prompt, behind what {len(parts)} requests have in common."
        ),
    )
