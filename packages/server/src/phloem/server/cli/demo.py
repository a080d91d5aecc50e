"""`phloem demo`: the engine in two questions."""

from __future__ import annotations

import click

from phloem.server.cli.session import status_console


@click.command("demo")
@click.option("--once", is_flag=True, help="End after the two questions, without a chat.")
@click.pass_context
def command(ctx: click.Context, once: bool) -> None:
    """Get the default model, ask it, and show what the prefix cache saves.

    Ends with exit status 1 if an answer is wrong or nothing came from the cache.
    """
    from phloem.server.demo import run_demo

    problems = run_demo(status_console(), ctx.obj, once=once)
    if problems:
        raise click.ClickException("; ".join(problems))
