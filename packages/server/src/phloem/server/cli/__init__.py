"""The `phloem` command.

Owns the list of commands. Each is a module of its own, imported when it is called, and torch only
when a command needs it: help and version answer at once.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import sys

import click

_COMMANDS = {
    "generate": "Generate text for prompts from arguments, a file or JSONL.",
    "chat": "Chat with a model in the terminal.",
    "bench": "Measure a running server under load.",
    "serve": "Serve a model over HTTP, with the OpenAI API.",
    "batch": "Answer a file of requests, in OpenAI's batch format.",
    "grammar": "Say what constraints on outputs can be enforced.",
    "keys": "Make, list and remove API keys.",
    "demo": "See the engine answer, and its prefix cache at work.",
    "pull": "Fetch a model into the cache.",
    "doctor": "Show what this machine offers to the engine.",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Click would import every command for the first line of its help.
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        try:
            version = importlib.metadata.version("phloem-server")
        except importlib.metadata.PackageNotFoundError:
            version = "(run from source, not installed)"
        click.echo(f"phloem {version}")
        ctx.exit()


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_COMPLETION = """\b
Completion in the shell, for bash (zsh and fish have theirs):
  eval "$(_PHLOEM_COMPLETE=bash_source phloem)"
"""


@click.group(cls=_LazyGroup, context_settings=_CONTEXT, epilog=_COMPLETION)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Phloem, an LLM inference engine made of reusable parts."""
    # A model may write any character; a terminal that lacks it shows a question mark.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
