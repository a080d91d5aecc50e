"""The short way to the normal form: the same as the general one, or none at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_schema_strategies import schemas
from schema_graphs import shape_of

from phloem.grammar import ConstraintTooComplex, GrammarError
from phloem.grammar.dfa import Budget
from phloem.grammar.json_schema import load_schema, normalize
from phloem.grammar.json_schema.draft import Draft
from phloem.grammar.json_schema.normalize import solved
from phloem.grammar.json_schema.plain import plain_graph
from phloem.grammar.json_schema.values import is_sound

NAMES = ["a", "b", "long name", "\u00e9", ""]
_counts = st.integers(0, 12)
_bounds = st.one_of(st.integers(-200, 200), st.sampled_from([0.5, -1.25, 1e6, 2.0]))
_words = st.sampled_from([None, True, False, "", "a", "b", "\u00e9", "a b"])

leaves = st.one_of(
    st.sampled_from([True, {}, {"type": "null"}, {"type": "boolean", "title": "t"}]),
    st.sampled_from([{"type": "string", "format": "date"}, {"type": ["string", "null"]}]),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional={
            "minimum": _bounds,
            "maximum": _bounds,
            "exclusiveMinimum": _bounds,
            "exclusiveMaximum": _bounds,
        },
    ),
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": _counts,
            "maxLength": _counts,
            "pattern": st.sampled_from(["^[a-c]{2,3}$", "b"]),
            "description": st.just("d"),
        },
    ),
    st.fixed_dictionaries(
        {"enum": st.lists(_words, min_size=1, max_size=4)},
        optional={"type": st.sampled_from(["string", "boolean"])},
    ),
    st.fixed_dictionaries({"const": _words}),
    st.sampled_from([{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B", "title": "t"}]),
)


def _containers(inner):
    records = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
            "required": st.lists(st.sampled_from(NAMES), max_size=2),
            "additionalProperties": st.just(False) | inner,
        },
    )
    lists = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={"items": inner, "minItems": st.integers(0, 3), "maxItems": st.integers(0, 3)},
    )
    options = st.lists(inner, min_size=1, max_size=3)
    return records | lists | st.fixed_dictionaries({"anyOf": options})


plain_schemas = st.recursive(leaves, _containers, max_leaves=8)
documents = st.builds(
    lambda root, a, b: {**root, "$defs": {"A": a, "B": b}},
    plain_schemas.filter(lambda schema: isinstance(schema, dict)),
    plain_schemas,
    plain_schemas,
)


def nested_lists(depth):
    """A list in a list, so many times."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


def both_ways(schema):
    """The normal forms: of the short way, and of the general one; None where there is none."""
    schema = load_schema(json.dumps(schema))
    try:
        general = solved(schema, "assert", Draft.ANY, Budget.of_seconds(20))
    except GrammarError:
        general = None
    return plain_graph(schema, "assert", Budget.of_seconds(20)), general


@given(plain_schemas | documents)
def test_a_plain_schema_means_the_same_on_the_short_way(schema):
    plain, general = both_ways(schema)
    if plain is not None:
        assert general is not None
        assert shape_of(plain) == shape_of(general)


@given(schemas)
def test_no_other_schema_is_taken_for_a_plain_one(schema):
    plain, general = both_ways(schema)
    if plain is not None:
        assert general is not None
        assert shape_of(plain) == shape_of(general)


TAKEN = [
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}, "required": ["n"]},
    {"type": "array", "items": {"enum": ["x", None]}, "minItems": 1},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"const": "x"}, {"type": "integer"}, {"type": "array"}]},
    {"allOf": [{"type": "string", "maxLength": 3}], "description": "of one"},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
    {"type": "string", "format": "date-time"},
    {"type": "number", "minimum": 0.5},
    {"type": "string", "enum": ["a", True, None]},
    {"type": "boolean", "enum": ["a", True]},
    {},
]


@pytest.mark.parametrize("schema", TAKEN, ids=json.dumps)
def test_common_schemas_go_the_short_way(schema):
    plain, general = both_ways(schema)
    assert plain is not None
    assert shape_of(plain) == shape_of(general)


LEFT = [
    {"type": "object", "properties": {"a": False}},
    {"type": "object", "required": ["undeclared"]},
    {"type": "object", "minProperties": 1},
    {"type": "string", "minimum": 3},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "string", "pattern": "("},
    {"type": "string", "format": "unheard-of"},
    {"type": "integer", "multipleOf": 2},
    {"type": "integer", "minimum": 10**15 + 1},
    {"type": "integer", "minimum": True},
    {"type": "array", "maxItems": 0},
    {"type": "array", "minItems": -1},
    {"type": "tuple"},
    {"type": []},
    {"enum": []},
    {"enum": [1]},
    {"const": {"a": 1}},
    {"oneOf": [{"const": "x"}, {"type": "string"}]},
    {"anyOf": []},
    {"anyOf": [{"type": "integer"}, {"type": "number"}]},
    {"anyOf": [{"type": "string", "maxLength": 20}, {"const": "x"}]},
    {"anyOf": [{"type": "string", "minLength": 20}, {"const": "x"}]},
    {"type": "number", "minimum": 1e-17},
    {"type": [["string"], "null"]},
    {"$ref": "#/$defs/a\tb", "$defs": {"a\tb": {"type": "null"}}},
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
    {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}},
    },
    {"$ref": "#/$defs/a~1b", "$defs": {"a~1b": {"type": "null"}}},
    {"type": "null", "$defs": {"unused": {"type": "null"}}},
    {"$ref": "#/$defs/a", "type": "null", "$defs": {"a": {"type": "null"}}},
    {"unheard": "of"},
]


@pytest.mark.parametrize("schema", LEFT, ids=json.dumps)
def test_what_takes_more_than_reading_is_left_to_the_general_way(schema):
    assert plain_graph(load_schema(json.dumps(schema)), "assert", Budget.of_seconds(20)) is None


def test_deep_schemas_are_left_to_the_general_way():
    schema = {"type": "null"}
    for _ in range(60):
        schema = {"type": "array", "items": schema}
    assert plain_graph(schema, "assert", Budget.of_seconds(20)) is None


def test_the_short_way_keeps_to_the_budget():
    schema = {"type": "object", "properties": {str(n): {"const": str(n)} for n in range(50)}}
    with pytest.raises(ConstraintTooComplex):
        plain_graph(schema, "assert", Budget(max_states=20))


UNSOUND = [
    {"type": "string", "title": "\ud800"},
    {"type": "string", "examples": ["\udfff"]},
    {"const": "\ud800"},
    {"type": "object", "properties": {"\ud800": True}},
    {"$defs": {"\ud800": True}, "type": "null"},
    {"type": "integer", "minimum": float("nan")},
    {"type": "integer", "minimum": float("inf")},
    {"type": "null", "default": 10**500},
    {"type": "null", "examples": [0] * 250_000},
    {"enum": [str(number) for number in range(250_000)]},
    {"type": "null", "default": nested_lists(250)},
]


@pytest.mark.parametrize("schema", UNSOUND, ids=lambda schema: ascii(schema)[:50])
def test_what_no_stage_should_meet_is_refused_where_the_rest_is_plain(schema):
    with pytest.raises(GrammarError):
        normalize(load_schema(json.dumps(schema)))


def test_a_check_of_values_without_places_passes_nothing_that_the_other_refuses():
    for schema in UNSOUND:
        assert not is_sound(load_schema(json.dumps(schema)))
    for schema in TAKEN:
        assert is_sound(load_schema(json.dumps(schema)))


def test_many_required_properties_are_read_in_one_pass():
    names = [f"p{number}" for number in range(20_000)]
    schema = {"type": "object", "properties": dict.fromkeys(names, True), "required": names}
    graph = plain_graph(schema, "assert", Budget.of_seconds(2))
    assert len(graph.nodes[graph.root].objects[0].properties) == 20_000


def test_all_schemas_of_the_vectors_mean_the_same_on_the_short_way():
    plain = 0
    for file in sorted((Path(__file__).parent / "json_schema_vectors").glob("*.json")):
        for group in json.loads(file.read_text()):
            short, general = both_ways(group["schema"])
            if short is not None:
                plain += 1
                assert shape_of(short) == shape_of(general), group["schema"]
    assert plain > 5
