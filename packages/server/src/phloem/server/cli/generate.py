"""`phloem generate`: prompts in, text or JSON lines out.

Owns the reading of prompts, the order of results and the progress bar. Input is checked whole
before an engine starts; after that a prompt that fails harms only itself.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from phloem.server.cli.options import (
    GroupedCommand,
    GroupedOption,
    check_sampling,
    config_option,
    engine_options,
    sampling_options,
    server_options,
    usage_errors,
)
from phloem.server.cli.session import (
    Generation,
    TextEngine,
    failure,
    figures,
    open_engine,
    show_answer,
    status_console,
    write_out,
)

_INPUTS = ("prompt", "messages", "input_ids")
_MOST_IN_FLIGHT = 256
"""Prompts handed to the engine at once; each waits in a thread."""


@dataclass(frozen=True, slots=True)
class Job:
    """One thing to generate: what is given (one of `_INPUTS`), how, and fields to copy over."""

    kind: str
    given: Any
    sampling_params: Mapping[str, Any]
    copied: Mapping[str, Any] = field(default_factory=dict)

    def run(self, engine: TextEngine, *, stream: bool = False) -> Any:
        """One `Generation`, or an iterator of them when streamed."""
        if self.kind == "messages":
            return engine.chat(self.given, self.sampling_params, stream=stream)
        if self.kind == "input_ids":
            return engine.generate(
                input_ids=self.given, sampling_params=self.sampling_params, stream=stream
            )
        return engine.generate(self.given, self.sampling_params, stream=stream)


_option = functools.partial(click.option, cls=GroupedOption, group="Input and output")


@click.command("generate", cls=GroupedCommand)
@click.argument("prompts", nargs=-1)
@_option("--file", "prompt_file", type=click.File(encoding="utf-8"), help="A prompt a line.")
@_option(
    "--jsonl",
    "jsonl_file",
    type=click.File(encoding="utf-8"),
    help="An object a line with prompt, messages or input_ids, and maybe sampling_params; the "
    "result has its other fields too.",
)
@_option(
    "--output",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    help="Where results go.  [default: standard output]",
)
@_option("--json", "as_json", is_flag=True, help="Print results as JSON lines.")
@sampling_options
@server_options
@config_option
@engine_options
@click.pass_context
def command(
    ctx: click.Context,
    prompts: tuple[str, ...],
    prompt_file: IO[str] | None,
    jsonl_file: IO[str] | None,
    output: IO[str],
    as_json: bool,
    sampling_params: dict[str, Any],
    server: dict[str, Any],
    engine_args: dict[str, Any],
) -> None:
    """Generate text for PROMPTS, the lines of a file or of what is piped in, or JSONL.

    A single prompt streams to the terminal. A prompt is continued as it stands; for answers by a
    chat model use `phloem chat`, or JSONL with messages.
    """
    if not (prompts or prompt_file or jsonl_file or sys.stdin is None or sys.stdin.isatty()):
        prompt_file = sys.stdin
    with usage_errors():
        jobs = list(_jobs(prompts, prompt_file, jsonl_file, sampling_params))
    if not jobs:
        raise click.UsageError("there is no prompt: give PROMPTS, --file or --jsonl")
    as_json = as_json or jsonl_file is not None
    streams = len(jobs) == 1 and not as_json and output.name == "-"
    with open_engine(ctx, engine_args, server) as engine:
        if streams:
            _stream(engine, jobs[0])
        else:
            _generate(engine, jobs, output, as_json)


def _jobs(
    prompts: Iterable[str],
    prompt_file: IO[str] | None,
    jsonl_file: IO[str] | None,
    sampling_params: Mapping[str, Any],
) -> Iterator[Job]:
    """All that is to be generated.

    Raises:
        ValueError: naming the first bad line.
    """
    lines = (line.rstrip("\r\n") for line in prompt_file or ())
    for prompt in (*prompts, *(line for line in lines if line.strip())):
        yield Job("prompt", prompt, sampling_params)
    for number, line in enumerate(jsonl_file or (), 1):
        if line.strip():
            try:
                yield _job_of_line(line, sampling_params)
            except ValueError as error:
                raise ValueError(f"line {number} of the JSONL: {error}") from error


def _job_of_line(line: str, defaults: Mapping[str, Any]) -> Job:
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError(f"it holds a {type(record).__name__}: give an object")
    given = [name for name in _INPUTS if name in record]
    if len(given) != 1:
        raise ValueError(f"it has {' and '.join(given) or 'no input'}: give one of {_INPUTS}")
    own = record.get("sampling_params", {})
    if not isinstance(own, dict):
        raise ValueError(f"sampling_params is a {type(own).__name__}: give an object")
    params = {**defaults, **own}
    check_sampling(params)
    copied = {name: value for name, value in record.items() if name != "sampling_params"}
    return Job(given[0], record[given[0]], params, copied)


def _stream(engine: TextEngine, job: Job) -> None:
    with usage_errors():
        _, meta = show_answer(job.run(engine, stream=True), write_out)
    write_out("\n")
    status_console().print(figures(meta), style="dim")
    if failure(meta):
        raise click.ClickException(failure(meta))


def _generate(engine: TextEngine, jobs: list[Job], output: IO[str], as_json: bool) -> None:
    """Run all jobs at once; write results in the order of the jobs, each as soon as it can be."""
    failed = 0
    with ThreadPoolExecutor(min(len(jobs), _MOST_IN_FLIGHT)) as pool, _progress_bar() as bar:
        task = bar.add_task("generating", total=len(jobs))

        def submit(job: Job) -> Future[Generation]:
            future = pool.submit(_run_alone, engine, job)
            future.add_done_callback(lambda _: bar.advance(task))
            return future

        for job, future in [(job, submit(job)) for job in jobs]:
            result = future.result()
            failed += "error" in result
            output.write(_as_json(job, result) if as_json else _as_text(job, result))
            output.flush()
    if failed:
        raise click.ClickException(f"{failed} of {len(jobs)} prompts failed: see their results")


def _progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=status_console(), transient=True)


def _run_alone(engine: TextEngine, job: Job) -> Generation:
    try:
        result: Generation = job.run(engine)
    except ValueError as error:
        return {"error": str(error)}
    problem = failure(result["meta_info"])
    return {**result, "error": problem} if problem else result


def _as_json(job: Job, result: Generation) -> str:
    copied = job.copied or {job.kind: job.given}
    return json.dumps({**copied, **result}, ensure_ascii=False) + "\n"


def _as_text(job: Job, result: Generation) -> str:
    return f">>> {job.given}\n{result.get('text', '')}{_error_line(result)}\n\n"


def _error_line(result: Generation) -> str:
    return f"[error: {result['error']}]" if "error" in result else ""
