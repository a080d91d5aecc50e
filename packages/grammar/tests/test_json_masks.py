"""Token masks of JSON: what is sampled under them is valid and ends in time; none is missing."""

from __future__ import annotations

import json
import random
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from grammar_vocabularies import (
    END,
    HOLE,
    SPECIAL,
    byte_vocabulary,
    encode,
    structural_vocabulary,
    toy_vocabulary,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_schema_strategies import schemas
from jsonschema import Draft7Validator

from phloem.grammar import Constraint
from phloem.grammar.automaton import UNSPELLABLE, Cursor
from phloem.grammar.errors import ConstraintTooComplex, GrammarError
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.json_machine.name_cursors import NameCursor
from phloem.grammar.mask_rows import row_of
from phloem.grammar.matcher import AutomatonGrammar, AutomatonMatcher
from phloem.grammar.sweeps import Inside, Outline, Sweeps
from phloem.grammar.vocabulary import Vocabulary

VOCABULARY = toy_vocabulary()
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: dict[str, Any] = {
    "any object": {"type": "object"},
    "tree": TREE,
    "long strings": {"type": "string", "minLength": 280, "maxLength": 285},
    "longer strings": {
        "type": "array",
        "items": {"type": "string", "minLength": 150},
        "minItems": 2,
    },
    "control characters": {"type": "string", "pattern": '^[0-9]{2}[\u0000-\u001f"]{2}é+$'},
    "surrogate pairs": {"enum": ["\U0001f600x", "\U0001f601", "é/"]},
    "few names": {"type": "object", "propertyNames": {"pattern": "^[ab]$"}, "minProperties": 2},
    "any names": {"type": "object", "minProperties": 3, "additionalProperties": {"type": "null"}},
    "numbered names": {
        "type": "object",
        "patternProperties": {"^x[0-9]*$": {"type": "integer", "minimum": -5}},
        "additionalProperties": False,
        "minProperties": 3,
        "maxProperties": 4,
    },
    "a forced recursion": {
        "$defs": {
            "n": {
                "type": "object",
                "properties": {"n": {"$ref": "#/$defs/n"}, "v": {"type": "null"}},
                "additionalProperties": False,
                "minProperties": 1,
                "maxProperties": 2,
            }
        },
        "$ref": "#/$defs/n",
    },
    "contained": {"type": "array", "contains": {"const": 77}, "maxItems": 3},
    "open alternatives": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "a"}, "x": {"type": "string"}},
                "required": ["kind", "x"],
            },
            {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
        ]
    },
    "no alternatives": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "on": {"type": "boolean"}},
        "required": ["name", "on"],
    },
}


def grammar_of(schema: Any, **options: Any) -> AutomatonGrammar:
    return FsmBackend(VOCABULARY, seconds=20).compile(Constraint.json_schema(schema, **options))


def legal_tokens(matcher: AutomatonMatcher, tokens_left: int | None = None) -> list[int]:
    mask = np.zeros((1, structural_vocabulary().words), np.int32)
    matcher.fill_mask(mask, 0, tokens_left)
    bits = np.unpackbits(mask.view(np.uint8)[0], bitorder="little")
    return np.flatnonzero(bits).tolist()  # type: ignore[no-any-return]


def sampled(grammar: AutomatonGrammar, rng: random.Random, most: int) -> bytes:
    """A text by random tokens under masks that steer; asserts that it ends within `most`."""
    matcher, text = grammar.matcher(), b""
    for left in range(most, 0, -1):
        distance = matcher.distance_to_end()
        assert distance is not None
        assert distance <= left
        tokens = legal_tokens(matcher, left)
        assert tokens, f"a dead end behind {text!r}"
        token = rng.choice(tokens)
        assert matcher.accept(token)
        if token == END:
            return text
        spelled = VOCABULARY.tokens[token]
        assert spelled is not None
        text += spelled
    assert matcher.is_complete
    return text


def parsed_number(text: str) -> int | Decimal:
    """A number of JSON, whole where it is whole, without the rounding of floats."""
    mantissa, _, exponent = text.lower().partition("e")
    value = Decimal(mantissa)
    if value:
        # Farther than this no bound of a test can tell; nearer, decimals are exact.
        value = value.scaleb(max(-400, min(int(exponent or 0), 400)), Context(prec=2000))
    return int(value) if value == value.to_integral_value() else value


def check_samples(schema: Any, rng: random.Random, count: int, **options: Any) -> None:
    grammar = grammar_of(schema, **options)
    fewest = grammar.matcher().distance_to_end()
    assert fewest is not None
    for extra in [0, *[64] * (count - 1)]:
        text = sampled(grammar, rng, fewest + extra)
        assert grammar.accepts(text)
        value = json.loads(text, parse_float=parsed_number)
        assert Draft7Validator(schema).is_valid(value), text


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_random_tokens_under_steering_masks_spell_valid_json_in_time(name: str, order: str) -> None:
    check_samples(SCHEMAS[name], random.Random(name + order), 4, property_order=order)


@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas, st.randoms(use_true_random=False), st.sampled_from(["bounded", "compact"]))
def test_random_tokens_spell_valid_json_under_random_schemas(
    schema: Any, rng: random.Random, whitespace: str
) -> None:
    try:
        check_samples(schema, rng, 3, whitespace=whitespace)
    except ConstraintTooComplex:
        raise
    except GrammarError:
        pass  # no value is valid


ORDINARY: dict[str, Any] = {
    "a person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3},
            "age": {"type": "integer", "minimum": 0},
            "email": {"type": "string", "format": "email"},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 4},
            "is": {"enum": ["true", "falsehood", None]},
        },
        "required": ["name", "is"],
        "additionalProperties": False,
    },
    "a map": {
        "type": "object",
        "additionalProperties": {"type": "array", "items": {"type": "number"}},
    },
    "items": {
        "type": "array",
        "items": [
            {"pattern": "^x{3,9}$", "type": "string"},
            {"type": "array", "items": [{"type": "null"}], "additionalItems": False},
        ],
        "additionalItems": {"type": "array", "items": {"const": [[1, 2]]}},
        "minItems": 2,
    },
    "characters": {"type": "string", "pattern": '^([\n"]{4}|é{2}😀)$'},
}


def check_farthest(grammar: AutomatonGrammar, rng: random.Random, steps: int) -> None:
    """Follow bytes at random, and those that lead away from the end: none leads too far."""
    cost, farthest = grammar.vocabulary.cost, grammar._engine.farthest

    def distance(cursor: Cursor | None) -> int:
        assert cursor is not None
        told = cursor.distance(cost)
        assert told is not None
        assert told <= farthest
        return told

    for _ in range(4):
        cursor: Cursor | None = grammar.automaton.start
        for _ in range(steps):
            assert cursor is not None
            firsts = [*cursor.first_bytes()]
            if not firsts:
                break
            rare = [byte for byte in firsts if byte in b'{["\\,:u \n\t']
            some = rng.sample(firsts, min(len(firsts), 4)) + rng.sample(rare, min(len(rare), 4))
            ways = [cursor.step(byte) for byte in some]
            cursor = max(ways, key=distance) if rng.random() < 0.5 else rng.choice(ways)


@pytest.mark.parametrize("vocabulary", [byte_vocabulary(), VOCABULARY], ids=["bytes", "merged"])
@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("name", ORDINARY)
def test_it_is_told_how_far_from_its_end_a_text_can_be(
    name: str, order: str, vocabulary: Vocabulary
) -> None:
    constraint = Constraint.json_schema(ORDINARY[name], property_order=order)
    grammar = FsmBackend(vocabulary, seconds=20).compile(constraint)
    assert grammar._engine.farthest < UNSPELLABLE
    check_farthest(grammar, random.Random(name + order), 100)


@settings(
    max_examples=150, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(schemas, st.randoms(use_true_random=False), st.sampled_from(["bounded", "compact"]))
def test_no_text_of_a_random_schema_is_farther_from_its_end_than_is_told(
    schema: Any, rng: random.Random, whitespace: str
) -> None:
    try:
        constraint = Constraint.json_schema(schema, whitespace=whitespace)
        grammar = FsmBackend(byte_vocabulary(), seconds=20).compile(constraint)
    except GrammarError:
        return
    check_farthest(grammar, rng, 40)


@pytest.mark.parametrize("name", [*SCHEMAS])
def test_no_text_is_farther_from_its_end_than_is_told(name: str) -> None:
    check_farthest(grammar_of(SCHEMAS[name]), random.Random(name), 100)


LONG: dict[str, tuple[Any, str]] = {
    "required": (
        {
            "properties": {"a": {"enum": [1, "b" * 90]}, "c": {"const": "c" * 90}},
            "required": ["c"],
            "additionalProperties": False,
            "type": "object",
        },
        '{"a":"b',
    ),
    "names": (
        {"properties": {"n" * 90: {"const": 1}}, "additionalProperties": False, "type": "object"},
        '{"n',
    ),
    "undeclared names": (
        {
            "type": "object",
            "patternProperties": {"^(a{90}|b)": {"const": 1}},
            "additionalProperties": False,
        },
        '{"a',
    ),
    "items": (
        {
            "items": [{"enum": [1, "b" * 90]}, {"const": "c" * 90}],
            "minItems": 2,
            "additionalItems": False,
            "type": "array",
        },
        '["b',
    ),
    "blanks": (
        {"type": "array", "items": {"type": "array", "items": {"type": "null"}}},
        "[\n        [\n ",
    ),
    "numbers": ({"enum": [1, 10**40]}, "10"),
    "counts": ({"type": ["null", "string"], "minLength": 90}, '"'),
    "ways": ({"type": ["null", "string"], "pattern": "^(ab{90})?$"}, '"ab'),
    "escapes": ({"type": ["null", "string"], "pattern": '^(a[\\n"]{45})?$'}, '"a'),
}


@pytest.mark.parametrize("name", LONG)
def test_all_that_is_begun_or_needed_is_part_of_how_far_the_end_can_be(name: str) -> None:
    schema, text = LONG[name]
    grammar = FsmBackend(byte_vocabulary(), seconds=20).compile(Constraint.json_schema(schema))
    matcher = grammar.matcher()
    for byte in text.encode():
        assert matcher.accept(byte)
    distance = matcher.distance_to_end() or 0
    assert distance > 14 if name == "blanks" else distance > 38
    assert distance <= grammar._engine.farthest < UNSPELLABLE


@pytest.mark.parametrize("pattern", ["^a*$", "^(b|a*)$", "^[a-z]{0,3}$", "^[a\\u0001]{6}"])
def test_how_far_the_end_can_be_is_not_told_where_names_grow_or_run_out(pattern: str) -> None:
    schema = {"patternProperties": {pattern: {"const": 1}}, "additionalProperties": False}
    constraint = Constraint.json_schema({**schema, "type": "object"})
    assert FsmBackend(byte_vocabulary()).compile(constraint)._engine.farthest == UNSPELLABLE


def test_an_escape_that_is_begun_and_has_no_code_point_is_as_near_its_end_as_it_is() -> None:
    schema = {"type": "string", "pattern": "^[a\\n]$"}
    matcher = FsmBackend(byte_vocabulary()).compile(Constraint.json_schema(schema)).matcher()
    for token, distance in ((ord('"'), 2), (ord("\\"), 2), (ord("n"), 1), (ord('"'), 0)):
        assert matcher.accept(token)
        assert matcher.distance_to_end() == distance


def test_how_far_the_end_can_be_is_not_told_where_a_byte_has_no_token() -> None:
    tokens = [bytes([byte]) for byte in range(256) if byte != 0xC3]
    backend = FsmBackend(Vocabulary(tokens, []))
    for schema, known in (({"enum": ["abc"]}, True), ({"const": "é"}, False)):
        engine = backend.compile(Constraint.json_schema(schema))._engine
        assert (engine.farthest < UNSPELLABLE) is known


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_mask_holds_exactly_the_tokens_whose_bytes_are_legal(name: str) -> None:
    rng = random.Random(name)
    grammar = grammar_of(SCHEMAS[name])
    matcher, cursor = grammar.matcher(), grammar.automaton.start
    for _ in range(60):
        expected = {id for id in VOCABULARY.stop_ids if cursor.complete}
        for id, token in enumerate(VOCABULARY.tokens):
            after = cursor
            for byte in token or b"":
                following = after.step(byte)
                assert (following is not None) == (byte in set(after.first_bytes()))
                if following is None:
                    break
                after = following
            else:
                expected.update([id] if token else [])
        tokens = legal_tokens(matcher)
        assert set(tokens) == expected
        token = rng.choice(tokens)
        matcher.accept(token)
        if token == END:
            break
        for byte in VOCABULARY.tokens[token] or b"":
            cursor = cursor.step(byte)  # type: ignore[assignment]


MANY_PLACES: dict[str, Any] = {
    "anything": {},
    "a map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "open": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "ab": {"items": {"enum": ["a", "ab", 1]}}, "b": {}},
    },
    "closed": {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "number"}},
            "ab": {"type": ["boolean", "null"]},
        },
        "additionalProperties": False,
    },
    "short names": {
        "type": "object",
        "propertyNames": {"maxLength": 2},
        "additionalProperties": {"enum": [1, "a"]},
    },
    "counted": {
        "type": "array",
        "items": {"anyOf": [{"type": "object"}, {"type": "string", "maxLength": 3}]},
    },
}


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("name", [*SCHEMAS, *MANY_PLACES])
def test_tokens_that_end_values_and_begin_others_are_told_as_by_their_bytes(
    name: str, order: str
) -> None:
    rng, vocabulary = random.Random(name + order), structural_vocabulary()
    constraint = Constraint.json_schema({**SCHEMAS, **MANY_PLACES}[name], property_order=order)
    grammar = FsmBackend(vocabulary, seconds=20).compile(constraint)
    for _ in range(3):
        matcher, cursor = grammar.matcher(), grammar.automaton.start
        for _ in range(12):
            ends = reached(cursor, vocabulary)
            expected = {*ends, *(vocabulary.stop_ids if cursor.complete else ())}
            told = set(legal_tokens(matcher))
            assert told <= expected
            # What is left out holds the end of a name and the whole of another one.
            assert all(
                b'":' in vocabulary.tokens[token] and vocabulary.tokens[token].count(b'"') > 2
                for token in expected - told
            )
            # With few tokens left, a walk of its own tells where each of them leads.
            left = (matcher.distance_to_end() or 0) + rng.randint(0, 1)
            assert set(legal_tokens(matcher, left)) <= expected
            if not ends:
                break
            longer = [token for token in ends if token > HOLE]
            token = rng.choice(longer if longer and rng.random() < 0.7 else [*ends])
            assert matcher.accept(token)
            cursor = ends[token]


VALUES: list[Any] = [
    {},
    {"type": "boolean"},
    {"type": ["null", "string"]},
    {"type": ["integer", "boolean"]},
    {"type": "string", "maxLength": 2},
    {"type": "string", "minLength": 1},
    {"type": "object", "additionalProperties": {"type": "null"}},
]


def test_grammars_of_one_backend_have_the_masks_that_each_has_alone() -> None:
    """Of what is alike in several, one finds it out for all: they take turns, token by token."""
    rng, vocabulary = random.Random(5), structural_vocabulary()
    shared = FsmBackend(vocabulary, seconds=20)
    pairs = []
    for value in VALUES:
        schema = {"type": "array", "items": {"type": "object", "additionalProperties": value}}
        for whitespace in ("bounded", "compact"):
            constraint = Constraint.json_schema(schema, whitespace=whitespace)
            alone = FsmBackend(vocabulary, seconds=20).compile(constraint)
            pairs.append((shared.compile(constraint).matcher(), alone.matcher()))
    for _ in range(25):
        for one, alone in pairs:
            tokens = legal_tokens(alone)
            assert legal_tokens(one) == tokens
            longer = [token for token in tokens if token > HOLE]
            token = rng.choice(longer if longer and rng.random() < 0.6 else tokens)
            if token != END:
                assert one.accept(token)
                assert alone.accept(token)


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("a", "a"),
        (r"\n", r"\n"),
        (r"a\n", r"a\n"),
        ("a", r"\u0061"),
        ("xa", r"x\u0061"),
        (r"a\/", "a/"),
        ("é", r"\u00e9"),
        ("é", "é"),
    ],
)
def test_a_name_that_was_used_is_in_no_token_that_ends_it(name: str, spelled: str) -> None:
    ends = [f'"{spelled}"'.encode(), f'{spelled}"'.encode(), f'{spelled}":'.encode()]
    tokens = [*VOCABULARY.tokens, *ends]
    grammar = FsmBackend(Vocabulary(tokens, [END], [SPECIAL])).compile(Constraint.json_object())
    for said, legal in (("{", True), (f'{{"{name}":1,', False)):
        matcher = grammar.matcher()
        for byte in said.encode():
            assert matcher.accept(byte)
        assert (len(tokens) - 3 in legal_tokens(matcher)) is legal
        assert matcher.accept(ord('"'))
        assert (len(tokens) - 2 in legal_tokens(matcher)) is legal
        assert (len(tokens) - 1 in legal_tokens(matcher)) is legal


@pytest.mark.parametrize("said", ['{"', '{"a":1,"'])
def test_a_token_of_thousands_of_bytes_ends_no_name_that_it_does_not_spell(said: str) -> None:
    long = "a" * 3000
    schema = {"properties": {long: {}}, "additionalProperties": {"type": "integer"}}
    texts = [long, long + "b", rf"\u0061{long}b", long[1:]]
    tokens = [*VOCABULARY.tokens, *(f'{text}":1'.encode() for text in texts)]
    grammar = FsmBackend(Vocabulary(tokens, [END], [SPECIAL]), seconds=20).compile(
        Constraint.json_schema({**schema, "type": "object"})
    )
    matcher = grammar.matcher()
    assert all(matcher.accept(byte) for byte in said.encode())
    first = len(tokens) - len(texts)
    legal = {number - first for number in legal_tokens(matcher) if number >= first}
    assert legal == ({0, 1, 2, 3} if said == '{"' else {1, 2, 3})


def test_behind_names_of_few_bytes_tokens_may_hold_all_of_another_name() -> None:
    schema = {"patternProperties": {"^[a-d]+$": {"const": 1}}, "additionalProperties": False}
    more = [f'":1,"{"ABCDEFGHIJKLMNOP"[n]}'.encode() for n in range(16)]
    more += [bytes([97 + n % 4, 97 + n // 4 % 4, 97 + n // 16 % 4]) for n in range(32)]
    tokens = [*VOCABULARY.tokens, *more, b'":1,"b"', b'":1,"b":1']
    grammar = FsmBackend(Vocabulary(tokens, [END], [SPECIAL])).compile(
        Constraint.json_schema({**schema, "type": "object"})
    )
    matcher = grammar.matcher()
    assert all(matcher.accept(byte) for byte in b'{"a')
    assert {len(tokens) - 2, len(tokens) - 1} <= set(legal_tokens(matcher))


@pytest.mark.parametrize("name", ["ab", r"\u0061b", "q\\n", "a/b", r"a\/b", "é", r"\u00e9"])
@pytest.mark.parametrize("before", ["", '"'])
def test_a_token_that_ends_a_declared_name_goes_on_with_its_value(name: str, before: str) -> None:
    declared = [*json.loads(f'["{name}", "unlike", "abc"]')]
    integers: dict[str, Any] = {one: {"type": "integer"} for one in declared}
    schema = {"properties": integers, "additionalProperties": {"type": "null"}, "type": "object"}
    texts = [f'{before}{name}":1', f'{before}{name}":n', f'{before}ac":1', f'{before}ac":n']
    tokens = [*VOCABULARY.tokens, *map(str.encode, texts)]
    grammar = FsmBackend(Vocabulary(tokens, [END], [SPECIAL])).compile(
        Constraint.json_schema(schema, property_order="free")
    )
    numbers = range(len(tokens) - len(texts), len(tokens))
    for said, legal in (("{", {0, 3}), (f'{{"{name}":1,', {3})):
        matcher = grammar.matcher()
        for byte in (said if before else said + '"').encode():
            assert matcher.accept(byte)
        found = set(legal_tokens(matcher))
        assert {place for place, number in enumerate(numbers) if number in found} == legal


def test_what_names_are_followed_by_is_told_for_each_kind_of_indentation() -> None:
    tokens = [*VOCABULARY.tokens, b'"a": {\n  "', b'"a": {\n\t\t"']
    grammar = FsmBackend(Vocabulary(tokens, [END], [SPECIAL])).compile(Constraint.json_object())
    spaces, tabs = len(tokens) - 2, len(tokens) - 1
    for said, legal in (
        ('{\n\t"b": { ', set()),
        ('{\n "b":1, ', {spaces}),
        ('{\n\t"b":1, ', {tabs}),
    ):
        matcher = grammar.matcher()
        assert all(matcher.accept(byte) for byte in said.encode())
        assert {spaces, tabs} & set(legal_tokens(matcher)) == legal


@pytest.mark.parametrize("before", [b"", b'"'])
@pytest.mark.parametrize("lead", [b"", b"\xc3", b"\xf0"])
def test_how_far_a_string_has_come_moves_what_is_known_of_its_beginning(
    before: bytes, lead: bytes
) -> None:
    # Long and short tokens, of characters of all lengths, some of which end the string.
    texts = [b"a" * n for n in range(1, 70)] + ["日é😀x".encode() * n for n in (1, 2, 5, 16, 17)]
    tokens = [*map(bytes, np.arange(256, dtype=np.uint8)[:, None])]
    tokens += [before + text + end for text in texts for end in (b"", b'"', b'",', b"\\n", b"\xc3")]
    vocabulary = Vocabulary([*dict.fromkeys(tokens)], [])
    grammar = FsmBackend(vocabulary).compile(Constraint.json_schema({"maxLength": 66}))
    cursor: Cursor | None = grammar.automaton.start.step(ord('"'))
    each, shared = Sweeps(vocabulary), Sweeps(vocabulary)
    moved = 0
    while cursor is not None and (followed := cursor.step(ord("a"))) is not None:
        at: Cursor | None = followed
        for byte in lead:
            at = at and at.step(byte)
        cursor, region = followed, at and at.region()
        if region is None:
            continue
        for branch, other in (
            (each.root, shared.root),
            (each.root.below[ord('"')], shared.root.below[ord('"')]),
        ):
            expected = each.outline(region._replace(moved=None), branch)
            found = shared.outline(region, other)
            assert _row(found, vocabulary).tolist() == _row(expected, vocabulary).tolist()
            assert found.end_states == expected.end_states
            assert _exits(found) == _exits(expected)
            whole = shared.whole(Inside(region, other))
            swept = each.whole(Inside(region._replace(moved=None), branch))
            assert dict(zip(whole.tokens.tolist(), whole.ends.tolist(), strict=True)) == dict(
                zip(swept.tokens.tolist(), swept.ends.tolist(), strict=True)
            )
        moved += region.moved is not None
    assert moved > 50


def _row(outline: Outline, vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    few = row_of(outline.tokens, vocabulary.words)
    return few if outline.bits is None else few | outline.bits


def _exits(outline: Outline) -> list[tuple[int, int, list[int]]]:
    return sorted((one.state, one.byte, sorted(one.nodes)) for one in outline.exits)


def reached(cursor: Cursor, vocabulary: Vocabulary) -> dict[int, Cursor]:
    """Where each legal token leads, byte by byte."""
    ends = {}
    steps: dict[bytes, Cursor | None] = {b"": cursor}
    for id, token in enumerate(vocabulary.tokens):
        if not token:
            continue
        for count, byte in enumerate(token, 1):
            if token[:count] not in steps:
                before = steps[token[: count - 1]]
                steps[token[:count]] = before and before.step(byte)
        after = steps[token]
        if after is not None:
            ends[id] = after
    return ends


@pytest.mark.parametrize("name", ["any object", "tree", "open alternatives", "few names"])
def test_what_was_rolled_back_or_forked_goes_on_as_a_replay_does(name: str) -> None:
    rng = random.Random(name)
    grammar = grammar_of(SCHEMAS[name])
    matcher, taken = grammar.matcher(), []
    for _ in range(40):
        tokens = [token for token in legal_tokens(matcher) if token != END]
        if not tokens:
            break
        taken.append(rng.choice(tokens))
        matcher.accept(taken[-1])
        if len(taken) % 5 == 0:
            fork = matcher.fork()
            fork.rollback(3)
            del taken[-3:]
            matcher = fork
        replayed = grammar.matcher()
        assert all(replayed.accept(token) for token in taken)
        assert legal_tokens(replayed, 30) == legal_tokens(matcher, 30)
        assert replayed.distance_to_end() == matcher.distance_to_end()
        assert replayed.forced() == matcher.forced()


def test_a_special_token_is_not_matched_by_its_bytes_within_a_string() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "array", "items": {"type": "string"}}}}
    matcher = grammar_of(schema).matcher()
    for token in encode(VOCABULARY, b'{"q":["hello","]}'):
        assert matcher.accept(token)
    for special in (SPECIAL, END):
        assert not matcher.accept(special)
        assert special not in legal_tokens(matcher)
    for token in encode(VOCABULARY, b'<|im_start|>"]}'):
        assert matcher.accept(token)
    assert legal_tokens(matcher) == [END]


def test_names_are_forced_from_where_no_choice_is_left() -> None:
    schema = {
        "type": "object",
        "properties": {"identifier/long": {"type": "boolean"}, "ideas": {"enum": ["red", "rose"]}},
        "required": ["identifier/long", "ideas"],
    }
    compact = grammar_of(schema, whitespace="compact").matcher()
    assert compact.forced() == b'{"identifier/long":'
    bounded = grammar_of(schema).matcher()
    assert bounded.forced() == b"{"
    for text, forced in [
        (b'{"', b'identifier/long":'),
        (b'identifier/long": t', b"rue,"),
        (b'rue, "', b'ideas":'),
        (b'ideas":"', b"r"),
        (b"ro", b'se"'),
    ]:
        for token in encode(VOCABULARY, text):
            assert bounded.accept(token)
        assert bounded.forced() == forced


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"kind": {"const": 1}}}, '{"k'),
        ({"type": "object", "additionalProperties": {"const": 1}}, '{"k'),
        (
            {"type": "object", "properties": {"a": {"pattern": "^ab(cd)?$", "type": "string"}}},
            '{"a":"ab',
        ),
        ({"type": "string", "enum": ["red", "reddish"]}, '"red'),
    ],
)
def test_text_that_is_one_of_several_is_not_forced(schema, text) -> None:
    matcher = grammar_of(schema, whitespace="compact").matcher()
    for token in encode(VOCABULARY, text.encode()):
        assert matcher.accept(token)
    assert matcher.forced() == b""


def test_the_indentation_of_later_lines_is_forced_by_the_first_one() -> None:
    schema = {"type": "array", "items": {"const": {}}, "minItems": 3, "maxItems": 3}
    matcher = grammar_of(schema).matcher()
    for byte in b"[\n   {},\n":
        assert matcher.accept(byte)
    assert matcher.forced() == b"   {},"


def test_a_vocabulary_that_cannot_end_what_it_begins_is_refused() -> None:
    tokens = [bytes([byte]) for byte in range(256) if byte != ord("}")]
    backend = FsmBackend(Vocabulary(tokens, []))
    with pytest.raises(GrammarError, match="7d"):
        backend.compile(Constraint.json_object())


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_what_a_cursor_tells_at_once_is_what_its_steps_tell(name: str, order: str) -> None:
    rng = random.Random(name + order)
    grammar = grammar_of(SCHEMAS[name], property_order=order)
    for _ in range(3):
        cursor = grammar.automaton.start
        for _ in range(60):
            check_hints(cursor)
            firsts = [*cursor.first_bytes()]
            if not firsts:
                break
            structural = [byte for byte in firsts if byte in b'"{}[],:\n\t ']
            byte = rng.choice(structural if structural and rng.random() < 0.5 else firsts)
            cursor = cursor.step(byte)  # type: ignore[assignment]


def check_hints(cursor: Cursor) -> None:
    steps = {byte: cursor.step(byte) for byte in range(256)}
    legal = {byte: after for byte, after in steps.items() if after is not None}
    for among in (range(256), b'"}1 \n'):
        told = dict(cursor.moves(among))
        assert told.items() <= legal.items()
        assert told.keys() >= legal.keys() & {*among}
    if cursor.has_choice:
        assert len(legal) > 1 or cursor.complete
    run = cursor.run()
    if run is not None:
        after = cursor
        for count, byte in enumerate(run.text, 1):
            assert [*after.first_bytes()] == [byte]
            assert not after.complete
            after = after.step(byte)  # type: ignore[assignment]
            assert run.cursor(count) is after
    region = cursor.region()
    # The regions of names do not tell what an undeclared one was.
    if region is not None and not isinstance(cursor, NameCursor):
        assert region.cursor(region.state) is cursor
        for byte, target in legal.items():
            state = region.dfa.step(region.state, byte)
            if state >= 0:
                assert region.cursor(state) is target
            else:
                assert region.leaving is None or byte in region.leaving
