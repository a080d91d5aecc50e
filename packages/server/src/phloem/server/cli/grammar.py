"""`phloem grammar`: what the grammar backends can enforce, without a model or a server."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from phloem.server.cli.options import usage_errors

if TYPE_CHECKING:
    from phloem.grammar.service import BackendSupport

_KINDS = ("json_schema", "regex", "ebnf", "choices", "structural_tag")


@click.group("grammar")
def command() -> None:
    """Look at constraints on outputs."""


@command.command("check")
@click.argument("file", metavar="SCHEMA", type=click.File(encoding="utf-8"))
@click.option(
    "--kind",
    type=click.Choice(_KINDS),
    default="json_schema",
    show_default=True,
    help="What the file holds; choices are a JSON list.",
)
@click.option("--backend", help="The one to ask.  [default: all that are known]")
@click.option("--options", metavar="JSON", help='As a request\'s grammar_options: {"formats": ...}')
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(file: Any, kind: str, backend: str | None, options: str | None, as_json: bool) -> None:
    """Say which backends enforce the constraint in a file, and what they do not support in it.

    - reads it from standard input. Ends with exit status 1 if none of them can.
    """
    with usage_errors():
        # Imported here: numpy comes with them.
        from phloem.grammar.registry import create_backend
        from phloem.grammar.service import check as ask
        from phloem.grammar.vocabulary import Vocabulary
        from phloem.server.compiling import asked_backends
        from phloem.server.constraints import constraint_of

        source = file.read()
        value = json.loads(source) if kind == "choices" else source.rstrip("\n")
        asked = constraint_of({kind: value}, json.loads(options) if options else None)
        if asked is None:
            raise ValueError(f"{file.name} is empty: it must hold a constraint")
        names = asked_backends(backend)
    # What can be enforced does not depend on the vocabulary: one of bytes and an end will do.
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), None], stop_ids=[256])
    report = ask(asked.constraint, names, lambda name: create_backend(name, vocabulary))
    if as_json:
        rows = [asdict(each) for each in report.backends]
        click.echo(json.dumps({"supported": report.supported, "backends": rows}, indent=2))
    else:
        for each in report.backends:
            click.echo(_line(each))
    if not report.supported:
        raise click.exceptions.Exit(1)


def _line(support: BackendSupport) -> str:
    return f"{support.backend:<12}{'supported' if support.supported else support.message}"
