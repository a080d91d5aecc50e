"""The JSON schemas that xgrammar and llguidance are given: enforced to the letter, or refused."""

from __future__ import annotations

import json

import jsonschema
import pytest
from library_support import BACKENDS, made

from phloem.grammar import (
    Constraint,
    ConstraintTooComplex,
    GrammarError,
    UnsupportedConstraint,
)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return made(request.param)


@pytest.fixture(scope="module")
def llguidance():
    return made("llguidance")


INSTANCES = [
    None, True, False, 0, 1, -1, 2, 3, 10, 42, 43, 100, 1.5, 3.25, -2.5,
    "", "a", "aa", "aaa", "b", "ab", "é", "💩💩", 'a"b\\', "line\nbreak", "red", "1.2.3.4",
    "256.1.1.1", "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
    [], [1], [1, 2], [1, 2, 3], ["a"], [1, "a"], [1, "a", True], [[]], [None],
    {}, {"a": 1}, {"a": "x"}, {"b": 1}, {"b": "x"}, {"a": 1, "b": 2}, {"a": 1, "b": "x"},
    {"a": 1, "c": "x"}, {"a": 1, "b": 2, "c": 3}, {"k": "a", "x": 1}, {"k": "b", "y": "s"},
    {"k": "b", "x": 1}, {"v": 1, "n": None}, {"v": 1, "n": {"v": 2, "n": None}}, {"v": 1},
    {"foo": 1}, {"f\"o": 1}, {"ab": 1}, {"ab": "x"}, {"ba": "x"}, {"a": {"a": 1}},
]  # fmt: skip
A = {"type": "integer"}
SCHEMAS = [
    True, {}, {"type": "null"}, {"type": "boolean"}, A, {"type": "number"}, {"type": "string"},
    {"type": "array"}, {"type": "object"}, {"type": ["integer", "string"]},
    {"type": ["object", "null"], "properties": {"a": A}, "additionalProperties": False},
    {"type": ["array", "null"], "items": A, "minItems": 1},
    {"type": ["integer", "string"], "maxLength": 1, "minimum": 3},
    {"minimum": 3}, {"maxLength": 1}, {"items": A}, {"minItems": 1}, {"properties": {"a": A}},
    {"required": ["a"]}, {"pattern": "^a*$"}, {"multipleOf": 2}, {"enum": ["a", 1]},
    {"type": "string", "enum": ["a", 1]}, {"type": "string", "enum": ["a", "b"]},
    {"const": {"a": 1, "b": [2]}}, {"const": 'a"b\\'}, {"enum": [None, True, [1, {"a": 2}], 1.5]},
    {"type": "integer", "minimum": -1, "maximum": 42},
    {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 42},
    {"type": "integer", "minimum": 1.5}, {"type": "integer", "multipleOf": 3},
    {"type": "integer", "minimum": 0, "multipleOf": 3}, {"type": "number", "multipleOf": 0.5},
    {"type": "number", "minimum": -1.5, "maximum": 3.25}, {"type": "number", "exclusiveMinimum": 0},
    {"type": "string", "minLength": 1, "maxLength": 2}, {"type": "string", "pattern": "a+b?"},
    {"type": "string", "pattern": "^a+$", "maxLength": 2}, {"type": "string", "pattern": "^[^a]+$"},
    {"type": "string", "pattern": "^.$"}, {"type": "string", "pattern": "^a|b$"},
    {"type": "string", "pattern": '^"'}, {"type": "string", "pattern": "\\d"},
    {"type": "string", "format": "ipv4"}, {"type": "string", "format": "uuid"},
    {"type": "array", "items": A, "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [A, {"type": "string"}], "items": False},
    {"type": "array", "prefixItems": [A, {"type": "string"}], "items": {"type": "boolean"}},
    {"type": "array", "items": [A], "additionalItems": {"type": "string"}},
    {"type": "array", "uniqueItems": True}, {"type": "array", "contains": A},
    {"type": "object", "properties": {"a": A}}, {"type": "object", "required": ["a"]},
    {"type": "object", "properties": {"a": A}, "required": ["a"]},
    {"type": "object", "properties": {"a": A, "b": A}, "additionalProperties": False},
    {"type": "object", "properties": {"a": A}, "additionalProperties": {"type": "string"}},
    {"type": "object", "properties": {"a": True}, "required": ["a"]},
    {"type": "object", "minProperties": 2}, {"type": "object", "maxProperties": 1},
    {"type": "object", "patternProperties": {"^a": A}, "additionalProperties": False},
    {"type": "object", "properties": {"ab": {"type": "string"}}, "patternProperties": {"^a": A}},
    {"type": "object", "propertyNames": {"pattern": "^a"}}, {"dependencies": {"a": ["b"]}},
    {"anyOf": [A, {"type": "string", "maxLength": 1}]},
    {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"oneOf": [A, {"type": "string"}]}, {"oneOf": [A, {"type": "number"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 42}]}, {"not": A},
    {"if": A, "then": {"minimum": 3}},
    {"anyOf": [
        {"type": "object", "properties": {"k": {"const": "a"}, "x": A}, "required": ["k", "x"],
         "additionalProperties": False},
        {"type": "object", "properties": {"k": {"const": "b"}, "y": {"type": "string"}},
         "required": ["k", "y"], "additionalProperties": False}]},
    {"type": "object", "properties": {"v": A, "n": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
     "required": ["v", "n"], "additionalProperties": False},
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": A}}, {"$ref": "#/$defs/a%22", "$defs": {'a"': A}},
    {"$ref": "#/$defs/c", "minimum": 3, "$defs": {"c": A}},
]  # fmt: skip


MALFORMED = [
    '"a', '"a"b"', '"\x01"', '"a\n"', '"\\x"', '"\\u12"', '"\\"', "'a'", "01", "+1", "1.", ".5",
    "1e", "-",
    "[1,]", "[,1]", "[1", "{,}", '{"a":1,}', '{"a"}', '{a:1}', '{"\x01":1}', '{"a""b":1}', "nul",
    "NaN",
    '{"a":1}}', "[1]]", "1 2", "True", "", " ",
]  # fmt: skip


def compiled(backend, schema, **options):
    try:
        return backend.compile(Constraint.json_schema(schema, **options))
    except UnsupportedConstraint:
        return None


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_a_schema_is_enforced_to_the_letter_or_refused(backend, schema):
    grammar = compiled(backend, schema)
    if grammar is None:
        return
    newer = "$ref" in json.dumps(schema) or "prefixItems" in json.dumps(schema)
    judge = (jsonschema.Draft202012Validator if newer else jsonschema.Draft7Validator)(
        schema, format_checker=jsonschema.FormatChecker()
    )
    for instance in INSTANCES:
        text = json.dumps(instance, ensure_ascii=False, separators=(",", ":"))
        assert grammar.accepts(text) == judge.is_valid(instance), text
    assert [text for text in MALFORMED if grammar.accepts(text)] == []


@pytest.mark.parametrize("name", BACKENDS)
def test_the_most_usual_schemas_are_supported(name):
    schema = {
        "title": "Person",
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "the full name"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
            "boss": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
        "$defs": {"P": {"type": "object", "properties": {}, "additionalProperties": False}},
    }
    grammar = made(name).compile(Constraint.json_schema(schema))
    assert grammar.accepts('{"name": "x", "age": 3, "tags": ["a"], "boss": {}}')
    assert grammar.accepts(json.dumps({"name": "x", "age": 3, "tags": ["a", "b"]}, indent=4))
    assert not grammar.accepts('{"name":"x","age":151}')
    assert not grammar.accepts('{"name":"x"}')


def test_an_undeclared_property_cannot_be_a_declared_one_in_disguise(backend):
    schema = {"type": "object", "properties": {"foo": A}}
    grammar = compiled(backend, schema)
    assert grammar is None or not grammar.accepts('{"\\u0066oo":"x"}')


def test_every_integer_obeys_its_bounds(backend):
    schema = {"type": "integer", "minimum": -123, "maximum": 42}
    grammar = backend.compile(Constraint.json_schema(schema))
    assert [n for n in range(-200, 201) if grammar.accepts(str(n))] == list(range(-123, 43))
    assert not any(grammar.accepts(text) for text in ("01", "+1", "3.5", "-", "00"))


LARGE = 2**53 + 1


@pytest.mark.parametrize(
    "schema",
    [
        {"const": LARGE},
        {"enum": [1, [{"a": LARGE}]]},
        {"const": -1e22},
        {"type": "integer", "minimum": LARGE},
        {"type": "integer", "maximum": -LARGE},
        {"type": "integer", "exclusiveMaximum": LARGE},
        {"type": "integer", "multipleOf": LARGE},
    ],
    ids=json.dumps,
)
def test_a_number_that_a_library_would_round_is_refused(backend, schema):
    grammar = compiled(backend, schema)
    if grammar is None:
        return
    judge = jsonschema.Draft202012Validator(schema)
    for number in (LARGE, LARGE - 1, LARGE + 1, -LARGE, 1 - LARGE, -(10**22), 1 - 10**22):
        for value in (number, [{"a": number}]):
            text = json.dumps(value, separators=(",", ":"))
            assert not grammar.accepts(text) or judge.is_valid(value), text


@pytest.mark.parametrize("text", ["3.0000000000000000000001", "2.99999999999999999999"])
def test_no_digits_hide_that_an_exclusive_bound_is_met(backend, text):
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        grammar = compiled(backend, {"type": "number", keyword: 3})
        assert grammar is None or not grammar.accepts(text)


def test_what_no_value_satisfies_is_an_error(backend):
    for schema in (
        False,
        {"type": "object", "properties": {"x": {"type": "string", "enum": []}}, "required": ["x"]},
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    ):
        with pytest.raises(GrammarError):
            backend.compile(Constraint.json_schema(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"type": "string", "maxLength": -1},
        {"required": "a"},
        {"properties": [1]},
        {"items": 3},
        {"anyOf": {}},
        {"minimum": "1"},
        {"$ref": "other.json"},
        {"$ref": "#/nowhere"},
        [],
    ],
)
def test_what_is_no_schema_is_an_error(backend, schema):
    with pytest.raises(GrammarError):
        backend.compile(Constraint.json_schema(schema))


def test_what_is_nested_too_deep_is_too_complex(backend):
    schema = A
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ConstraintTooComplex):
        backend.compile(Constraint.json_schema(schema))


def test_a_value_that_is_nested_too_deep_is_too_complex(llguidance):
    value = []
    for _ in range(900):
        value = [value]
    with pytest.raises(ConstraintTooComplex):
        llguidance.compile(Constraint.json_schema({"const": value}))


def test_a_refusal_points_at_the_schema_and_names_the_keyword(backend):
    schema = {"type": "object", "properties": {"a/b": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(UnsupportedConstraint) as caught:
        backend.check(Constraint.json_schema(schema))
    assert caught.value.pointer == "/properties/a~1b"
    assert caught.value.keyword == "uniqueItems"


def test_options_that_a_library_would_find_in_a_schema_are_refused(llguidance):
    with pytest.raises(UnsupportedConstraint) as caught:
        llguidance.compile(Constraint.json_schema({"x-guidance": {"lenient": True}}))
    assert caught.value.keyword == "x-guidance"


def test_what_llguidance_itself_refuses_has_a_pointer(llguidance):
    with pytest.raises(UnsupportedConstraint) as caught:
        llguidance.compile(Constraint.json_schema({"items": {"oneOf": [A, {"type": "number"}]}}))
    assert caught.value.pointer == "/items"
    assert caught.value.keyword == "oneOf"


def test_formats_may_be_annotations(backend):
    schema = {"type": "string", "format": "date"}
    with pytest.raises(UnsupportedConstraint):
        backend.compile(Constraint.json_schema(schema))
    assert backend.compile(Constraint.json_schema(schema, formats="annotate")).accepts('"x"')


def test_properties_in_any_order_are_refused(backend):
    schema = {"type": "object", "properties": {"a": A}, "additionalProperties": False}
    with pytest.raises(UnsupportedConstraint):
        backend.compile(Constraint.json_schema(schema, property_order="free"))
    assert compiled(backend, {"type": "array", "items": A}, property_order="free")


def test_whitespace_is_bounded_or_absent(backend):
    schema = {"type": "array", "items": A}
    bounded = backend.compile(Constraint.json_schema(schema))
    compact = backend.compile(Constraint.json_schema(schema, whitespace="compact"))
    for text in ("[1,2]", "[1, 2]", "[\n    1,\n    2\n]"):
        assert bounded.accepts(text)
        assert compact.accepts(text) == (text == "[1,2]")
    assert not bounded.accepts("[" + " " * 100 + "1]")
    assert not bounded.accepts(" [1]")
    assert not bounded.accepts("[1]\n")


def test_a_json_object_is_any_object(backend):
    grammar = backend.compile(Constraint.json_object())
    assert grammar.accepts("{}")
    assert grammar.accepts('{"a": [1, {"b": null}]}')
    assert not grammar.accepts("[]")
