"""Output rates as bars in one SVG, a panel for each workload, drawn without any library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from benchmarks.peers.results import Entrant, Standing

_OURS, _PEER, _WRONG = "#D55E00", "#0072B2", "#BBBBBB"
"""Colours that colour-blind readers tell apart (Okabe and Ito)."""
_BAR, _GAP, _TITLE = 18, 6, 34
_NAMES, _LENGTH, _VALUES = 130, 260, 60
_COLUMNS = 2


def chart(title: str, standings: Mapping[str, Standing], entrants: Mapping[str, Entrant]) -> str:
    """The SVG document: our bars, peers' bars, and grey ones where texts are wrong."""
    workloads = tuple(dict.fromkeys(w for s in standings.values() for w in s.figures))
    panel_width = _NAMES + _LENGTH + _VALUES
    panel_height = _TITLE + (_BAR + _GAP) * len(standings) + _GAP
    rows = -(-len(workloads) // _COLUMNS)
    width, height = _COLUMNS * panel_width, 40 + rows * panel_height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="22" font-size="15">{escape(title)}</text>',
    ]
    for i, workload in enumerate(workloads):
        x, y = i % _COLUMNS * panel_width, 40 + i // _COLUMNS * panel_height
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _panel(workload, standings, entrants)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    workload: str, standings: Mapping[str, Standing], entrants: Mapping[str, Entrant]
) -> Iterator[str]:
    rates = {
        name: standing.figures[workload].output_tokens_per_s
        for name, standing in standings.items()
        if workload in standing.figures
    }
    most = max(rates.values(), default=0.0) or 1.0
    yield f'<text x="{_NAMES}" y="20" font-weight="bold">{workload}, output tokens/s</text>'
    for i, (name, rate) in enumerate(rates.items()):
        top, length = _TITLE + i * (_BAR + _GAP), _LENGTH * rate / most
        colour = _OURS if entrants[name].ours else _PEER
        if not standings[name].counts:
            colour = _WRONG
        middle = top + _BAR - 5
        yield f'<text x="{_NAMES - 6}" y="{middle}" text-anchor="end">{escape(name)}</text>'
        yield (
            f'<rect x="{_NAMES}" y="{top}" width="{length:.1f}" height="{_BAR}" fill="{colour}"/>'
        )
        yield f'<text x="{_NAMES + length + 5:.1f}" y="{middle}">{rate:.1f}</text>'
