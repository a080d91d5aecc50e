"""Prefix reuse across calls of Hugging Face `generate`: the same answers, sooner.

Each question comes after one long system prompt. A plain call computes all of it every time; with
`PrefixCache` only the first call does. Give the folder or hub name of a model to try another one.
"""

import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from phloem.model_runner.sources import resolve_model
from phloem.radix_cache.adapters.transformers_cache import PrefixCache

RULES = (
    "Answer in one short sentence.",
    "Do not make up what you do not know.",
    "Name a place in the language of those who live there, and then in English.",
    "Write numbers as digits, with their unit, and round them to what a person remembers.",
    "Be kind to the person who asks, whatever the question.",
)
SYSTEM = "You help the guests of a small hotel. " + " ".join(
    f"Rule {10 * part + i}: {rule}" for part in range(4) for i, rule in enumerate(RULES)
)
QUESTIONS = (
    "What is the capital of France?",
    "What colour is the sky on a clear day?",
    "What is the capital of Japan?",
)


def main(model: str = "smollm2") -> None:
    """Ask everything without and with the cache, and print the answers and both times."""
    folder = resolve_model(model).path
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    cached = PrefixCache(network, max_tokens=8192)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"]
        for question in QUESTIONS
    ]
    ask = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": tokenizer.eos_token_id}
    network.generate(prompts[0][:, :8], **ask)  # the first pass of a process is slower

    answers = {}
    for name, generate in (("without", network.generate), ("with", cached.generate)):
        start = time.perf_counter()
        outputs = [generate(ids, **ask)[0, ids.shape[1] :] for ids in prompts]
        seconds = time.perf_counter() - start
        answers[name] = [tokenizer.decode(ids, skip_special_tokens=True) for ids in outputs]
        print(f"{name:>7} the cache: {seconds:.2f} s for {len(prompts)} questions")

    for question, answer in zip(QUESTIONS, answers["with"], strict=True):
        print(f"{question} {answer}")
    stats = cached.tree.stats
    print(f"{stats.hit_tokens} of {stats.lookup_tokens} prompt tokens were not computed again")
    print("the answers are the same:", answers["with"] == answers["without"])


if __name__ == "__main__":
    main(*sys.argv[1:])
