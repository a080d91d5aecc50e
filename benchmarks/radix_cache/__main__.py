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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.radix_cache import report
from benchmarks.radix_cache.measure import CLOCKS
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
    with ExitStack() as stack:
        run = _Run(options, say, stack)
        for name in options.systems:
            run.start(name)
        for work in options.only:
            for page_size in PAGE_SIZES:
                run.compare(work, page_size)
        run.weigh()
    for line in report.sentences(run.figures):
        say(line)
    return run.figures


class _Run:
    """The processes of the systems that have not failed, and the figures so far."""

    def __init__(
        self, options: argparse.Namespace, say: Callable[[str], None], stack: ExitStack
    ) -> None:
        self._options, self._say, self._stack = options, say, stack
        self._workers: dict[str, Worker] = {}
        self.figures: Figures = {
            "scale": options.scale,
            "rounds": options.rounds,
            "clock": options.clock,
            "failed": {},
            "differences": [],
            "workloads": {},
            "ratios": {},
            "micro": {},
            "bytes_per_node": {},
            "import_ms": _import_ms(options.clock),
        }

    def start(self, name: str) -> None:
        """Start a system, and time a single long node."""
        with self._leaving_out(name):
            worker = self._stack.enter_context(self._new_worker(name))
            page_size = SYSTEMS[name].page_sizes[0]
            self.figures["micro"][name] = worker.ask(do="micro", page_size=page_size)
            self._workers[name] = worker

    def compare(self, work: str, page_size: int) -> None:
        """Play one workload at one page size to all systems in turn, and tell of it."""
        options, say = self._options, self._say
        title, capacity, _ = workload(work, options.scale)
        names = [name for name in self._workers if _is_played(name, work, page_size)]
        rounds: dict[str, list[Figures]] = {name: [] for name in names}
        for number in range(options.rounds):
            for name in names[:: -1 if number % 2 else 1]:
                rounds[name] += self._play(name, work, page_size)
        rounds = {name: of for name, of in rounds.items() if name in self._workers}
        if not rounds:
            return
        say(f"\n{title}; page size {page_size}")
        for line in report.differences({name: of[0] for name, of in rounds.items()}, capacity):
            self.figures["differences"].append(f"{work}, page size {page_size}: {line}")
            say(line)
        systems = {name: report.summary(of) for name, of in rounds.items()}
        report.add_totals(systems)
        against = report.ratios(systems)
        self.figures["workloads"].setdefault(work, {})[page_size] = systems
        self.figures["ratios"].setdefault(work, {})[page_size] = against
        for line in report.table(systems, against):
            say(line)

    def weigh(self) -> None:
        """The memory of a node, of each system at each page size in a fresh process."""
        nodes = max(1_000, round(100_000 * self._options.scale))
        for name in tuple(self._workers):
            sizes = self.figures["bytes_per_node"].setdefault(name, {})
            for page_size in SYSTEMS[name].page_sizes:
                with self._leaving_out(name), self._new_worker(name) as worker:
                    answer = worker.ask(do="memory", page_size=page_size, nodes=nodes)
                    sizes[page_size] = answer["bytes"]

    def _play(self, name: str, work: str, page_size: int) -> list[Figures]:
        """What came of one round: nothing of a system that was left out."""
        if name in self._workers:
            with self._leaving_out(name):
                answer = self._workers[name].ask(
                    do="play",
                    workload=work,
                    page_size=page_size,
                    scale=self._options.scale,
                    sample=SYSTEMS[name].sample,
                    clock=self._options.clock,
                )
                return [answer]
        return []

    def _new_worker(self, name: str) -> Worker:
        return Worker(name, python_of(name, self._options.environment, self._say))

    @contextmanager
    def _leaving_out(self, name: str) -> Iterator[None]:
        try:
            yield
        except SystemFailed as failed:
            self._workers.pop(name, None)
            self.figures["failed"][name] = str(failed)
            self._say(f"left out: {failed}")


def _is_played(name: str, work: str, page_size: int) -> bool:
    """Whether a system gets a workload at a page size: the longest one only at its first, but ours
    at all, to stand beside each.
    """
    page_sizes = SYSTEMS[name].page_sizes
    first_only = work == "leaves" and name != report.OURS
    return page_size in (page_sizes[:1] if first_only else page_sizes)


def _import_ms(clock: str) -> float:
    """Milliseconds to import the package in a fresh interpreter, the median of nine."""
    clock = {"wall": "perf_counter", "cpu": "process_time"}[clock]
    code = (
        f"from time import {clock} as now; start = now(); import phloem.radix_cache; "
        "print((now() - start) * 1e3)"
    )
    command = [sys.executable, "-c", code]
    runs = (subprocess.run(command, check=True, stdout=subprocess.PIPE) for _ in range(9))
    return statistics.median(float(run.stdout) for run in runs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, one round")
    parser.add_argument("--scale", type=float, help="this much of the full size")
    parser.add_argument("--rounds", type=int, help="how often each system is measured (3)")
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="cpu where others use the machine"
    )
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
