"""Output tokens a second in the engine under constraints, over those without, at batch 1 and 16.

Each request answers with a list of 200 items or more of a schema in `benchmarks/data/schemas.json`,
which is longer than the answer may become; a free request ignores the end of the sequence. So all
requests of a round have the same prompts, seeds and number of tokens. Steering is off, for it would
begin at once. The modes take turns, so that a machine that slows down does so for all, and
`constrained_share` is the median over rounds of constrained over free: 0.95 and more is the aim.
`jumping_share` is the same with jump-forward, which gets several tokens of one forward pass.

Texts differ from round to round, so masks are met for the first time too; constraints are compiled
before. As in a server's processes, what is there before is out of the garbage collector's sight.
Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.grammar.checks import Case, read_cases
from benchmarks.report import Figures, run

if TYPE_CHECKING:
    from phloem.server import Engine

BATCHES = (1, 16)
MODES = ("free", "constrained", "jumping")


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """Tokens a second of each mode and batch size, medians over rounds; and shares."""
    from phloem.server import Engine
    from phloem.server.garbage import settle

    # What a reference in a schema means changes with the place of the schema.
    cases = [case for case in read_cases() if "$defs" not in case.schema][: max(BATCHES)]
    figures: Figures = {}
    with Engine(model=options.model, grammar_backend="fsm") as engine:
        for mode in MODES:
            tokens_a_second(engine, cases, mode, tokens=4, seed=0)
        settle()
        for batch in BATCHES:
            rates: dict[str, list[float]] = {mode: [] for mode in MODES}
            for number in range(options.rounds):
                chosen = [cases[(number + place) % len(cases)] for place in range(batch)]
                for mode in MODES[number % 3 :] + MODES[: number % 3]:
                    rate = tokens_a_second(engine, chosen, mode, options.tokens, seed=number)
                    rates[mode].append(rate)
                say(f"batch {batch}: " + ", ".join(f"{m} {r[-1]:.0f}" for m, r in rates.items()))
            for mode in MODES:
                figures[f"{mode}_tokens_s_batch_{batch}"] = statistics.median(rates[mode])
            for mode in MODES[1:]:
                shares = [one / free for one, free in zip(rates[mode], rates["free"], strict=True)]
                figures[f"{mode}_share_batch_{batch}"] = statistics.median(shares)
    return figures


def tokens_a_second(
    engine: Engine, cases: Sequence[Case], mode: str, tokens: int, seed: int
) -> float:
    """Answer all cases side by side with `tokens` tokens each, after their prompts are cached.

    Raises:
        RuntimeError: if one has fewer.
    """
    prompts = [engine.tokenizer.encode_chat(case.messages) for case in cases]
    engine.generate(input_ids=prompts, sampling_params={"max_new_tokens": 1})
    params = [_params(case, mode, tokens, seed + place) for place, case in enumerate(cases)]
    start = time.perf_counter()
    results = engine.generate(input_ids=prompts, sampling_params=params)
    seconds = time.perf_counter() - start
    if any(len(result["output_ids"]) != tokens for result in results):
        raise RuntimeError(f"an answer of {mode} ended before its {tokens} tokens")
    return tokens * len(cases) / seconds


def _params(case: Case, mode: str, tokens: int, seed: int) -> dict[str, Any]:
    params: dict[str, Any] = {"temperature": 1.2, "max_new_tokens": tokens, "seed": seed}
    if mode == "free":
        return params | {"ignore_eos": True}
    return params | {
        "json_schema": {"type": "array", "items": case.schema, "minItems": 200},
        "grammar_options": {"steering": False, "jump_forward": mode == "jumping"},
    }


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)


if __name__ == "__main__":
    run(__doc__, measure, _options)
