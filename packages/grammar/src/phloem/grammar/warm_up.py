"""What masks of most JSON schemas have in common, found out before the first of them is followed.

The whole vocabulary is swept for the first string, say, and cut in parts for the first blanks: that
takes as long as a step of a small model, or two, in the middle of somebody's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from phloem.grammar.base import GrammarBackend, Matcher
from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import GrammarError
from phloem.grammar.vocabulary import Vocabulary

_ITEM: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "any": True,
        "name": {"type": "string", "maxLength": 64},
        "age": {"type": "integer", "minimum": 0},
        "share": {"type": "number"},
        "is": {"type": "boolean"},
        "email": {"type": "string", "format": "email"},
        "at": {"type": "string", "format": "date-time"},
        "on": {"type": "string", "format": "date"},
        "id": {"type": "string", "format": "uuid"},
        "link": {"type": "string", "format": "uri"},
    },
    "required": ["any", "name", "age", "share", "is", "email", "at", "on", "id", "link"],
    "additionalProperties": False,
}
_PRETTY = """[
  {
    "any": {"a": "b \\"\\\\\\u00e9c", "d": [-1.5e3, true, null, []]},
    "name": "Zoë, of whom it takes sixty-four characters to tell what she is ",
    "age": 42,
    "share": -0.25e1,
    "is": false,
    "email": "a.b@c.org",
    "at": "2024-02-29T12:34:56Z",
    "on": "2024-02-29",
    "id": "123e4567-e89b-12d3-a456-426614174000",
    "link": "https://a.org/b?c=d#e"
  },
  {
    "any": 1"""
_COMPACT = (
    '[{"any":[{},{"a":"b","c":1}],"name":"Zoë","age":0,"share":1.5,"is":true,'
    '"email":"a@b.c","at":"2024-02-29T12:34:56+01:00","on":"2024-12-31",'
    '"id":"123e4567-e89b-12d3-a456-426614174000","link":"https://a.org/b"},{'
)


def warm_up(backend: GrammarBackend, vocabulary: Vocabulary) -> None:
    """Follow JSON of all kinds, if the backend keeps what it finds out for other constraints.

    Takes some tenths of a second. Nothing else may use the backend or its grammars meanwhile.
    """
    if backend.name not in ("fsm", "auto"):
        return
    try:
        grammar = backend.compile(Constraint.json_schema({"type": "array", "items": _ITEM}))
    except GrammarError:  # the vocabulary cannot spell JSON
        return
    ids = {token: id for id, token in enumerate(vocabulary.tokens) if token and len(token) == 1}
    mask = np.zeros((1, vocabulary.words), np.int32)
    for text in (_PRETTY, _COMPACT):
        _follow(grammar.matcher(), [ids.get(bytes([byte]), -1) for byte in text.encode()], mask)


def _follow(matcher: Matcher, tokens: list[int], mask: Any) -> None:
    for token in tokens:
        matcher.fill_mask(mask, 0)
        matcher.forced()
        if token < 0 or not matcher.accept(token):
            return
