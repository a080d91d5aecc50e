"""The engine in process on SmolLM2: start, prefill, decode, prefix cache, 200 requests, memory.

Figures are of this machine in this run. For a comparison run both sides here, one after the other,
several times.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Figures, run

if TYPE_CHECKING:
    from phloem.server import Engine

MIB = 1 << 20


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """All figures; times in seconds, memory in MiB."""
    start = time.perf_counter()
    from phloem.server import Engine

    with Engine(model=options.model, dtype=options.dtype) as engine:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = engine.chat(question, {"temperature": 0, "max_new_tokens": 32})
        figures: Figures = {"start_to_first_answer_s": time.perf_counter() - start}
        say(f"start to first answer: {answer['text']!r}")
        rng = random.Random(0)
        for batch in (1, 4, 16):
            say(f"decoding {batch} requests at once")
            figures[f"decode_step_ms_batch_{batch}"] = _decode_ms(engine, rng, batch, options.steps)
        figures |= _prefill(engine, rng, say)
        figures |= _many(engine, rng, options.requests, say)
    return figures


def _ids(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(100, 40_000) for _ in range(n)]


def _decode_ms(engine: Engine, rng: random.Random, batch: int, steps: int) -> float:
    """Median milliseconds from one token to the next, prompts of 256 tokens."""
    params = {"temperature": 0, "max_new_tokens": steps, "ignore_eos": True}
    results = engine.generate(
        input_ids=[_ids(rng, 256) for _ in range(batch)], sampling_params=params
    )
    # The last to be prefilled decodes alongside all the others from its first token on.
    last = min(results, key=lambda r: r["meta_info"]["timings"]["decode"])
    return last["meta_info"]["timings"]["decode"] / (steps - 1) * 1e3


def _prefill(engine: Engine, rng: random.Random, say: Callable[[str], None]) -> Figures:
    """Prompt tokens a second, cold; and time to the first token of the same prompt, warm."""
    say("prefilling prompts of 2,000 tokens, cold and warm")
    cold, warm = [], []
    for _ in range(3):
        prompt = _ids(rng, 2000)
        for times in (cold, warm):
            result = engine.generate(input_ids=prompt, sampling_params={"max_new_tokens": 1})
            times.append(result["meta_info"]["timings"]["ttft"])
    return {
        "prefill_tokens_per_s": 2000 / statistics.median(cold),
        "ttft_2000_cold_s": statistics.median(cold),
        "ttft_2000_warm_s": statistics.median(warm),
    }


def _many(engine: Engine, rng: random.Random, requests: int, say: Callable[[str], None]) -> Figures:
    say(f"{requests} requests of mixed lengths at once")
    prompts = [_ids(rng, rng.randrange(10, 400)) for _ in range(requests)]
    params = [
        {"temperature": 0, "max_new_tokens": rng.randrange(4, 48), "ignore_eos": True}
        for _ in range(requests)
    ]
    start = time.perf_counter()
    results = engine.generate(input_ids=prompts, sampling_params=params)
    took = time.perf_counter() - start
    ended = [r["meta_info"]["finish_reason"]["type"] for r in results]
    return {
        "many_requests": requests,
        "many_finished": ended.count("length") + ended.count("stop"),
        "many_output_tokens_per_s": sum(len(r["output_ids"]) for r in results) / took,
        "many_retractions": sum(r["meta_info"]["retractions"] for r in results),
        "pss_mib": _pss() / MIB,
    }


def _pss() -> int:
    """Proportional set size of this process, in bytes (Linux)."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    line = next(line for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=64, help="tokens decoded by each request")
    parser.add_argument("--requests", type=int, default=200, help="requests sent at once")


if __name__ == "__main__":
    run(__doc__, measure, _options)
