"""`python -m phloem.scheduler simulate` and `trace`: the command line of the simulator.

Owns the options and what they mean.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from phloem.scheduler.policies import policy_names
from phloem.scheduler.simulation.bundled import bundled_names, bundled_trace
from phloem.scheduler.simulation.cost import PRESETS, load_cost_model
from phloem.scheduler.simulation.fleet import simulate
from phloem.scheduler.simulation.plot import chart
from phloem.scheduler.simulation.report import as_json, settings, table
from phloem.scheduler.simulation.routers import router_names
from phloem.scheduler.simulation.setup import AXES, all_setups, label, varied
from phloem.scheduler.simulation.trace import Trace, read_trace, write_trace

_UNITS = {"k": 2**10, "m": 2**20}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 on success, 2 if what was asked for cannot be done."""
    options = _parser().parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], None] = options.run
        run(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _simulate(options: argparse.Namespace) -> None:
    for path in (options.json, options.plot):
        _check_writable(path)
    trace = _faster(_load(options.trace), options.speed)
    axes = {axis: getattr(options, axis) for axis in AXES}
    setups = all_setups(axes, load_cost_model(options.cost_model), dict(options.set))
    swept = list(varied(setups)) or ["policy"]
    outcomes = []
    for setup in setups:
        started = time.perf_counter()
        outcomes.append(simulate(trace, setup, warm=options.warm, every_step=options.every_step))
        seconds = time.perf_counter() - started
        print(f"{label(setup, swept)}: simulated in {seconds:.1f} s", file=sys.stderr)
    print(f"{trace.name}, {len(trace):,} requests{', warm' if options.warm else ''}")
    print(f"{settings(outcomes)}; cost model {options.cost_model}\n")
    print(table(outcomes))
    if options.json is not None:
        text = json.dumps(as_json(trace, options.warm, outcomes), indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")
    if options.plot is not None:
        options.plot.write_text(chart(trace.name, outcomes), encoding="utf-8")


def _check_writable(path: Path | None) -> None:
    """Refuse a file that could not be written after the whole simulation."""
    if path is None:
        return
    there = path if path.exists() else path.parent
    if path.is_dir() or not path.parent.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(
            f"{path} cannot be written: name a file in a folder that is there and open to you"
        )


def _trace(options: argparse.Namespace) -> None:
    write_trace(bundled_trace(options.spec), sys.stdout)


def _load(name: str) -> Trace:
    """A file's trace, or a bundled one."""
    path = Path(name)
    if not path.is_file() and name.partition(":")[0] in bundled_names():
        return bundled_trace(name)
    if not path.is_file():
        raise ValueError(
            f"there is no trace {name!r}: name a JSONL file or one of {', '.join(bundled_names())}"
        )
    with path.open(encoding="utf-8") as lines:
        return read_trace(lines, name)


def _faster(trace: Trace, speed: float) -> Trace:
    if speed == 1:
        return trace
    return Trace(
        f"{trace.name} at {speed:g}x",
        [replace(r, arrival=r.arrival / speed) for r in trace.requests],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m phloem.scheduler")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_simulate(
        commands.add_parser(
            "simulate",
            help="replay a trace through the scheduler without a model",
            description="Replay a trace of requests through the real scheduler, pool and prefix "
            "tree, with a cost model for the machine. Options that take several values, separated "
            "by commas, are compared in all combinations. Sizes count tokens; 64k is 65536.",
        )
    )
    command = commands.add_parser("trace", help="write a bundled trace to standard output as JSONL")
    command.add_argument("spec", help=f"one of {', '.join(bundled_names())}; see simulate")
    command.set_defaults(run=_trace)
    return parser


def _add_simulate(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "trace",
        help="a JSONL file, or a bundled trace with its parameters, such as "
        f"multi-turn:requests=2000,rate=4,seed=1; there are {', '.join(bundled_names())}",
    )
    add("--policy", type=_policies, default="fcfs", metavar="NAMES", help=_known(policy_names()))
    add(
        "--cost-model",
        default="h100-8b",
        metavar="NAME|FILE",
        help=f"what a step takes: {', '.join(PRESETS)}, or the file that `phloem bench fit` wrote",
    )
    add("--pool", type=_sizes, default="64k", metavar="SIZES", help="of the KV cache (64k)")
    add(
        "--chunk",
        type=_chunks,
        default="2048",
        metavar="SIZES",
        help="prompt tokens computed in one step; -1: whole prompts (2048)",
    )
    add(
        "--mixed",
        type=_switches,
        default="off",
        metavar="on|off|on,off",
        help="whether running requests decode in the steps that compute prompts (off)",
    )
    add("--page", type=_sizes, default="1", metavar="SIZES", help="page sizes (1)")
    add("--running", type=_sizes, default="256", metavar="COUNTS", help="requests at once (256)")
    add("--replicas", type=_sizes, default="1", metavar="COUNTS", help="engines, all alike (1)")
    add(
        "--router",
        type=_routers,
        default="round-robin",
        metavar="NAMES",
        help=_known(router_names()),
    )
    add(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other setting of the scheduler (see SchedulerConfig), such as aging_tokens=0",
    )
    add("--warm", action="store_true", help="replay twice and report the second time")
    add(
        "--speed", type=_factor, default=1.0, metavar="X", help="let requests arrive X times faster"
    )
    add("--every-step", action="store_true", help="take no steps together; the outcome is the same")
    add("--json", type=Path, metavar="FILE", help="write all figures")
    add("--plot", type=Path, metavar="FILE", help="draw them as an SVG")
    command.set_defaults(run=_simulate)


def _known(names: Sequence[str]) -> str:
    return f"of {', '.join(names)}; or all ({names[0]})"


def _sizes(text: str) -> list[int]:
    return [_size(part) for part in text.split(",")]


def _size(text: str) -> int:
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or not int(number) or (unit and unit not in _UNITS):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 65536, 64k or 1m")
    return int(number) * _UNITS.get(unit, 1)


def _chunks(text: str) -> list[int | None]:
    return [None if part == "-1" else _size(part) for part in text.split(",")]


def _switches(text: str) -> list[bool]:
    return [name == "on" for name in _names(text, ("off", "on"))]


def _policies(text: str) -> list[str]:
    return _names(text, policy_names())


def _routers(text: str) -> list[str]:
    return _names(text, router_names())


def _names(text: str, known: Sequence[str]) -> list[str]:
    names = list(known) if text == "all" else text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is unknown: known are {', '.join(known)}")
    return names


def _factor(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no factor: give a number above 0")


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no setting: write NAME=VALUE")
    with suppress(ValueError):
        return name, json.loads(value)
    return name, value
