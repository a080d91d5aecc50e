"""Draws a chart as PNG through matplotlib; imported only when one is asked for.

Needs the extra `plot`.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from .chart import Chart, ticks, tokens_label


def save_png(chart: Chart, path: Path) -> None:
    """Write the chart to `path`."""
    figure = Figure(figsize=(8.6, 4.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for i, line in enumerate(chart.lines):
        sizes, rates = zip(*line.points)
        axes.plot(
            sizes,
            [100 * rate for rate in rates],
            label=line.name,
            color=chart.colour(i),
            linestyle="--" if line.dashed else "-",
            marker=None if line.dashed else "o",
            markersize=4,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks(chart), [tokens_label(size) for size in ticks(chart)])
    axes.minorticks_off()
    axes.set_ylim(0, 100)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=f"{chart.y_label} (%)")
    axes.grid(axis="y", alpha=0.4)
    figure.legend(loc="outside right upper")
    figure.savefig(path, format="png")
