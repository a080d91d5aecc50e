"""The server in two questions: an answer that streams, and one that finds its prefix in the cache.

Owns what is asked and what must come of it. The server is that of `phloem serve`, in this process;
the questions go to it over HTTP, as anybody's would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from phloem.model_runner.sources import KNOWN_MODELS, pull_model
from phloem.server.cli.chat import Messages
from phloem.server.cli.remote import RemoteEngine
from phloem.server.cli.session import (
    TextEngine,
    failure,
    figures,
    model_progress,
    show_answer,
    write_out,
)
from phloem.server.config import ServerArgs
from phloem.server.guarded_server import guard_of
from phloem.server.http_config import HttpArgs
from phloem.server.launch import StartupError
from phloem.server.located_model import LocatedModel, locate_model
from phloem.server.serve import SERVING, serve
from phloem.server.startup import Laps

QUESTIONS = ("What is the capital of France?", "What is it famous for?")

_OPENING: Messages = [{"role": "system", "content": "You are a helpful assistant."}]
_GREEDY = {"temperature": 0.0, "max_new_tokens": 96}


def run_demo(console: Console, *, model: str, port: int, once: bool) -> list[str]:
    """Serve, ask, and go on serving until Ctrl-C unless `once`; return what went wrong.

    A known model is fetched first, if it is not here. `port` 0 is any that is free.
    """
    try:
        laps = Laps()
        located = _model_here(console, model)
        laps.lap("find the model")
        asking = _Asking(console, once)
        http = HttpArgs(port=port, log_level="warning")
        status = serve(located, http, guard_of(http, asking.hear), asking.hear, laps)
    except (ValueError, StartupError) as error:
        return [str(error)]
    problems = asking.outcome()
    if status:
        problems.append(f"the server ended with exit status {status}")
    return problems


def _model_here(console: Console, model: str) -> LocatedModel:
    with model_progress(console) as progress:
        progress(f"getting {model}", 0, 0)
        if model in KNOWN_MODELS:
            folder = pull_model(model, progress=progress)
            console.print(f"{model}: {folder.source}", style="dim", markup=False)
        return locate_model(ServerArgs(model=model), progress)


class _Asking:
    """Asks once the server is ready, in a thread of its own: the server has the main one."""

    def __init__(self, console: Console, once: bool) -> None:
        self._console = console
        self._once = once
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._problems: list[str] = []

    def hear(self, line: str) -> None:
        """What the server says; when it says its address, the questions begin."""
        self._console.print(line, style="dim", markup=False)
        if line.startswith(SERVING):
            url = line.rpartition(" ")[2]
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._ask, args=(url,), name="phloem-demo")
            self._thread.start()

    def outcome(self) -> list[str]:
        """What went wrong, after the server has ended."""
        if self._thread is None:
            return ["the server ended before it was ready"]
        self._thread.join()
        return self._problems

    def _ask(self, url: str) -> None:
        try:
            with RemoteEngine(url) as engine:
                self._problems = ask_questions(engine, self._console)
                if not self._problems and not self._once:
                    self._console.print(_how_to_reach(url, engine.model), markup=False)
        except Exception as error:  # in a thread nobody else would hear of it
            self._problems = [f"the questions could not be asked: {error}"]
        if self._problems or self._once:
            self._end_server()

    def _end_server(self) -> None:
        """As Ctrl-C would; in the server's loop, since nothing else may catch the signal."""
        assert self._loop is not None, "questions are asked when the server has told its address"
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended already
            self._loop.call_soon_threadsafe(signal.raise_signal, signal.SIGINT)


def _how_to_reach(url: str, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "Tell me a joke."}]}
    return (
        f"\nThe server goes on until Ctrl-C. Ask it yourself:\n\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"    -d '{json.dumps(body)}'\n\n"
        f"  phloem chat --base-url {url}\n"
    )


def ask_questions(engine: TextEngine, console: Console) -> list[str]:
    """Ask both questions in one conversation and show what comes; return what went wrong."""
    history = list(_OPENING)
    metas: list[Mapping[str, Any]] = []
    for question in QUESTIONS:
        console.print(f"\n> {question}", style="bold", markup=False)
        history.append({"role": "user", "content": question})
        text, meta = show_answer(engine.chat(history, _GREEDY, stream=True), write_out)
        write_out("\n")
        console.print(figures(meta), style="dim")
        if failure(meta):
            return [failure(meta)]
        history.append({"role": "assistant", "content": text})
        metas.append(meta)
    cached, tokens = metas[1]["cached_tokens"], metas[1]["prompt_tokens"]
    console.print(
        f"\nThe second prompt begins with the first and its answer: {cached or 0} of its {tokens} "
        "tokens came from the prefix cache.",
        style="green",
    )
    return list(_problems(history, cached))


def _problems(history: Messages, cached: int | None) -> Iterator[str]:
    first, second = (m["content"] for m in history if m["role"] == "assistant")
    if "Paris" not in first:
        yield f"the answer to {QUESTIONS[0]!r} does not say Paris: {first!r}"
    if not second.strip():
        yield f"there is no answer to {QUESTIONS[1]!r}"
    if not cached:
        yield "the second prompt found nothing in the prefix cache"
