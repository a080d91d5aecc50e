"""`phloem chat`: a conversation in the terminal.

Owns the loop of questions and answers and its history. It works with piped input too: a question a
line.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from phloem.server.cli.options import (
    GroupedCommand,
    GroupedOption,
    config_option,
    engine_options,
    sampling_options,
    server_options,
)
from phloem.server.cli.session import (
    TextEngine,
    failure,
    figures,
    open_engine,
    show_answer,
    status_console,
    write_out,
)

Messages = list[dict[str, str]]

_DEFAULTS = {"max_new_tokens": 1024, "temperature": 0.2, "top_p": 0.9}
"""An answer is longer than a completion, and small models ramble at temperature 1."""


@click.command("chat", cls=GroupedCommand)
@click.option(
    "--system",
    cls=GroupedOption,
    group="Chat",
    help="What the model is told before the conversation.",
)
@sampling_options
@server_options
@config_option
@engine_options
@click.pass_context
def command(
    ctx: click.Context,
    system: str | None,
    sampling_params: dict[str, Any],
    server: dict[str, Any],
    engine_args: dict[str, Any],
) -> None:
    """Chat with a model; /reset starts anew, /quit ends."""
    opening: Messages = [{"role": "system", "content": system}] if system else []
    with open_engine(ctx, engine_args, server) as engine:
        converse(engine, opening, {**_DEFAULTS, **sampling_params})


def converse(engine: TextEngine, opening: Messages, sampling_params: dict[str, Any]) -> None:
    """Answer questions until the input ends; `/reset` goes back to `opening`."""
    interactive = sys.stdin.isatty()
    console = status_console()
    if interactive:
        _enable_line_editing()
        console.print("/reset starts anew, /quit or Ctrl-D ends", style="dim")
    messages = list(opening)
    while True:
        try:
            question = input("\n> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            question = "/quit"
            write_out("\n" if interactive else "")
        if question == "/quit":
            break
        if question == "/reset":
            messages = list(opening)
            console.print("the conversation starts anew", style="dim")
        elif question.startswith("/"):
            console.print(f"{question} is no command: there are /reset and /quit", style="dim")
        elif question:
            messages = answer(engine, messages, question, sampling_params)


def answer(
    engine: TextEngine, messages: Messages, question: str, sampling_params: dict[str, Any]
) -> Messages:
    """Show the answer to a question; return the conversation with both, or as it was if it failed.

    Ctrl-C ends the answer and leaves the conversation without it.
    """
    console = status_console()
    asked = [*messages, {"role": "user", "content": question}]
    try:
        stream = engine.chat(asked, sampling_params, stream=True)
        # Closing the stream is what tells the engine that nobody waits for the rest.
        with contextlib.closing(stream):
            text, meta = show_answer(stream, write_out)
    except KeyboardInterrupt:
        console.print("\n(stopped)", style="dim")
        return messages
    except ValueError as error:
        console.print(f"{error}; /reset starts anew", style="red", markup=False)
        return messages
    write_out("\n")
    console.print(figures(meta), style="dim")
    problem = failure(meta)
    if problem:
        console.print(f"{problem}; ask again", style="red", markup=False)
        return messages
    return [*asked, {"role": "assistant", "content": text}]


def _enable_line_editing() -> None:
    """Importing it is what switches it on; not every system has it."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
