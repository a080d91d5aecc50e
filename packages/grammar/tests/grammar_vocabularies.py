"""Vocabularies for tests: of single bytes, and of merged ones as byte-pair encoding makes them."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache
from itertools import pairwise

from phloem.grammar.vocabulary import Vocabulary

END = 256
"""The stop token of the vocabularies of this module."""
SPECIAL = 257
"""A special token, `<|im_start|>` by name."""
HOLE = 258
"""An id that stands for nothing."""
DOUBLE = 259
"""Spells what token ord("a") spells."""

_CORPUS = """
{"name": "Ann Lee", "age": 42, "tags": ["a", "b c"], "ok": true, "none": null, "x": -1.5e3}
[{"id": 1, "title": "The quick brown fox"}, {"id": 22, "title": "jumps over the lazy dog."}]
{
  "city": "Zürich", "mood": "😀 fine", "note": "line\\nbreak \\"quoted\\" \\u00e9",
  "list": [false, true, 100, 2000]
}
the cat and the dog went to the house in the morning, and there they were: https://example.org/a?b
555-1234 2024-05-17T08:30:00Z ann.lee@example.com SELECT name FROM people WHERE age > 30;
naïve café über Straße 日本語 текст and   several    spaces	tabs
"""


@lru_cache(maxsize=1)
def byte_vocabulary() -> Vocabulary:
    """Token n is byte n; then `END`, `SPECIAL`, `HOLE` and `DOUBLE`."""
    return Vocabulary([*_single_bytes(), b"</s>", b"<|im_start|>", None, b"a"], [END], [SPECIAL])


@lru_cache(maxsize=1)
def toy_vocabulary() -> Vocabulary:
    """The same, and the merges that occur twice in a small text after them: 332 tokens."""
    first = [*_single_bytes(), b"</s>", b"<|im_start|>", None, b"a"]
    return Vocabulary([*first, *_merged()], [END], [SPECIAL])


@lru_cache(maxsize=1)
def structural_vocabulary() -> Vocabulary:
    """Single bytes, and 1,500 pieces of JSON of up to 12 bytes, in which names come twice too."""
    rng = random.Random(0)
    pieces: set[bytes] = set()
    while len(pieces) < 1500:
        text = _json_text(rng, rng.choice(["", "", " ", "\n  ", "\n\t"]), 0)
        for _ in range(20):
            start = rng.randrange(len(text))
            pieces.add(text[start : start + rng.randint(2, 12)].encode())
    first = [*_single_bytes(), b"</s>", b"<|im_start|>", None, b"a"]
    return Vocabulary([*first, *sorted(pieces)], [END], [SPECIAL])


def _json_text(rng: random.Random, blank: str, depth: int) -> str:
    """A value; `blank` stands behind commas and brackets, longer for each level around."""
    around = blank + blank[1:] * depth
    within = blank + blank[1:] * (depth + 1)
    kind = rng.choice("[[{{{" if depth < 2 else "xxx[{")
    entries = [
        _json_text(rng, blank, depth + 1) for _ in range(rng.randint(0, 3) if kind != "x" else 0)
    ]
    if kind == "x":
        return rng.choice(
            ["1", "12", "-1.5", "77", "1e3", "null", "true", '"a"', '"ab"', '""', '"\\n"']
        )
    if kind == "{":
        colon = ": " if blank else ":"
        names = ["a", "ab", "b", "x1", "n", "name", "kids", "kind", "", "\\n", "\\u0061"]
        entries = [f'"{rng.choice(names)}"{colon}{entry}' for entry in entries]
    inside = within + f",{within}".join(entries) + around if entries else ""
    return f"[{inside}]" if kind == "[" else f"{{{inside}}}"


def encode(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Some tokens that spell a text: always the longest."""
    ids = {token: id for id, token in enumerate(vocabulary.tokens) if token is not None}
    longest = max(map(len, ids))
    tokens, at = [], 0
    while at < len(text):
        end = min(at + longest, len(text))
        while text[at:end] not in ids:
            end -= 1
        tokens.append(ids[text[at:end]])
        at = end
    return tokens


def _single_bytes() -> list[bytes]:
    return [bytes([byte]) for byte in range(256)]


def _merged() -> list[bytes]:
    """Byte-pair encoding, across the borders of words too: it makes the odder tokens."""
    text = [bytes([byte]) for byte in _CORPUS.encode()]
    found: dict[bytes, None] = {}
    while True:
        pairs = Counter(pairwise(text))
        (left, right), often = max(pairs.items(), key=lambda item: (item[1], item[0]))
        if often == 1:
            break
        found.setdefault(left + right)
        merged, at = [], 0
        while at < len(text):
            if text[at : at + 2] == [left, right]:
                merged.append(left + right)
                at += 2
            else:
                merged.append(text[at])
                at += 1
        text = merged
    return list(found)
