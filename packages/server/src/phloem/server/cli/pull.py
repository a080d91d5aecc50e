"""`phloem pull`: fetch a model, so that an engine can start without the network."""

from __future__ import annotations

import click

from phloem.server.cli.session import model_progress, status_console


@click.command("pull")
@click.argument("model")
@click.option("--cache-dir", help="Folder for fetched and converted models.")
def command(model: str, cache_dir: str | None) -> None:
    """Fetch MODEL, a known name or a hub id (org/name), and print its folder."""
    # Imported here: torch comes with it, and help does not need that.
    from phloem.model_runner.sources import pull_model

    console = status_console()
    try:
        with model_progress(console) as progress:
            folder = pull_model(model, cache_dir=cache_dir, progress=progress)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    console.print(f"{folder.name}: {folder.source}", style="dim", markup=False)
    click.echo(str(folder.path))
