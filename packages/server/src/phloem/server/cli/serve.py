"""`phloem serve`: the OpenAI API over an engine, until Ctrl-C."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

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
from phloem.server.http_config import HttpArgs, check_together
from phloem.server.startup import Laps

if TYPE_CHECKING:
    from phloem.server.children import Ahead

_EXAMPLES = """\b
Examples:
  phloem serve
  phloem serve --model org/name --port 8000 --api-key "$KEY"
  phloem serve --max-total-tokens 32768 --print-config > phloem.toml
  phloem serve --config phloem.toml --log-format json
"""


@click.command("serve", cls=GroupedCommand, epilog=_EXAMPLES)
@config_option
@click.option(
    "--print-config",
    cls=GroupedOption,
    group="Configuration",
    is_flag=True,
    help="print all options as such a file, secrets left out, and exit",
)
@engine_options
@dataclass_options(HttpArgs, "http_args")
@click.pass_context
def command(
    ctx: click.Context,
    print_config: bool,
    engine_args: dict[str, Any],
    http_args: dict[str, Any],
) -> None:
    """Serve a model over HTTP, with the OpenAI API.

    Ctrl-C lets running requests go on for --drain-seconds, then ends; a second one ends them.
    """
    console, laps = status_console(), Laps()
    with usage_errors():
        args, http = ServerArgs(**engine_args), HttpArgs(**http_args)
        # They are in `http` now, and no process that is started from here on needs them.
        for field in fields(HttpArgs):
            os.environ.pop(field.metadata["secret_env"] or "", None)
        check_together(args, http)
        if print_config:
            from phloem.server.config_file import written_config

            click.echo(written_config(args, http))
            return
        # Imported here: help and bad options need not wait for it.
        from phloem.server.children import SCHEDULER, started_ahead

        with started_ahead(SCHEDULER) as ahead:
            status = _serve(args, http, console, laps, ahead)
    ctx.exit(status)


def _serve(args: ServerArgs, http: HttpArgs, console: Console, laps: Laps, ahead: Ahead) -> int:
    from phloem.server.crash_dump import prepare_folder
    from phloem.server.guarded_server import guard_of
    from phloem.server.launch import StartupError
    from phloem.server.located_model import locate_model
    from phloem.server.serve import serve

    def say(line: str) -> None:
        console.print(line, markup=False)

    laps.lap("import the server")
    if http.crash_dump_dir is not None:
        prepare_folder(Path(http.crash_dump_dir))
    guard = guard_of(http, lambda line: say(f"Warning: {line}"))
    with model_progress(console) as progress:
        model = locate_model(args, progress)
    laps.lap("find the model")
    try:
        return serve(model, http, guard, say, laps, ahead)
    except StartupError as error:
        raise click.ClickException(str(error)) from error
