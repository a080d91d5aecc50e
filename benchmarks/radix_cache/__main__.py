"""Our prefix cache side by side with SGLang's two trees and vLLM's block pool.

Every system gets the same tokens, the same capacity and the same stream of calls, each in its own
process; the rounds alternate between them. Times are medians over the rounds of the mean time of a
call. The peers come from PyPI into an environment of their own, made at the first run. Compare
within one run on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.radix_cache import report
from benchmarks.radix_cache.processes import ROOT, SystemFailed, Worker, python_of
from benchmarks.radix_cache.system import SYSTEMS
from benchmarks.radix_cache.workloads import NAMES, workload
from benchmarks.report import Figures

PAGE_SIZES = (1, 16)


def main() -> None:
    """Parse options, measure, print: a table unless `--json`, then one line of JSON."""
    options = _options()

    def say(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    say(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    print(json.dumps(measure(options, say)))


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """All figures; a system that fails is told of and left out."""
    figures: Figures = {
        "scale": options.scale,
        "rounds": options.rounds,
        "failed": {},
        "differences": [],
        "workloads": {},
        "ratios": {},
        "micro": {},
        "bytes_per_node": {},
        "import_ms": _import_ms(),
    }
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in options.systems:
            try:
                python = python_of(name, options.environment, say)
                workers[name] = stack.enter_context(Worker(name, python))
                figures["micro"][name] = workers[name].ask(do="micro", page_size=_pages(name)[0])
            except SystemFailed as failed:
                _leave_out(workers, name, failed, figures, say)
        for work in options.only:
            for page_size in PAGE_SIZES:
                _compare(workers, work, page_size, options, figures, say)
    for name in tuple(workers):
        try:
            figures["bytes_per_node"][name] = _bytes_per_node(name, options, say)
        except SystemFailed as failed:
            _leave_out(workers, name, failed, figures, say)
    for line in report.sentences(figures):
        say(line)
    return figures


def _compare(
    workers: dict[str, Worker],
    work: str,
    page_size: int,
    options: argparse.Namespace,
    figures: Figures,
    say: Callable[[str], None],
) -> None:
    """Play one workload at one page size to all systems in turn, and tell of it."""
    title, capacity, _ = workload(work, options.scale)
    rounds: dict[str, list[Figures]] = {n: [] for n in workers if page_size in _pages(n)}
    for number in range(options.rounds):
        for name in list(rounds)[:: -1 if number % 2 else 1]:
            question = {"workload": work, "scale": options.scale, "sample": SYSTEMS[name].sample}
            try:
                rounds[name].append(
                    workers[name].ask(do="play", page_size=page_size, **question)
                )
            except SystemFailed as failed:
                del rounds[name]
                _leave_out(workers, name, failed, figures, say)
    if not rounds:
        return
    say(f"\n{title}; page size {page_size}")
    for line in report.differences({name: of[0] for name, of in rounds.items()}, capacity):
        figures["differences"].append(f"{work}, page size {page_size}: {line}")
        say(line)
    systems = {name: report.summary(of) for name, of in rounds.items()}
    report.add_totals(systems)
    against = report.ratios(systems)
    figures["workloads"].setdefault(work, {})[page_size] = systems
    figures["ratios"].setdefault(work, {})[page_size] = against
    for line in report.table(systems, against):
        say(line)


def _bytes_per_node(
    name: str, options: argparse.Namespace, say: Callable[[str], None]
) -> dict[int, float]:
    """By page size, each in a fresh process."""
    sizes = {}
    for page_size in _pages(name):
        with Worker(name, python_of(name, options.environment, say)) as worker:
            nodes = max(1_000, round(100_000 * options.scale))
            sizes[page_size] = worker.ask(do="memory", page_size=page_size, nodes=nodes)["bytes"]
    return sizes


def _pages(name: str) -> tuple[int, ...]:
    return SYSTEMS[name].page_sizes


def _leave_out(
    workers: dict[str, Worker],
    name: str,
    failed: SystemFailed,
    figures: Figures,
    say: Callable[[str], None],
) -> None:
    workers.pop(name, None)
    figures["failed"][name] = str(failed)
    say(f"left out: {failed}")


def _import_ms() -> float:
    """Milliseconds to import the package in a fresh interpreter, the median of five."""
    code = (
        "from time import perf_counter as now; start = now(); import phloem.radix_cache; "
        "print((now() - start) * 1e3)"
    )
    runs = (subprocess.run([sys.executable, "-c", code], capture_output=True) for _ in range(5))
    return statistics.median(float(run.stdout) for run in runs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, one round")
    parser.add_argument("--scale", type=float, help="this much of the full size")
    parser.add_argument("--rounds", type=int, help="how often each system is measured (3)")
    parser.add_argument("--only", type=_choice(NAMES), default=NAMES, help=", ".join(NAMES))
    parser.add_argument(
        "--systems", type=_choice(tuple(SYSTEMS)), default=tuple(SYSTEMS), help=", ".join(SYSTEMS)
    )
    parser.add_argument(
        "--environment",
        type=Path,
        default=ROOT / ".bench" / "peers",
        help="where the peers are installed (.bench/peers)",
    )
    options = parser.parse_args()
    options.scale = options.scale or (0.1 if options.quick else 1.0)
    options.rounds = options.rounds or (1 if options.quick else 3)
    return options


def _choice(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Parses names from `known`, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is unknown: use {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    main()
