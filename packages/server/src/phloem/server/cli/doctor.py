"""`phloem doctor`: what this machine offers, as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json

import click

from phloem.server.cli.session import status_console


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--cache-dir", help="Folder for fetched and converted models.")
def command(as_json: bool, cache_dir: str | None) -> None:
    """Show versions, hardware, kernel backends and the default model.

    Ends with exit status 1 if an engine cannot run here.
    """
    with status_console().status("Looking"):
        # Imported here: it loads torch.
        from phloem.server.doctor import examine, lines

        report = examine(cache_dir)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        width = max(len(name) for name, _ in lines(report))
        for name, value in lines(report):
            click.echo(f"{name:<{width}}  {value}")
    if report.problems:
        raise click.ClickException("; ".join(report.problems))
