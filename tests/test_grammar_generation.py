"""The default model under many schemas: every answer keeps to its schema, and none is cut."""

from __future__ import annotations

import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.grammar.checks import fault, read_cases
from benchmarks.grammar.generations import LONG_NAMES, answer, counted_forwards, jumps, requests
from phloem.grammar import Constraint, Vocabulary, create_backend
from phloem.server import Engine

CASES = read_cases()


@pytest.fixture(scope="module")
def engine(smollm2, tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))
    with Engine(model=str(smollm2), cache_dir=cache, grammar_backend="fsm") as made:
        yield made


def test_there_are_forty_schemas_of_forty_names():
    assert len(CASES) == len({case.name for case in CASES}) == 40
    for case in CASES:
        jsonschema.Draft202012Validator.check_schema(case.schema)


@pytest.mark.parametrize(
    ("schema", "bad"),
    [
        ({}, '{"a":1'),
        ({}, "[1e999]"),
        ({"type": "integer"}, "1.5"),
        ({"format": "date"}, '"2023-02-29"'),
        ({"format": "time"}, '"24:00:00Z"'),
        ({"format": "date-time"}, '"2024-01-01 00:00:00Z"'),
        ({"format": "uri"}, '"no scheme"'),
        ({"format": "hostname"}, '"-a.com"'),
        ({"format": "duration"}, '"P"'),
        ({"format": "ipv4"}, '"1.2.3.256"'),
        ({"format": "ipv6"}, '"1::2::3"'),
        ({"format": "uuid"}, '"1234"'),
        ({"format": "email"}, '"nobody"'),
    ],
)
def test_what_judges_the_answers_finds_faults(schema, bad):
    assert fault(schema, bad)


NUMBERS = [
    {"type": "number"},
    {"type": "integer", "multipleOf": 3},
    {"exclusiveMinimum": 3, "exclusiveMaximum": 4.1, "type": "number"},
    {"exclusiveMinimum": 1e299, "type": "number"},
    {"type": "number", "not": {"type": "integer"}},
    *(case.schema for case in CASES if case.name in ("bounds", "number_or_text", "big_integers")),
]


@pytest.mark.slow
@pytest.mark.parametrize("fond_of", [b"0", b"9", b"09.", b"e+-.0123456789"], ids=repr)
def test_who_writes_digits_as_long_as_it_may_writes_valid_numbers_in_time(smollm2, fond_of):
    vocabulary = Vocabulary.from_tokenizers(str(smollm2 / "tokenizer.json"))
    backend = create_backend("fsm", vocabulary)
    likes = np.array([6.0 * (set(token or b" ") <= set(fond_of)) for token in vocabulary.tokens])
    rng = np.random.default_rng(0)
    mask = np.zeros((1, vocabulary.words), np.int32)
    for schema in NUMBERS:
        grammar = backend.compile(Constraint.json_schema(schema))
        for _ in range(4):
            matcher, text = grammar.matcher(), b""
            left = 64 + matcher.distance_to_end()
            while not matcher.is_terminated and left:
                matcher.fill_mask(mask, 0, left)
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
                legal = np.flatnonzero(bits[: vocabulary.size])
                scores = likes[legal] + rng.gumbel(size=len(legal))
                token = int(legal[scores.argmax()])
                assert matcher.accept(token)
                text += vocabulary.tokens[token] or b""
                left -= 1
            assert matcher.is_complete or matcher.is_terminated, text
            assert fault(schema, text.decode()) is None, text


@pytest.mark.slow
def test_every_answer_is_valid_and_none_is_cut_by_64_tokens_more_than_the_fewest(engine):
    wanted = requests(engine, CASES, len(CASES), room=64, seed=1000)
    answers = [
        each
        for first in range(0, len(wanted), 16)
        for each in answer(engine, wanted[first : first + 16], temperature=1.2)
    ]
    assert [(each.asked.case.name, each.wrong, each.text) for each in answers if each.wrong] == []
    assert any(len(each.ids) >= each.asked.max_tokens - 1 for each in answers), "none was steered"


@pytest.mark.slow
def test_jumping_over_long_names_saves_a_third_of_the_forward_passes_and_changes_nothing(engine):
    named = [case for case in CASES if case.name == LONG_NAMES]
    figures = jumps(engine, requests(engine, named, 2, room=64))
    assert figures["forwards_saved"] > 0.3
    assert figures["answers_changed"] == 0


@pytest.mark.slow
def test_without_jumping_each_token_is_a_forward_pass(engine):
    named = [case for case in CASES if case.name == LONG_NAMES]
    with counted_forwards() as forwards:
        (only,) = answer(engine, requests(engine, named, 1, room=64), 1.2, jump_forward=False)
    assert only.jumped == 0
    assert len(only.ids) <= sum(forwards) <= len(only.ids) + 2
