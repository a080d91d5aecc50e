"""Outcomes as four small charts in one SVG, drawn without any library.

Configurations that differ in a number (a pool size, a chunk size, replicas) make lines over that
number, one for each combination of what else differs; otherwise they make bars. Owns the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from phloem.scheduler.simulation.figures import Figures, Outcome
from phloem.scheduler.simulation.setup import AXES, label, shown, varied

_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8A8A00"),
)
"""Those of Okabe and Ito, which colour-blind readers tell apart."""
_NUMERIC = ("pool", "chunk", "page", "running", "replicas")
_WIDTH, _HEIGHT = 360, 210
"""Of a panel's drawing area."""
_MARGIN_LEFT, _MARGIN_TOP, _GAP = 60, 70, 70
_KEY_HEIGHT = 20


@dataclass(frozen=True, slots=True)
class _Metric:
    title: str
    value: Callable[[Figures], float]


_METRICS = (
    _Metric("cached share of prompt tokens, %", lambda f: 100 * f.cached_share),
    _Metric("output tokens/s", lambda f: f.output_tokens_per_s),
    _Metric("TTFT p99, s", lambda f: f.ttft_p99_s or 0.0),
    _Metric("ITL p99, ms", lambda f: 1e3 * (f.itl_p99_s or 0.0)),
)


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    points: tuple[tuple[int, Figures], ...]
    """Places on the x axis and what is there."""


def chart(title: str, outcomes: Sequence[Outcome]) -> str:
    """The SVG document."""
    axes = list(varied([outcome.setup for outcome in outcomes]))
    across = next((axis for axis in axes if axis in _NUMERIC), None)
    lines, places = _lines(outcomes, axes, across)
    width = 2 * (_MARGIN_LEFT + _WIDTH) + 30
    top = _MARGIN_TOP + _KEY_HEIGHT * len(lines)
    height = top + 2 * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_MARGIN_LEFT, 26, title, 'font-size="15"'),
    ]
    for i, line in enumerate(lines):
        y = 44 + _KEY_HEIGHT * i
        parts.append(f'<rect x="{_MARGIN_LEFT}" y="{y - 9}" width="14" height="9" {_fill(i)}/>')
        parts.append(_text(_MARGIN_LEFT + 22, y, line.name))
    for i, metric in enumerate(_METRICS):
        x = _MARGIN_LEFT + i % 2 * (_WIDTH + _MARGIN_LEFT)
        y = top + i // 2 * (_HEIGHT + _GAP)
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _panel(metric, lines, places, across)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _lines(
    outcomes: Sequence[Outcome], axes: Sequence[str], across: str | None
) -> tuple[list[_Line], list[str]]:
    """The lines, and the names of the places on the x axis; without one every line is a bar."""
    others = [axis for axis in axes if axis != across]
    if across is None:
        names = [label(outcome.setup, axes or ["policy"]) for outcome in outcomes]
        bars = [_Line(name, ((i, o.figures),)) for i, (name, o) in enumerate(zip(names, outcomes))]
        return bars, []
    values = varied([outcome.setup for outcome in outcomes])[across]
    found: dict[str, list[tuple[int, Figures]]] = {}
    for outcome in outcomes:
        place = values.index(getattr(outcome.setup, AXES[across]))
        name = label(outcome.setup, others or ["policy"])
        found.setdefault(name, []).append((place, outcome.figures))
    return [_Line(name, tuple(points)) for name, points in found.items()], list(map(shown, values))


def _panel(
    metric: _Metric, lines: Sequence[_Line], places: Sequence[str], across: str | None
) -> Iterator[str]:
    top = _nice(max((metric.value(f) for line in lines for _, f in line.points), default=1.0))
    count = len(places) or len(lines)

    def at(place: float, value: float) -> tuple[float, float]:
        return (place + 0.5) / count * _WIDTH, _HEIGHT * (1 - value / top)

    yield _text(0, -12, metric.title, 'font-weight="bold"')
    for tick in range(5):
        value = top * tick / 4
        _, y = at(0, value)
        yield f'<path d="M0 {y:.1f}H{_WIDTH}" stroke="#dddddd"/>'
        yield _text(-6, y + 4, f"{value:.4g}", 'text-anchor="end"')
    for place, name in enumerate(places):
        x, _ = at(place, 0)
        yield _text(x, _HEIGHT + 18, name, 'text-anchor="middle"')
    if across is not None:
        yield _text(_WIDTH / 2, _HEIGHT + 36, across, 'text-anchor="middle"')
    for i, line in enumerate(lines):
        corners = [at(place, metric.value(figures)) for place, figures in line.points]
        if across is None:
            yield from _bar(i, count, *corners[0], metric.value(line.points[0][1]))
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        yield f'<polyline points="{path}" fill="none" stroke="{_colour(i)}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" {_fill(i)}/>' for x, y in corners)


def _bar(i: int, count: int, x: float, y: float, value: float) -> Iterator[str]:
    width = 0.7 * _WIDTH / count
    yield (
        f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{_HEIGHT - y:.1f}" {_fill(i)}/>'
    )
    yield _text(x, y - 3, f"{value:.3g}", 'text-anchor="middle" font-size="11"')


def _nice(value: float) -> float:
    """The next number from `value` up whose quarters are round."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return power * next(m for m in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if m * power >= value)


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _fill(index: int) -> str:
    return f'fill="{_colour(index)}"'


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#222222" {more}>{escape(text)}</text>'
