"""What the commands share: starting an engine, showing an answer as it comes, and its figures.

Owns the terminal side of an engine. Commands take the engine through the Protocol below, so that
any engine of that form can be put in the context's `obj` in place of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from phloem.server.cli.options import usage_errors
from phloem.server.config import ServerArgs

Generation = Mapping[str, Any]
"""`text`, `output_ids` and `meta_info` of an answer, or of the news of a streamed one."""


class TextEngine(Protocol):
    """The part of `phloem.server.Engine` that the commands use."""

    def generate(
        self,
        prompts: str | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        input_ids: Sequence[int] | None = None,
        stream: bool = False,
    ) -> Any:
        """One `Generation`, or an iterator of them when streamed."""
        ...

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Mapping[str, Any] | None = None,
        *,
        stream: bool = False,
    ) -> Any:
        """As `generate`, for a conversation."""
        ...

    def __enter__(self) -> TextEngine: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


EngineFactory = Callable[..., TextEngine]


def status_console() -> Console:
    """Where everything goes that is not an answer."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def open_engine(
    ctx: click.Context, engine_args: Mapping[str, Any], server: Mapping[str, Any]
) -> TextEngine:
    """Start an engine, or reach the server that `server` names, if any, in its place.

    Options that are wrong end the command with what is wrong with them.
    """
    factory: EngineFactory = ctx.obj or start_engine
    with usage_errors():
        return reach_server(**server, **engine_args) if server else factory(**engine_args)


def reach_server(
    base_url: str, *, api_key: str | None = None, model: str | None = None, **engine_args: Any
) -> TextEngine:
    """A running server as an engine.

    Raises:
        ValueError: when it does not answer, and for options that only an engine has.
    """
    if engine_args:
        option = "--" + next(iter(engine_args)).replace("_", "-")
        raise ValueError(
            f"{option} is for an engine that is started here, and the one at {base_url} runs "
            f"already: leave out {option}, or leave out --base-url"
        )
    # Imported here: an engine of our own needs no HTTP client.
    from phloem.server.cli.remote import RemoteEngine

    return RemoteEngine(base_url, model=model, api_key=api_key)


def start_engine(**engine_args: Any) -> TextEngine:
    """Our own engine, with its model prepared in sight.

    Raises:
        ValueError: for bad options, and a model that cannot be had.
    """
    args = ServerArgs(**engine_args)
    with model_progress(status_console()) as progress:
        progress(f"loading {args.model}", 0, 0)
        # Imported here: numpy comes with it, which help and bad options need not wait for.
        from phloem.server.engine import Engine

        return Engine(progress=progress, **engine_args)


@contextmanager
def model_progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show how far a download or a conversion is; without a terminal, one line for each."""
    tasks: dict[str, TaskID] = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), _BytesColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=None)
                if not console.is_terminal:
                    console.print(what, markup=False)
            bars.update(tasks[what], completed=done, total=total or None)

        yield report


class _BytesColumn(ProgressColumn):
    """Bytes done, of how many where that is known; empty before the first."""

    def render(self, task: Task) -> Text:
        done = decimal(int(task.completed)) if task.completed else ""
        return Text(f"{done} of {decimal(int(task.total))}" if done and task.total else done)


def show_answer(
    stream: Iterable[Generation], write: Callable[[str], None]
) -> tuple[str, Mapping[str, Any]]:
    """Write an answer as it comes; return its text and the last `meta_info`."""
    parts: list[str] = []
    meta: Mapping[str, Any] = {}
    for news in stream:
        write(news["text"])
        parts.append(news["text"])
        meta = news["meta_info"]
    return "".join(parts), meta


def write_out(text: str) -> None:
    """Write part of an answer to standard output, at once."""
    click.echo(text, nl=False)


def figures(meta: Mapping[str, Any]) -> str:
    """One line on how an answer came about, of what is known; a server may not tell everything."""
    timings, tokens = meta["timings"], meta["completion_tokens"]
    parts = [] if tokens is None else [f"{tokens} tokens"]
    if timings.get("decode") and tokens is not None and tokens > 1:
        parts.append(f"{(tokens - 1) / timings['decode']:.1f} tokens/s")
    if timings.get("ttft") is not None:
        parts.append(f"first token after {timings['ttft']:.2f} s")
    if meta["cached_tokens"] is not None:
        parts.append(f"{meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens cached")
    return ", ".join(parts)


def failure(meta: Mapping[str, Any]) -> str:
    """Why a request ended before its time; empty when it did not."""
    reason = meta["finish_reason"]
    if reason["type"] not in ("abort", "error"):
        return ""
    return reason.get("message") or f"the request ended by {reason['type']}"
