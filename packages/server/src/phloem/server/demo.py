"""The engine in two questions: an answer that streams, and one that finds its prefix in the cache.

Owns what is asked and what must come of it. Fetching, starting and showing are shared with the
other commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from phloem.server.cli.chat import Messages, converse
from phloem.server.cli.session import (
    EngineFactory,
    TextEngine,
    failure,
    figures,
    model_progress,
    show_answer,
    start_engine,
    write_out,
)

MODEL = "smollm2"
QUESTIONS = ("What is the capital of France?", "What is it famous for?")

_OPENING: Messages = [{"role": "system", "content": "You are a helpful assistant."}]
_GREEDY = {"temperature": 0.0, "max_new_tokens": 96}


def run_demo(console: Console, factory: EngineFactory | None = None, *, once: bool) -> list[str]:
    """Run the demo, then chat until the input ends unless `once`; return what went wrong.

    `factory` makes the engine in place of our own, whose model is fetched first.
    """
    if factory is None:
        problem = _fetch_model(console)
        if problem:
            return [problem]
    try:
        with (factory or start_engine)(model=MODEL) as engine:
            history, problems = _two_questions(engine, console)
            if not problems and not once:
                console.print("\nNow it is your turn.", style="bold")
                converse(engine, _OPENING, _GREEDY, history)
    except (ValueError, RuntimeError, OSError) as error:
        return [f"the engine failed: {error}"]
    return problems


def _fetch_model(console: Console) -> str:
    """Get the default model if it is not here; return what went wrong, if anything did."""
    # Imported here: torch comes with it.
    from phloem.model_runner.sources import pull_model

    try:
        with model_progress(console) as progress:
            progress(f"getting {MODEL}", 0, 0)
            folder = pull_model(MODEL, progress=progress)
    except ValueError as error:
        return str(error)
    console.print(f"{MODEL}: {folder.source}", style="dim", markup=False)
    return ""


def _two_questions(engine: TextEngine, console: Console) -> tuple[Messages, list[str]]:
    history = list(_OPENING)
    metas: list[Mapping[str, Any]] = []
    for question in QUESTIONS:
        console.print(f"\n> {question}", style="bold", markup=False)
        history.append({"role": "user", "content": question})
        text, meta = show_answer(engine.chat(history, _GREEDY, stream=True), write_out)
        write_out("\n")
        console.print(figures(meta), style="dim")
        history.append({"role": "assistant", "content": text})
        metas.append(meta)
    cached, tokens = metas[1]["cached_tokens"], metas[1]["prompt_tokens"]
    console.print(
        f"\nThe second prompt begins with the first and its answer: {cached} of its {tokens} "
        "tokens came from the prefix cache.",
        style="green",
    )
    return history, list(_problems(history, metas))


def _problems(history: Messages, metas: list[Mapping[str, Any]]) -> Iterator[str]:
    first, second = (m["content"] for m in history if m["role"] == "assistant")
    if "Paris" not in first:
        yield f"the answer to {QUESTIONS[0]!r} does not say Paris: {first!r}"
    if not second.strip():
        yield f"there is no answer to {QUESTIONS[1]!r}"
    if metas[1]["cached_tokens"] <= 0:
        yield "the second prompt found nothing in the prefix cache"
    for meta in metas:
        if failure(meta):
            yield failure(meta)
