"""`phloem batch`: a file of requests in OpenAI's batch format, answered here or by a server.

Owns the command: where the requests go, the signals, the progress bar and the exit status.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from phloem.server.cli.options import (
    GroupedCommand,
    GroupedOption,
    config_option,
    dataclass_options,
    engine_options,
    usage_errors,
)
from phloem.server.cli.session import model_progress, status_console
from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs

if TYPE_CHECKING:
    from phloem.server.batch.lines import Key
    from phloem.server.batch.output import OutputFile
    from phloem.server.batch.run import BatchRun
    from phloem.server.batch.target import AnyTarget

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SOME_FAILED = 3
_SHOWN_PROBLEMS = 3

_ANSWERING = (
    "served_model_name",
    "strict_fields",
    "chat_template",
    "trust_request_chat_template",
    "tool_call_parser",
    "reasoning_parser",
    "max_request_bytes",
)
"""What of a server's options says how requests are answered."""

_option = functools.partial(click.option, cls=GroupedOption, group="Batch")


@click.command("batch", cls=GroupedCommand)
@click.argument("input_file", metavar="INPUT", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("output_file", metavar="OUTPUT", type=click.Path(dir_okay=False, path_type=Path))
@_option(
    "--server",
    "--base-url",
    "server",
    metavar="URL",
    help="Ask the server there, Phloem's or any with the OpenAI API, and start no engine.",
)
@_option(
    "--api-key", envvar="OPENAI_API_KEY", help="For a server that wants one.  [OPENAI_API_KEY]"
)
@_option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Requests at once.",
)
@_option(
    "--sync-seconds",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Results are on the disk after so long, against loss of power; 0: each at once.",
)
@_option(
    "--retry-failed",
    is_flag=True,
    help="Ask lines again whose result is an error that may pass (5xx, 429, 408).",
)
@dataclass_options(HttpArgs, "http_args", _ANSWERING)
@config_option
@engine_options
@click.pass_context
def command(
    ctx: click.Context,
    input_file: Path,
    output_file: Path,
    server: str | None,
    api_key: str | None,
    concurrency: int,
    sync_seconds: float,
    retry_failed: bool,
    engine_args: dict[str, Any],
    http_args: dict[str, Any],
) -> None:
    """Answer the requests of INPUT, one a line in OpenAI's batch format, into OUTPUT.

    Results come in the order of their completion. A run that ended early, however it did, is
    resumed by the same command: what OUTPUT has is not asked again.

    Exit status: 0 all succeeded, 1 not finished, 2 wrong usage, 3 some results are errors.
    """
    console = status_console()
    with usage_errors():
        args, http = ServerArgs(**engine_args), HttpArgs(**http_args)
        if server is not None:
            _refuse_options([*engine_args, *http_args])
        keys = _keys(input_file, output_file)
    try:
        with usage_errors(), _opened(output_file, keys, sync_seconds, retry_failed) as output:
            if len(output.done) == len(keys):
                console.print(f"all {len(keys)} lines have their results already")
                ctx.exit(_SOME_FAILED if output.failed else 0)
            target = _target(args, http, server, api_key, console)
            job = _Job(input_file, len(keys), output, concurrency, console)
            ctx.exit(asyncio.run(job.run(target)))
    except OSError as error:
        raise click.ClickException(f"{output_file}: {error.strerror or error}") from error


def _refuse_options(given: Sequence[str]) -> None:
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise ValueError(
            f"{flag} is for an engine that is started here: leave it out, or leave out --server"
        )


def _keys(input_file: Path, output_file: Path) -> Mapping[Key, str]:
    """What the input has.

    Raises:
        ValueError: it is not usable.
    """
    from phloem.server.batch.lines import check_input

    try:
        if output_file.exists() and output_file.samefile(input_file):
            raise ValueError("INPUT and OUTPUT are one file: give OUTPUT another name")
        return check_input(input_file)
    except OSError as error:
        raise ValueError(f"{input_file}: {error.strerror or error}") from error


def _opened(
    path: Path, keys: Mapping[Key, str], sync_seconds: float, retry_failed: bool
) -> closing[OutputFile]:
    from phloem.server.batch.output import OutputFile

    return closing(OutputFile(path, keys, sync_seconds, retry_failed))


def _target(
    args: ServerArgs,
    http: HttpArgs,
    server: str | None,
    api_key: str | None,
    console: Console,
) -> AnyTarget:
    # Imported here, each when it is needed: an engine takes its time.
    from phloem.server.observability.logs import set_up_logs

    set_up_logs("batch", "warning")
    if server is not None:
        from phloem.server.batch.target import remote

        return remote(server, api_key)
    from phloem.server.batch.engine import local
    from phloem.server.located_model import locate_model

    with model_progress(console) as progress:
        return local(locate_model(args, progress), http)


class _Job:
    """One run over a file, to its end or to a signal."""

    def __init__(
        self, input_file: Path, lines: int, output: OutputFile, concurrency: int, console: Console
    ) -> None:
        self._input = input_file
        self._lines = lines
        self._output = output
        self._concurrency = concurrency
        self._console = console
        self._earlier = len(output.done)

    async def run(self, target: AnyTarget) -> int:
        """Answer what is left; returns the exit status."""
        loop = asyncio.get_running_loop()
        work = loop.create_task(self._answer(target))
        received: list[int] = []

        def end(number: int) -> None:
            received.append(number)
            work.cancel()
            # A second one of any kind ends the process as ever.
            for each in _SIGNALS:
                loop.remove_signal_handler(each)

        for number in _SIGNALS:
            loop.add_signal_handler(number, end, number)
        try:
            return await work
        except asyncio.CancelledError:
            self._tell(f"stopped; {self._left()}")
            return 128 + received[0]

    async def _answer(self, target: AnyTarget) -> int:
        from phloem.server.batch.lines import read_lines
        from phloem.server.batch.run import BatchRun, ServerGone, unless

        began = time.monotonic()
        with _progress_bar(self._console) as bar:
            task = bar.add_task("answering", total=self._lines, completed=self._earlier)
            try:
                async with target as to:
                    run = BatchRun(
                        to.http,
                        self._output,
                        concurrency=self._concurrency,
                        on_result=lambda: bar.advance(task),
                    )
                    await unless(to.died, run.run(read_lines(self._input)))
            except ServerGone as error:
                self._tell(f"{error}; {self._left()}")
                return 1
        return self._summary(run, time.monotonic() - began)

    def _summary(self, run: BatchRun, seconds: float) -> int:
        done, failed = len(self._output.done), self._output.failed
        rate = run.completion_tokens / seconds
        self._tell(
            f"{done} of {self._lines} lines have results, {failed} of them errors; "
            f"{done - self._earlier} in {seconds:.1f} s, {rate:.1f} output tokens/s"
        )
        for problem in run.unanswered[:_SHOWN_PROBLEMS]:
            self._tell(problem)
        if run.unanswered:
            self._tell(self._left())
            return 1
        return _SOME_FAILED if failed else 0

    def _left(self) -> str:
        left = self._lines - len(self._output.done)
        return f"{left} of {self._lines} lines have no result yet: the same command goes on"

    def _tell(self, line: str) -> None:
        self._console.print(line, markup=False)


def _progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
