"""What `phloem bench serving` and `fit` do: make a plan of the options, run it, report.

Owns what the options mean; the command line and the table are `phloem.server.cli.bench`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from phloem.server.bench.client import LoadClient, Target
from phloem.server.bench.figures import Figures
from phloem.server.bench.fitting import Fit, Observation, fit
from phloem.server.bench.probes import ProbePlan, Prober
from phloem.server.bench.runner import Progress, run_all, warm_up
from phloem.server.bench.workloads import Encode, TextMaker, Workload, build
from phloem.server.openai_wire import api_base
from phloem.server.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run, everything checked."""

    target: Target
    make: TextMaker
    workloads: tuple[Workload, ...]


def make_plan(
    *,
    base_url: str,
    api_key: str | None,
    model: str,
    tokenizer: str | None,
    workloads: str,
    reps: int,
    concurrency: int | None,
    seed: int | None,
    extra: str,
    **target: Any,
) -> Plan:
    """Make sense of the options.

    Raises:
        ValueError: naming what is wrong.
    """
    make = TextMaker(_encode(tokenizer or model), secrets.randbits(32) if seed is None else seed)
    names = [name.strip() for name in workloads.split(",")]
    built = [build(name, make, rep) for name in names for rep in range(reps)]
    if concurrency is not None:
        built = [replace(workload, concurrency=concurrency) for workload in built]
    fields = Target(api_base(base_url), model, api_key, extra=_object(extra), **target)
    return Plan(fields, make, tuple(built))


async def measure(plan: Plan, progress: Progress) -> dict[str, list[Figures]]:
    """Load the server; the figures of all runs by the workload's name.

    Raises:
        RuntimeError: when the server answers nothing at all.
    """
    async with LoadClient.open(plan.target, plan.make.encode) as client:
        await warm_up(client, plan.make)
        return await run_all(client, plan.workloads, progress)


async def measure_cost(
    *,
    base_url: str,
    api_key: str | None,
    model: str,
    tokenizer: str | None,
    longest: int,
    at_once: int,
    reps: int,
    chunk: int,
    progress: Callable[[Observation], None],
) -> Fit:
    """Probe a server and fit the simulator's cost model to it.

    Raises:
        ValueError: the tokenizer is not to be had, or no use.
        RuntimeError: the server does not answer as it must.
    """
    make = TextMaker(_encode(tokenizer or model), secrets.randbits(32))
    target = Target(api_base(base_url), model, api_key)
    async with LoadClient.open(target, make.encode) as client:
        await warm_up(client, make)
        prober = Prober(client, make, ProbePlan(longest, at_once, reps, chunk))
        return fit(await prober.run(progress))


def report(
    plan: Plan, middle: Mapping[str, Figures], runs: Mapping[str, Sequence[Figures]]
) -> dict[str, Any]:
    """Everything that was asked and measured, as JSON has it; no secrets."""
    target = {name: value for name, value in asdict(plan.target).items() if name != "api_key"}
    return {
        "settings": {**target, "seed": plan.make.seed},
        "median": {name: figures.as_dict() for name, figures in middle.items()},
        "runs": {name: [f.as_dict() for f in figures] for name, figures in runs.items()},
    }


def _encode(tokenizer: str) -> Encode:
    """The `encode` of a tokenizer given as a tokenizer.json, a folder that has one, or a name."""
    path = Path(tokenizer).expanduser()
    if path.name == "tokenizer.json":
        path = path.parent
    elif not (path / "tokenizer.json").is_file():
        # Imported here: it loads torch.
        from phloem.model_runner.sources import resolve_model

        try:
            path = resolve_model(tokenizer, float_weights=False).path
        except ValueError as error:
            raise ValueError(f"{error} (or give --tokenizer)") from error
    return partial(Tokenizer.from_folder(path).encode, add_special_tokens=False)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"extra {text!r} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f'extra {text!r} is no object: give one like {{"top_k": 1}}')
    return value
