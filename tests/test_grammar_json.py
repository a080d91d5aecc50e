"""JSON under the whole vocabulary of the default model: what is steered ends in time, and valid."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from jsonschema import Draft7Validator
from transformers import AutoTokenizer

from phloem.grammar import Constraint
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.vocabulary import Vocabulary

SCHEMAS = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["a", "b\n", "é"]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "open": {"type": "object", "minProperties": 2, "additionalProperties": {"type": "string"}},
    "alternatives": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "a"}, "x": {"type": "string", "minLength": 2}},
                "required": ["kind", "x"],
            },
            {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
        ]
    },
    "tree": {
        "type": "object",
        "properties": {"v": {"type": "null"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["v"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def vocabulary(smollm2):
    return Vocabulary.from_transformers(AutoTokenizer.from_pretrained(smollm2))


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_steered_texts_are_valid_and_end_in_time(name, order, vocabulary):
    rng = random.Random(name + order)
    constraint = Constraint.json_schema(SCHEMAS[name], property_order=order)
    grammar = FsmBackend(vocabulary, seconds=20.0).compile(constraint)
    mask = np.zeros((1, vocabulary.words), np.int32)
    for extra in (0, 48, 48):
        matcher, text = grammar.matcher(), b""
        left = matcher.distance_to_end() + extra
        while not matcher.is_terminated and left:
            assert matcher.distance_to_end() <= left
            matcher.fill_mask(mask, 0, left)
            bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
            token = int(rng.choice(np.flatnonzero(bits)))
            assert matcher.accept(token)
            text += vocabulary.tokens[token] or b""
            left -= 1
        assert matcher.is_terminated or matcher.is_complete
        Draft7Validator(SCHEMAS[name]).validate(json.loads(text))
