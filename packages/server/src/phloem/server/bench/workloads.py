"""What is asked of a server: five workloads, the same every time for one seed and repetition.

| name | what | requests | prompt | output | at once |
|---|---|---|---|---|---|
| w1 | single stream | 5 | 128 | 128 | 1 |
| w2 | distinct batch | 32 | 256 | 64 | 16 |
| w3 | shared prefix, then the same again as w3warm | 64 | 1024 shared + 64 | 32 | 16 |
| w4 | 8 conversations of 4 turns | 32 | 64 more each turn | 32 | 8 |
| w5 | JSON by a schema | 16 | about 60, chat | 96 at most | 8 |

Prompts are sentences of words that are one token each, so their lengths in tokens are exact, and
what is appended to a text leaves the tokens before it as they are.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.server.bench import words

Encode = Callable[[str], Sequence[int]]
"""The token ids of a text, without any that the model wants around a document."""

_LEAST_WORDS = 4
"""Of each kind; with fewer the texts of a workload would hardly differ."""

PERSON_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "email": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests that follow each other: a turn's prompt is all earlier turns and their answers.

    Most have one turn, and are a request.
    """

    turns: tuple[str, ...]
    max_tokens: int
    schema: Mapping[str, Any] | None = None
    """What the answer must keep to; such a conversation is a chat."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations, at most `concurrency` of them at once."""

    name: str
    concurrency: int
    conversations: tuple[Conversation, ...]
    again: str | None = None
    """The name under which the same is to be run once more, with the cache as it is then."""


class TextMaker:
    """Makes text of exact length in tokens, from words that the vocabulary holds whole."""

    def __init__(self, encode: Encode, seed: int) -> None:
        """Choose the words.

        Raises:
            ValueError: for a vocabulary that has too few of them as one token.
        """
        self.encode = encode
        self.seed = seed
        article, adjective, noun, verb, preposition = map(
            self._whole,
            (words.ARTICLES, words.ADJECTIVES, words.NOUNS, words.VERBS, words.PREPOSITIONS),
        )
        stop = tuple(mark for mark in words.STOPS if len(encode(mark)) == 1)
        self._sentence = (
            *(article, adjective, noun, verb, article, noun),
            *(preposition, article, adjective, noun, stop or noun),
        )

    def rng(self, *key: object) -> random.Random:
        """Chance that depends on the seed and `key` alone."""
        return random.Random("/".join(map(str, (self.seed, *key))))

    def text(self, tokens: int, *key: object) -> str:
        """`tokens` tokens of sentences; equal keys give equal text.

        It begins with a space, so that texts can be joined.

        Raises:
            ValueError: when the tokenizer splits text in a way that does not add up.
        """
        rng = self.rng(*key)
        kinds = itertools.islice(itertools.cycle(self._sentence), tokens)
        text = "".join(map(rng.choice, kinds))
        found = len(self.encode(text))
        if found != tokens:
            raise ValueError(
                f"{tokens} words came out as {found} tokens: this tokenizer joins or splits words "
                "by what is around them, so prompts of exact length cannot be made for it"
            )
        return text

    def _whole(self, kind: Sequence[str]) -> tuple[str, ...]:
        """The words that are one token with a space before them."""
        whole = tuple(f" {word}" for word in kind if len(self.encode(f" {word}")) == 1)
        if len(whole) < _LEAST_WORDS:
            raise ValueError(
                f"of words like {kind[0]!r} this tokenizer has {len(whole)} as one token, and "
                f"{_LEAST_WORDS} are needed: is it the tokenizer of the model that is served?"
            )
        return whole


def build(name: str, make: TextMaker, repetition: int) -> Workload:
    """A workload by its name; each repetition has text of its own, which no cache has seen.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in _BUILDERS:
        raise ValueError(f"there is no workload {name!r}: known are {', '.join(_BUILDERS)}")
    return _BUILDERS[name](make, repetition)


def warm_up_workload(make: TextMaker) -> Workload:
    """A little of everything that a server may want to set up at its first requests."""
    return _distinct("warm-up", make, 0, requests=8, prompt=64, output=8, concurrency=8)


def _distinct(
    name: str,
    make: TextMaker,
    repetition: int,
    *,
    requests: int,
    prompt: int,
    output: int,
    concurrency: int,
) -> Workload:
    return Workload(
        name,
        concurrency,
        tuple(
            Conversation((make.text(prompt, name, repetition, i),), output) for i in range(requests)
        ),
    )


def _single_stream(make: TextMaker, repetition: int) -> Workload:
    return _distinct("w1", make, repetition, requests=5, prompt=128, output=128, concurrency=1)


def _distinct_batch(make: TextMaker, repetition: int) -> Workload:
    return _distinct("w2", make, repetition, requests=32, prompt=256, output=64, concurrency=16)


def _shared_prefix(make: TextMaker, repetition: int) -> Workload:
    prefix = make.text(1024, "w3", repetition, "prefix")
    conversations = tuple(
        Conversation((prefix + make.text(64, "w3", repetition, i),), 32) for i in range(64)
    )
    return Workload("w3", 16, conversations, again="w3warm")


def _multi_turn(make: TextMaker, repetition: int) -> Workload:
    conversations = tuple(
        Conversation(tuple(make.text(64, "w4", repetition, i, turn) for turn in range(4)), 32)
        for i in range(8)
    )
    return Workload("w4", 8, conversations)


def _structured(make: TextMaker, repetition: int) -> Workload:
    rng = make.rng("w5", repetition)

    def question(i: int) -> str:
        name = f"{words.NAMES[i]} {rng.choice(words.SURNAMES)}"
        return (
            "Write a JSON object with the name, the age, the email address and at most three short "
            f"tags of this person. {name} is {rng.randrange(18, 80)} years old, works as a "
            f"{rng.choice(words.TRADES)} and lives near{make.text(12, 'w5', repetition, i)}"
        )

    conversations = tuple(
        Conversation((question(i),), 96, schema=PERSON_SCHEMA) for i in range(len(words.NAMES))
    )
    return Workload("w5", 8, conversations)


_BUILDERS: dict[str, Callable[[TextMaker, int], Workload]] = {
    "w1": _single_stream,
    "w2": _distinct_batch,
    "w3": _shared_prefix,
    "w4": _multi_turn,
    "w5": _structured,
}
WORKLOADS = tuple(_BUILDERS)


def is_person(text: str) -> bool:
    """Whether an answer keeps to `PERSON_SCHEMA`."""
    try:
        person = json.loads(text)
    except ValueError:
        return False
    if not isinstance(person, dict) or set(person) != set(PERSON_SCHEMA["required"]):
        return False
    tags = person["tags"]
    return (
        isinstance(person["name"], str)
        and isinstance(person["email"], str)
        and type(person["age"]) is int
        and isinstance(tags, list)
        and len(tags) <= 3
        and all(isinstance(tag, str) for tag in tags)
    )
