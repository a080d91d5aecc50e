"""Facts out of texts, as JSON: every answer keeps to a schema, whatever the model says."""

import json
import sys

from phloem.server import Engine

TEXTS = (
    "Maria is 34 years old and works as a baker in Porto.",
    "Old Tom, who turned 81 in May, repairs clocks in Leeds.",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 20},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


def main(model: str = "smollm2") -> None:
    """Ask for the facts in each text; then for a word out of a list."""
    with Engine(model=model) as engine:
        facts = {"temperature": 0, "max_new_tokens": 64, "json_schema": SCHEMA}
        prompts = [ask(engine, f"Give name, age and city as JSON. {text}") for text in TEXTS]
        for result in engine.generate(input_ids=prompts, sampling_params=facts):
            person = json.loads(result["text"])
            print(f"{person['name']}, {person['age']}, lives in {person['city']}")
        choice = {"temperature": 0, "choices": ["baker", "clockmaker", "gardener"]}
        prompts = [ask(engine, f"What is the trade? {text}") for text in TEXTS]
        for result in engine.generate(input_ids=prompts, sampling_params=choice):
            print(f"trade: {result['text']}")


def ask(engine: Engine, question: str) -> list[int]:
    """The prompt of a question."""
    return engine.tokenizer.encode_chat([{"role": "user", "content": question}])


if __name__ == "__main__":
    main(*sys.argv[1:])
