"""Many prompts at once: they are batched, and what they share is computed once."""

import sys

from phloem.server import Engine

QUESTIONS = (
    "Who wrote Romeo and Juliet?",
    "What colour is the sky on a clear day?",
    "What is the capital of Japan?",
)


def main(model: str = "smollm2") -> None:
    """Ask all questions twice; the second time their prompts are in the cache."""
    with Engine(model=model) as engine:
        prompts = [
            engine.tokenizer.encode_chat([{"role": "user", "content": question}])
            for question in QUESTIONS
        ]
        params = {"temperature": 0, "max_new_tokens": 24}
        for _ in range(2):
            for question, result in zip(
                QUESTIONS, engine.generate(input_ids=prompts, sampling_params=params), strict=True
            ):
                meta = result["meta_info"]
                print(f"{question} {result['text']}")
                print(f"  {meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens cached")


if __name__ == "__main__":
    main(*sys.argv[1:])
