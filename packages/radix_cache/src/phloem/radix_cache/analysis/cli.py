"""`python -m phloem.radix_cache analyze`: reads a traffic log, prints the report, draws the chart.

Owns the options and how they meet the unit that the log turns out to have.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

from ..policy import POLICY_NAMES
from .chart import Chart, chart_of, svg
from .report import PrefixReport
from .stats import PrefixStats
from .text import render
from .traffic_log import BadLine, LoggedRequest, RequestReader
from .units import BYTES, TOKENS, Unit

_SUFFIXES: Final = {"k": 2**10, "m": 2**20, "g": 2**30}
_SIZES: Final = "4k,16k,64k,256k,1m,4m,16m"
_NAMED_LINES: Final = 20


class UsageError(Exception):
    """What was asked for cannot be done; the message says what would."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; 0 on success, 1 if the traffic, 2 if the command was not usable."""
    options = _parser().parse_args(arguments)
    try:
        return _analyze(options)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _analyze(options: argparse.Namespace) -> int:
    if options.plot is not None and options.plot.suffix not in (".svg", ".png"):
        raise UsageError(f"--plot {options.plot}: name a file that ends in .svg or .png")
    _check_sizes(options)
    save_png = _png_writer() if options.plot is not None and options.plot.suffix == ".png" else None
    tokenizer = _load_tokenizer(options.tokenizer)
    reader = RequestReader(tokenizer)
    unit = Unit("tokens", TOKENS.width, decode=tokenizer.decode) if tokenizer else None
    bad: list[BadLine] = []
    with _lines(options.requests) as lines:
        good = _good(reader.read(lines), bad, options.strict)
        try:
            first = next(good, None)
            if first is None:
                print(f"error: no request in {options.requests}; {_skipped(bad)}", file=sys.stderr)
                return 1
            unit = unit or (BYTES if reader.counts_text else TOKENS)
            stats = _stats(options, unit)
            for request in chain([first], good):
                stats.add(request.prompt, request.namespace, request.output)
        except _StrictError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    report = stats.report(options.top)
    if bad:
        print(_skipped(bad), file=sys.stderr)
    _show(report, bad, options)
    if options.plot is not None:
        _draw(report, options.plot, save_png)
    return 0


class _StrictError(Exception):
    """A bad line, where none is allowed."""


def _good(
    requests: Iterator[LoggedRequest | BadLine], bad: list[BadLine], strict: bool
) -> Iterator[LoggedRequest]:
    for request in requests:
        if isinstance(request, LoggedRequest):
            yield request
        elif strict:
            raise _StrictError(f"{request} (without --strict it would be skipped)")
        else:
            bad.append(request)


def _check_sizes(options: argparse.Namespace) -> None:
    """Sizes are whole pages, and the curve ends where memory does."""
    if min(options.sizes) < options.page_size:
        raise UsageError(
            f"--sizes {min(options.sizes)}: a cache holds at least a page of {options.page_size}"
        )
    if options.remember is not None:
        options.sizes = [size for size in options.sizes if size <= options.remember]
        if not options.sizes:
            raise UsageError(
                f"--remember {options.remember}: remember at least the smallest of --sizes"
            )


def _stats(options: argparse.Namespace, unit: Unit) -> PrefixStats:
    """Options count tokens; of texts, so many bytes for each."""
    per = round(unit.per_token)
    return PrefixStats(
        page_size=options.page_size * per,
        sizes=[size * per for size in options.sizes],
        policies=options.policies,
        unit=unit,
        remember=None if options.remember is None else options.remember * per,
        sample=options.sample * per,
    )


def _show(report: PrefixReport, bad: list[BadLine], options: argparse.Namespace) -> None:
    if not options.json:
        print(render(report))
        return
    skipped = {"count": len(bad), "first": [asdict(line) for line in bad[:_NAMED_LINES]]}
    print(json.dumps({**report.to_dict(), "skipped": skipped}, indent=2, ensure_ascii=False))


def _draw(report: PrefixReport, path: Path, save_png: Callable[[Chart, Path], None] | None) -> None:
    chart = chart_of(report)
    try:
        if save_png is None:
            path.write_text(svg(chart), encoding="utf-8")
        else:
            save_png(chart, path)
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written: {error.strerror}") from None


def _skipped(bad: list[BadLine]) -> str:
    if not bad:
        return "0 lines skipped"
    named = "".join(f"\n  {line}" for line in bad[:_NAMED_LINES])
    more = len(bad) - _NAMED_LINES
    lines = "line" if len(bad) == 1 else "lines"
    return f"{len(bad):,} {lines} skipped:{named}" + (f"\n  and {more:,} more" if more > 0 else "")


@contextmanager
def _lines(path: str) -> Iterator[IO[str]]:
    """The lines of a file, or of standard input for "-".

    A byte order mark is skipped, and bytes that are no UTF-8 are replaced.
    """
    piped = path == "-"
    try:
        with open(
            0 if piped else path, encoding="utf-8-sig", errors="replace", closefd=not piped
        ) as file:
            yield file
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _load_tokenizer(folder: Path | None) -> Any:
    if folder is None:
        return None
    if not folder.is_dir():
        raise UsageError(f"--tokenizer {folder}: give the folder of a model, nothing is downloaded")
    module = _extra("tokenizer", "analyze", "--tokenizer")
    try:
        return module.ModelTokenizer(folder)
    except (OSError, ValueError) as error:
        raise UsageError(f"--tokenizer {folder}: no tokenizer could be loaded: {error}") from None


def _png_writer() -> Any:
    return _extra("chart_png", "plot", "a PNG (unlike an SVG)").save_png


def _extra(module: str, extra: str, what: str) -> Any:
    """A module of this package that needs more than the package does."""
    try:
        return import_module(f"{__package__}.{module}")
    except ImportError as error:
        raise UsageError(
            f"{what} needs the extra {extra!r} ({error}): pip install 'phloem-radix-cache[{extra}]'"
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m phloem.radix_cache")
    commands = parser.add_subparsers(dest="command", required=True, metavar="analyze")
    tool = commands.add_parser(
        "analyze",
        help="how much prefix caching would save on given traffic",
        description="How much prefix caching would save on given traffic, and what keeps it from "
        "saving more. Sizes count tokens.",
    )
    tool.add_argument("requests", help='a JSON request on each line: "-" is standard input')
    tool.add_argument("--json", action="store_true", help="print JSON instead of text")
    tool.add_argument("--plot", type=Path, metavar="FILE", help="draw hit rates to a .svg or .png")
    tool.add_argument("--page-size", type=_count, default=16, metavar="N", help="default 16")
    tool.add_argument(
        "--policies",
        type=_policies,
        default="lru,lfu,slru",
        metavar="NAMES",
        help=f"of {','.join(POLICY_NAMES)}; all but lru take time for each size",
    )
    tool.add_argument(
        "--sizes", type=_sizes, default=_SIZES, metavar="SIZES", help=f"default {_SIZES}"
    )
    tool.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="a model's folder; texts are bytes without"
    )
    tool.add_argument("--top", type=_count, default=10, metavar="N", help="shared prefixes to list")
    tool.add_argument(
        "--sample",
        type=_size,
        default="16m",
        metavar="SIZE",
        help="search the last prompts for polluted prefixes, so many tokens (default 16m)",
    )
    tool.add_argument(
        "--remember",
        type=_size,
        metavar="SIZE",
        help="bound the content remembered, and with it the sizes, to save memory",
    )
    tool.add_argument("--strict", action="store_true", help="stop at the first bad line")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def _size(text: str) -> int:
    number, suffix = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or (suffix and suffix not in _SUFFIXES):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 65536, 64k, 16m or 1g")
    return int(number) * _SUFFIXES.get(suffix, 1)


def _sizes(text: str) -> list[int]:
    return [_size(part) for part in text.split(",")]


def _policies(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in POLICY_NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is no policy: choose from {','.join(POLICY_NAMES)}"
        )
    return names
