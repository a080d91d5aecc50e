"""`phloem keys`: the file of a server's API keys, without the server."""

from __future__ import annotations

from pathlib import Path

import click

from phloem.server.cli.options import usage_errors
from phloem.server.keys import Key, KeyLimits, add_key, read_keys, remove_key

_FILE = click.option(
    "--file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file that --api-keys-file of `phloem serve` names.",
)


@click.group("keys")
def command() -> None:
    """Make, list and remove API keys, of which a file keeps the hashes.

    A server reads the file when it starts.
    """


@command.command("add")
@click.argument("name")
@_FILE
@click.option("--requests", type=int, help="Requests a minute; none: as the server says.")
@click.option("--tokens", type=int, help="Tokens a minute, of prompts and outputs together.")
@click.option("--concurrent", type=int, help="Sequences at a time.")
def add(
    name: str, file: Path, requests: int | None, tokens: int | None, concurrent: int | None
) -> None:
    """Make a key called NAME and print it, which is the only time that it is shown."""
    with usage_errors():
        limits = KeyLimits(requests=requests, tokens=tokens, concurrent=concurrent)
        secret = add_key(file, name, limits)
    click.echo(secret)
    click.echo(f"{name} is in {file}; this key is shown only now.", err=True)


@command.command("list")
@_FILE
def show(file: Path) -> None:
    """Show names, ids and limits of the keys."""
    with usage_errors():
        keys = read_keys(file)
    for key in keys:
        click.echo(_shown(key))


@command.command("remove")
@click.argument("name")
@_FILE
def remove(name: str, file: Path) -> None:
    """Remove the key called NAME; a server that runs knows it until it starts anew."""
    with usage_errors():
        remove_key(file, name)
    click.echo(f"{name} is removed from {file}.", err=True)


def _shown(key: Key) -> str:
    name, _, *limits = key.line().split()
    return " ".join([name, key.id, *limits])
