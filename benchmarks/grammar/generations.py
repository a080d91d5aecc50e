"""Answers of SmolLM2 under many schemas, sampled hot, and whether each keeps to its schema.

The schemas of `benchmarks/data/schemas.json` take turns, 16 requests at a time, in the engine in
process. Every answer that ends by itself must be valid to `json` and `jsonschema`; and with
steering, none may be cut by a `max_new_tokens` of `--room` more than the tokens that its schema
needs at least. Answers that are not as they should be are shown; `wrong` and `cut` count them.

Then one schema with long names is answered one request at a time with jump-forward and without, by
the likeliest tokens: the answers are to be equal, and `forwards_saved` is the part of the runner's
forward passes that jumping did without.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.grammar.checks import Case, fault, read_cases
from benchmarks.report import Figures, run
from phloem.grammar import Constraint, Vocabulary, create_backend
from phloem.model_runner import ModelRunner

if TYPE_CHECKING:
    from phloem.server import Engine

LONG_NAMES = "long_keys"


@dataclass(frozen=True)
class Asked:
    """One request."""

    case: Case
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Answer:
    """One answer, and what is wrong with it, if anything."""

    asked: Asked
    text: str
    ids: list[int]
    ended: bool
    """By itself, not for want of tokens."""
    jumped: int
    """Tokens that no forward pass was made for."""
    wrong: str | None


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """All figures; `wrong`, `cut` and `answers_changed` are to be 0."""
    from phloem.server import Engine

    with Engine(model=options.model, grammar_backend="fsm") as engine:
        cases = read_cases()
        wanted = requests(engine, cases, options.count, options.room, seed=options.seed)
        answers: list[Answer] = []
        start = time.perf_counter()
        with counted_forwards() as forwards:
            for first in range(0, len(wanted), options.batch):
                batch = wanted[first : first + options.batch]
                answers += answer(engine, batch, options.temperature)
                say(f"{len(answers)} of {len(wanted)} answers")
        figures: Figures = {"seconds": time.perf_counter() - start}
        figures |= {"forwards": len(forwards), **summary(answers, say)}
        (named,) = [case for case in cases if case.name == LONG_NAMES]
        return figures | jumps(engine, requests(engine, [named], options.jumps, options.room))


def requests(
    engine: Engine, cases: Sequence[Case], count: int, room: int, *, seed: int = 0
) -> list[Asked]:
    """Some requests; the cases take turns. Each may have `room` more tokens than its case needs."""
    backend = create_backend("fsm", Vocabulary.from_tokenizers(engine.tokenizer.backend))
    limits = []
    for case in cases:
        matcher = backend.compile(Constraint.json_schema(case.schema)).matcher()
        limits.append(room + (matcher.distance_to_end() or 0))
    places = [number % len(cases) for number in range(count)]
    return [Asked(cases[place], limits[place], seed + n) for n, place in enumerate(places)]


def answer(
    engine: Engine, batch: Sequence[Asked], temperature: float, **grammar_options: bool
) -> list[Answer]:
    """Answer requests side by side."""
    params = [
        {
            "temperature": temperature,
            "max_new_tokens": asked.max_tokens,
            "seed": asked.seed,
            "json_schema": asked.case.schema,
            "grammar_options": grammar_options,
        }
        for asked in batch
    ]
    prompts = [engine.tokenizer.encode_chat(asked.case.messages) for asked in batch]
    results = engine.generate(input_ids=prompts, sampling_params=params)
    return [_judged(asked, result) for asked, result in zip(batch, results, strict=True)]


@contextmanager
def counted_forwards() -> Iterator[list[int]]:
    """A list that gets the number of rows of each forward pass that any runner makes meanwhile."""
    rows: list[int] = []
    forward = ModelRunner.forward

    def counting(runner: ModelRunner, batch: Any) -> Any:
        rows.append(len(batch.rows))
        return forward(runner, batch)

    with mock.patch.object(ModelRunner, "forward", counting):
        yield rows


def summary(answers: Sequence[Answer], say: Callable[[str], None]) -> Figures:
    """Shows the answers of each schema in a line, and those that are not as they should be."""
    for name in dict.fromkeys(each.asked.case.name for each in answers):
        own = [each for each in answers if each.asked.case.name == name]
        ended = sum(each.ended for each in own)
        near = sum(len(each.ids) > each.asked.max_tokens * 0.95 for each in own)
        jumped = sum(each.jumped for each in own)
        tokens = [len(each.ids) for each in own]
        say(
            f"{name:<20} {len(own):3} answers, {ended:3} ended, {near:3} near their limit, "
            f"{min(tokens):3} to {max(tokens):3} tokens, {jumped:4} jumped"
        )
    for each in answers:
        if each.wrong is not None:
            say(f"{each.asked.case.name}, seed {each.asked.seed}: {each.wrong}: {each.text!r}")
    return {
        "answers": len(answers),
        "cut": sum(not each.ended for each in answers),
        "wrong": sum(each.wrong is not None for each in answers),
        "tokens": sum(len(each.ids) for each in answers),
        "jumped_tokens": sum(each.jumped for each in answers),
    }


def jumps(engine: Engine, wanted: Sequence[Asked]) -> Figures:
    """Forward passes for requests one by one, with jump-forward and without."""
    counts, texts = [], []
    for jump in (True, False):
        with counted_forwards() as forwards:
            answers = [answer(engine, [each], 0.0, jump_forward=jump)[0] for each in wanted]
        counts.append(len(forwards))
        texts.append([each.ids for each in answers])
    equal = sum(one == two for one, two in zip(*texts, strict=True))
    return {
        "long_names_forwards": counts[0],
        "long_names_forwards_without_jumps": counts[1],
        "forwards_saved": 1 - counts[0] / counts[1],
        "answers_changed": len(wanted) - equal,
    }


def _judged(asked: Asked, result: dict[str, Any]) -> Answer:
    about = result["meta_info"]
    finish = about["finish_reason"]["type"]
    wrong = fault(asked.case.schema, result["text"]) if finish == "stop" else f"ended by {finish}"
    return Answer(
        asked,
        result["text"],
        result["output_ids"],
        finish == "stop",
        about.get("jump_forward_tokens", 0),
        wrong,
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--room", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.2)
    parser.add_argument("--seed", type=int, default=0, help="of the first answer")
    parser.add_argument("--jumps", type=int, default=8, help="answers with long names")


if __name__ == "__main__":
    run(__doc__, measure, _options)
