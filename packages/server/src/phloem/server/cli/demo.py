"""`phloem demo`: the server in two questions."""

from __future__ import annotations

import click

from phloem.server.cli.session import status_console

_PORT = 30000
_ANY_PORT = 0


@click.command("demo")
@click.option("--once", is_flag=True, help="End after the two questions.")
@click.option("--model", default="smollm2", show_default=True, help="Any chat model.")
@click.option(
    "--port", type=click.IntRange(0, 2**16 - 1), help=f"[default: {_PORT}; with --once any free]"
)
def command(once: bool, model: str, port: int | None) -> None:
    """Serve a model, ask it over HTTP, show what the prefix cache saves; then go on serving.

    Ctrl-C ends it. Ends with exit status 1 if an answer is wrong or nothing came from the cache.
    """
    # Imported here: help need not wait for a server.
    from phloem.server.demo import run_demo

    if port is None:
        port = _ANY_PORT if once else _PORT
    problems = run_demo(status_console(), model=model, port=port, once=once)
    if problems:
        raise click.ClickException("; ".join(problems))
