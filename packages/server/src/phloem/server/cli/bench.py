"""`phloem bench`: measures a running server.

Owns the options and the table; the load generator is `phloem.server.bench`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any

import click
from rich.console import Console

from phloem.server.cli.options import usage_errors
from phloem.server.cli.session import status_console

if TYPE_CHECKING:
    from phloem.server.bench.figures import Figures
    from phloem.server.bench.fitting import Fit, Observation
    from phloem.server.bench.runner import Progress

_COLUMNS = {
    "output tok/s": ("output_tokens_per_s",),
    "total tok/s": ("total_tokens_per_s",),
    "TTFT p50/p99 ms": ("ttft_p50_ms", "ttft_p99_ms"),
    "ITL p50/p99 ms": ("itl_p50_ms", "itl_p99_ms"),
    "TPOT p50 ms": ("tpot_p50_ms",),
    "cached tok": ("cached_tokens",),
    "valid JSON": ("valid_json",),
    "failed": ("failed",),
    "wall s": ("wall_s",),
}


_API_KEY = click.option("--api-key", envvar="OPENAI_API_KEY", help="For a server that wants one.")
_MODEL = click.option(
    "--model", help="What the API calls the model.  [default: the first it serves]"
)


@click.group("bench")
def command() -> None:
    """Measure a running server under load."""


@command.command("serving")
@click.option(
    "--base-url",
    metavar="URL",
    default="http://127.0.0.1:30000",
    show_default=True,
    help="The server, Phloem's or any with the OpenAI API.",
)
@_API_KEY
@_MODEL
@click.option(
    "--tokenizer",
    metavar="NAME|PATH",
    help="The model's: a known name, a model folder or a tokenizer.json.  [default: --model]",
)
@click.option(
    "--workloads",
    default="w1,w2,w3,w4,w5",
    show_default=True,
    help="Which to run: w1 single stream, w2 distinct batch, w3 shared prefix (cold, then warm), "
    "w4 multi-turn, w5 JSON by a schema.",
)
@click.option("--reps", type=click.IntRange(1), default=3, show_default=True, help="Runs of each.")
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    help="Requests at once.  [default: each workload's own]",
)
@click.option(
    "--seed",
    type=int,
    help="Equal seeds give equal prompts, which the server may have cached.  [default: a new one]",
)
@click.option("--chat", is_flag=True, help="Send each prompt as the message of a chat.")
@click.option("--ids", is_flag=True, help="Send prompts as token ids.")
@click.option(
    "--ignore-eos/--no-ignore-eos",
    default=True,
    show_default=True,
    help="Ask for outputs of full length.",
)
@click.option("--min-tokens", is_flag=True, help="Ask for that by min_tokens too.")
@click.option("--extra", metavar="JSON", default="{}", help="Fields to add to every request.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=900.0,
    show_default=True,
    help="Seconds that one request may take.",
)
@click.option(
    "--json",
    "output",
    type=click.File("w", encoding="utf-8", lazy=True),
    help="Where the figures of all runs go as JSON; - for standard output.",
)
def serving(base_url: str, output: IO[str] | None, **options: Any) -> None:
    """Run workloads against a server and show the medians of what they took.

    Ends with exit status 1 if a request failed.
    """
    try:
        # Imported here: they need the extra, and the model's tokenizer.
        from phloem.server.bench.figures import medians
        from phloem.server.bench.serving import make_plan, measure, report
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: pip install 'phloem-server[bench]'") from error
    with usage_errors():
        options["model"] = options["model"] or _served_model(base_url, options["api_key"])
        plan = make_plan(base_url=base_url, **options)
    console = status_console()
    about = f"{plan.target.model} at {plan.target.base_url}, seed {plan.make.seed}"
    console.print(about, style="dim", markup=False)
    try:
        runs = asyncio.run(measure(plan, _progress(console)))
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    middle = {name: medians(figures) for name, figures in runs.items()}
    console.print(_table(middle), markup=False)
    if output is not None:
        output.write(json.dumps(report(plan, middle, runs)) + "\n")
    problems = [f"{name}: {f.first_error}" for name, f in middle.items() if f.first_error]
    if problems:
        raise click.ClickException("requests failed: " + "; ".join(problems))


@command.command("fit")
@click.option(
    "--base-url",
    metavar="URL",
    default="http://127.0.0.1:30000",
    show_default=True,
    help="The server, Phloem's or any with the OpenAI API that counts cached tokens.",
)
@click.option("--start", metavar="MODEL", help="Start a server with this model, and probe that.")
@_API_KEY
@_MODEL
@click.option(
    "--tokenizer",
    metavar="NAME|PATH",
    help="The model's: a known name, a model folder or a tokenizer.json.  [default: the model]",
)
@click.option(
    "--longest", type=click.IntRange(128), default=1024, show_default=True, help="Prompt."
)
@click.option(
    "--at-once", type=click.IntRange(1), default=16, show_default=True, help="Most that decode."
)
@click.option("--reps", type=click.IntRange(1), default=3, show_default=True, help="Of each probe.")
@click.option(
    "--chunk",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="The server's --chunked-prefill-size.",
)
@click.option(
    "--json",
    "output",
    type=click.File("w", encoding="utf-8", lazy=True),
    help="Where the cost model goes, for the simulator's --cost-model; - for standard output.",
)
def fit(base_url: str, start: str | None, output: IO[str] | None, **options: Any) -> None:
    """Fit the simulator's cost model to a server that has nothing else to do.

    Sends short probes, a minute of them on a CPU, and shows how well the model explains each. Then
    `python -m phloem.scheduler simulate TRACE --cost-model FILE` simulates that server.
    """
    try:
        from phloem.server.bench.serving import measure_cost
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: pip install 'phloem-server[bench]'") from error
    # Imported here: help needs none of it.
    from phloem.server.background import running_server
    from phloem.server.config import ServerArgs

    console = status_console()

    def progress(seen: Observation) -> None:
        console.print(f"{seen.probe}: {seen.seconds * 1e3:.2f} ms", style="dim", markup=False)

    try:
        with ExitStack() as stack, usage_errors():
            if start is not None:
                args = ServerArgs(model=start, chunked_prefill_size=options["chunk"])
                base_url = stack.enter_context(running_server(args)).url
                options["tokenizer"] = options["tokenizer"] or start
            options["model"] = options["model"] or _served_model(base_url, options["api_key"])
            fitted = asyncio.run(measure_cost(base_url=base_url, progress=progress, **options))
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    console.print(_fit_table(fitted), markup=False)
    if output is not None:
        output.write(json.dumps(fitted.as_dict(), indent=2) + "\n")


def _fit_table(fitted: Fit) -> str:
    """The coefficients, and what they say of each probe."""
    model = [f"  {name:<15} {value:.4g} s" for name, value in fitted.cost_model.as_dict().items()]
    probes = [
        f"  {seen.probe:<24} {seen.seconds * 1e3:8.2f} ms  {error:+.1%}"
        for seen, error in zip(fitted.observations, fitted.errors, strict=True)
    ]
    head = f"\nmedians, and the model's errors: {fitted.mean_error:.1%} on average"
    return "\n".join(["", "cost model", *model, head, *probes])


def _served_model(base_url: str, api_key: str | None) -> str:
    # Imported here: help needs no HTTP client.
    from phloem.server.cli.remote import RemoteEngine

    with RemoteEngine(base_url, api_key=api_key) as server:
        return server.model


def _progress(console: Console) -> Progress:
    def show(name: str, run: int, figures: Figures) -> None:
        failed = f", {figures.failed} failed: {figures.first_error}" if figures.failed else ""
        rate = f"{figures.output_tokens_per_s:.1f} output tokens/s in {figures.wall_s:.1f} s"
        console.print(f"{name}, run {run}: {rate}{failed}", style="dim", markup=False)

    return show


def _table(middle: Mapping[str, Figures]) -> str:
    """A line for each workload, a column for each figure that any of them has."""
    columns = {
        title: names
        for title, names in _COLUMNS.items()
        if any(getattr(f, name) is not None for f in middle.values() for name in names)
    }
    rows = [["", *columns]]
    for workload, figures in middle.items():
        cells = ("/".join(_cell(getattr(figures, n)) for n in names) for names in columns.values())
        rows.append([workload, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.rjust, row, widths)) for row in rows)
    return "\n" + "\n".join(lines)


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"
