"""The `cpu` backend against the torch reference and against what the machine can do.

First the machine's peaks are measured, and now and then again, then every op in turns with the
reference, then the decode step of a whole model beside its parts. A small op costs a call from
Python, which a step does not pay, and one whose data caches keep may read faster than memory. Times
are medians; compare within one run, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

import torch

from benchmarks.kernels import tables
from benchmarks.kernels.attention import KV_DTYPES, attention_cases
from benchmarks.kernels.cases import Case, cases
from benchmarks.kernels.machine import Machine, Probes, Work
from benchmarks.kernels.peaks import Peaks
from benchmarks.kernels.shapes import QUICK, Shapes
from benchmarks.kernels.step import Measured, Stage, forms_of, model_folder
from benchmarks.kernels.timing import medians
from benchmarks.peers.machine import cpu_model
from benchmarks.report import Figures
from phloem.kernels import Ops, get_ops
from phloem.kernels.cpu_backend.library import load_library
from phloem.kernels.cpu_backend.machine import usable_cores

FORMS = ("gguf", "int8", "int4", "none")
STEPS = ((1, 300), (1, 1100), (16, 300), (16, 1100))
"""Requests of a decode step, and tokens that each has."""
_QUICK_STEPS = ((1, 300), (16, 300))
_PROBE_S = 0.3

Say = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse options, measure, print: tables unless `--json`, then one line of JSON."""
    options = _options(arguments)

    def say(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    library = load_library()
    say(f"{cpu_model()}, {usable_cores()} cores, kernels for {library.isa}")
    figures: Figures = {"isa": library.isa, "machine": [], "ops": [], "steps": []}
    for threads in options.threads:
        probes = Probes(library, threads)
        peaks = _peaks(probes, options, say)
        if "ops" in options.only:
            with _torch_threads(threads):
                figures["ops"] += measure_ops(options, peaks, say)
        if "steps" in options.only and threads == options.threads[-1]:
            with _torch_threads(1):  # as the server runs a model on this backend
                figures["steps"] = measure_steps(options, probes, peaks, say)
        figures["machine"].append({**asdict(peaks.machine), "cores": peaks.cores})
    print(json.dumps(figures))


def _peaks(probes: Probes, options: argparse.Namespace, say: Say) -> Peaks:
    peaks = Peaks(probes.machine, options.seconds or _PROBE_S)
    say("\n" + "\n".join(tables.peaks_lines(peaks)))
    return peaks


def measure_ops(
    options: argparse.Namespace, peaks: Peaks, say: Say, shapes: Shapes | None = None
) -> list[Figures]:
    """Every op in turns with the reference: seconds, their ratio, the share of the roof."""
    shapes = shapes or (QUICK if options.quick else Shapes())
    seconds = options.seconds or (0.02 if options.quick else 0.05)
    before = peaks.machine
    ops = get_ops("cpu", threads=before.threads), get_ops("torch")
    say("\n" + tables.OPS_HEAD)
    found = []
    with torch.inference_mode():
        for case in itertools.chain(cases(shapes), attention_cases(shapes)):
            found.append(_measure_op(case, ops, seconds))
            say(tables.op_line(found[-1](peaks.now())))
    return peaks.settled(before, found, _telling(peaks, tables.op_line, say))


def _measure_op(case: Case, ops: tuple[Ops, Ops], seconds: float) -> Callable[[Machine], Figures]:
    times = medians([case.make(one) for one in ops], seconds)
    return partial(_op_figures, case.name, case.work, *times)


def _op_figures(name: str, work: Work, ours: float, reference: float, machine: Machine) -> Figures:
    return {
        "op": name,
        "threads": machine.threads,
        "cpu_s": ours,
        "torch_s": reference,
        "times_faster": reference / ours,
        "share_of_roof": work.least(machine) / ours,
        "bound": work.bound(machine),
    }


def _telling(peaks: Peaks, line: Callable[[Figures], str], say: Say) -> Callable[[Figures], None]:
    """Says figures once more, under what the machine has shown by then."""
    heads = ["\nmeanwhile the machine did more; the same beside that:"]

    def tell(figures: Figures) -> None:
        while heads:
            say("\n".join([heads.pop(), *tables.peaks_lines(peaks)]))
        say(line(figures))

    return tell


def measure_steps(
    options: argparse.Namespace, probes: Probes, peaks: Peaks, say: Say
) -> list[Figures]:
    """Decode steps beside their parts, for each form of the weights."""
    steps = _QUICK_STEPS if options.quick else STEPS
    seconds = options.seconds or (0.2 if options.quick else 0.4)
    found = []
    before = peaks.machine
    with model_folder(options.model, say) as folder:
        say("\n" + tables.STEPS_HEAD)
        for form in forms_of(folder, options.forms):
            stage = Stage(folder, form, before.threads)
            kv = options.kv or ("fp32" if form == "none" else "int8")
            for batch, context in steps:
                steps_of_engine = 20 if options.quick else 100
                measured = stage.measure(
                    probes, batch, context, KV_DTYPES[kv], seconds, steps_of_engine
                )
                found.append(partial(_step_figures, form, kv, batch, context, measured))
                say(tables.step_line(found[-1](peaks.now())))
    return peaks.settled(before, found, _telling(peaks, tables.step_line, say))


def _step_figures(
    form: str, kv: str, batch: int, context: int, measured: Measured, machine: Machine
) -> Figures:
    times = measured.beside(machine)
    return {
        "weights": form,
        "kv": kv,
        "batch": batch,
        "context": context,
        "threads": machine.threads,
        **{f"{name}_s": value for name, value in asdict(times).items()},
        "ratio": times.ratio,
        "outside_share": times.outside_share,
        "engine_outside_share": times.engine_outside_share,
    }


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument(
        "--threads",
        type=_numbers,
        default=sorted({1, usable_cores()}),
        metavar="N,N",
        help="with so many threads each, steps with the last (default: 1, and one for each core)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=("ops", "steps"),
        default=["ops", "steps"],
        help="measure ops alone, or decode steps alone",
    )
    parser.add_argument(
        "--model", help="of the decode steps (default: smollm2 where it is, else a random one)"
    )
    parser.add_argument(
        "--forms", nargs="+", choices=FORMS, help="of its weights (default: gguf int8 none)"
    )
    parser.add_argument(
        "--kv",
        choices=tuple(KV_DTYPES),
        help="its KV cache (default: int8 beside quantized weights, else fp32)",
    )
    parser.add_argument("--quick", action="store_true", help="few shapes, all threads, short turns")
    parser.add_argument("--seconds", type=float, help="for each side of each comparison")
    options = parser.parse_args(arguments)
    options.forms = options.forms or (["gguf"] if options.quick else ["gguf", "int8", "none"])
    options.threads = options.threads[-1:] if options.quick else options.threads
    return options


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has no team of threads: use 1 and more")
    return numbers


if __name__ == "__main__":
    main()
