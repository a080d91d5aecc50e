"""How a benchmark takes its options and tells its figures, the same for all of them."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from typing import Any

Figures = dict[str, Any]


def run(
    description: str | None,
    measure: Callable[[argparse.Namespace, Callable[[str], None]], Figures],
    add_options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Parse options, measure, print: progress and a table unless `--json`, then one JSON line.

    `measure` gets the options and a function that shows progress; it returns the figures by name.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args()

    def say(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    say(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    figures = measure(options, say)
    width = max(map(len, figures))
    for name, value in figures.items():
        say(
            f"{name:<{width}}  {value:.4g}"
            if isinstance(value, float)
            else f"{name:<{width}}  {value}"
        )
    print(json.dumps(figures))
