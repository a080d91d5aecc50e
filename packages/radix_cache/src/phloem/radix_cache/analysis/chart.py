"""A line chart of hit rate by cache size, and how to draw it as SVG without any library.

Owns the layout. Colours are those of Okabe and Ito, which colour-blind readers tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from math import log2
from typing import Final

from .report import PrefixReport

_COLOURS: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
    "#8A8A00",
)
_WIDTH: Final = 860
_HEIGHT: Final = 460
_LEFT: Final = 64
_RIGHT: Final = 660
_TOP: Final = 52
_BOTTOM: Final = 396


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: sizes in tokens (1 and more) against hit rates in [0, 1]."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False

    @property
    def dash(self) -> str:
        """The SVG attribute of a dashed line."""
        return ' stroke-dasharray="6 4"' if self.dashed else ""


@dataclass(frozen=True, slots=True)
class Chart:
    """What to draw."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]

    def colour(self, index: int) -> str:
        """The colour of a line; they repeat after eight."""
        return _COLOURS[index % len(_COLOURS)]


def chart_of(report: PrefixReport) -> Chart:
    """A line for each policy, one for a cache without bound, and one with polluting parts moved.

    The last is of the sample in which they were looked for. Raises `ValueError` if the report has
    no sizes.
    """
    scale = report.units_per_token
    curves = [(curve.policy, curve) for curve in report.curves]
    pollution = report.pollution
    if pollution is not None and pollution.found:
        if pollution.requests != report.requests:
            curves.append((f"lru, last {pollution.requests:,}", pollution.curve))
        curves.append(("lru, parts moved", pollution.moved_curve))
    lines = [
        Line(
            name,
            tuple((max(1.0, p.size / scale), p.rate) for p in curve.points),
            dashed=i >= len(report.curves),
        )
        for i, (name, curve) in enumerate(curves)
    ]
    if not lines or not lines[0].points:
        raise ValueError("the report has no cache sizes to draw: give sizes and policies")
    ends = (lines[0].points[0][0], lines[0].points[-1][0])
    lines.append(Line("no bound", tuple((x, report.rate) for x in ends), dashed=True))
    estimated = "" if scale == 1 else f", estimated at {scale:g} {report.unit} each"
    return Chart(
        title=f"Prefix cache hit rate: {report.requests:,} requests, "
        f"{round(report.prompt / scale):,} prompt tokens",
        x_label=f"cache size (tokens{estimated})",
        y_label="share of prompt tokens found",
        lines=tuple(lines),
    )


def svg(chart: Chart) -> str:
    """The chart as an SVG document; the x axis is logarithmic."""
    return "\n".join([*_svg(chart), ""])


def _svg(chart: Chart) -> Iterator[str]:
    xs = [log2(x) for line in chart.lines for x, _ in line.points]
    low, span = min(xs), max(max(xs) - min(xs), 1e-9)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (log2(x) - low) / span if len(set(xs)) > 1 else 0.5
        return _LEFT + across * (_RIGHT - _LEFT), _BOTTOM - y * (_BOTTOM - _TOP)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">'
    )
    yield f"<title>{escape(chart.title)}</title>"
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    yield _label(_LEFT, 28, chart.title, 'font-size="15"')
    for percent in range(0, 101, 20):
        _, y = at(2**low, percent / 100)
        yield f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="#dddddd"/>'
        yield _label(_LEFT - 8, y + 4, f"{percent} %", 'text-anchor="end"')
    for size in ticks(chart):
        x, _ = at(size, 0)
        yield f'<path d="M{x:.1f} {_BOTTOM}v5" stroke="#555555"/>'
        yield _label(x, _BOTTOM + 20, tokens_label(size), 'text-anchor="middle"')
    middle = (_LEFT + _RIGHT) / 2
    yield _label(middle, _BOTTOM + 46, chart.x_label, 'text-anchor="middle"')
    turned = f'text-anchor="middle" transform="rotate(-90 16 {(_TOP + _BOTTOM) / 2})"'
    yield _label(16, (_TOP + _BOTTOM) / 2, chart.y_label, turned)
    for i, line in enumerate(chart.lines):
        colour = chart.colour(i)
        corners = [at(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        style = f'stroke="{colour}" stroke-width="2"{line.dash}'
        yield f'<polyline points="{path}" fill="none" {style}/>'
        if not line.dashed:
            yield from (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in corners
            )
        height = _TOP + 10 + 22 * i
        yield f'<path d="M{_RIGHT + 20} {height}h26" {style}/>'
        yield _label(_RIGHT + 54, height + 4, line.name)
    yield "</svg>"


def ticks(chart: Chart) -> list[float]:
    """At most about nine of the sizes drawn, evenly picked."""
    sizes = sorted({x for line in chart.lines for x, _ in line.points})
    return sizes[:: -(-len(sizes) // 9)]


def tokens_label(size: float) -> str:
    """A size for an axis: 4096 is "4Ki"."""
    for letter, power in (("Mi", 20), ("Ki", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.3g}{letter}"
    return f"{size:.0f}"


def _label(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#222222" {more}>{escape(text)}</text>'
