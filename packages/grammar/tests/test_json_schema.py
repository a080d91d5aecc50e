"""From schemas to their normal form: what is refused and how, references, drafts, limits."""

import contextlib
import json
import random

import jsonschema
import pytest
from json_schemas_at_random import random_schema, values_near
from json_values import accepts
from schema_graphs import shape_of

from phloem.grammar import ConstraintTooComplex, GrammarError, UnsupportedConstraint
from phloem.grammar.dfa import Budget
from phloem.grammar.json_schema import load_schema, normalize
from phloem.grammar.json_schema.draft import Draft

D4 = "http://json-schema.org/draft-04/schema#"
D7 = "http://json-schema.org/draft-07/schema#"
D2019 = "https://json-schema.org/draft/2019-09/schema"
D2020 = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("seed", range(5))
def test_random_schemas_hold_what_jsonschema_holds_valid(seed):
    rng = random.Random(seed)
    compared = 0
    for _ in range(30):
        schema = random_schema(rng)
        values = values_near(rng, schema)
        try:
            graph = normalize(schema)
        except (UnsupportedConstraint, ConstraintTooComplex):
            continue
        except GrammarError as error:
            if "no value is valid" not in str(error):
                continue
            graph = None
        for value, legal in judged(schema, values):
            assert (graph is not None and accepts(graph, value)) == legal, (schema, value)
            compared += 1
    assert compared > 400


def judged(schema, values):
    """Each value with what jsonschema says of it, as far as it comes to an end."""
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        with contextlib.suppress(RecursionError):
            yield value, validator.is_valid(value)


def refusal(schema, **options):
    with pytest.raises(UnsupportedConstraint) as caught:
        normalize(schema, **options)
    return caught.value.pointer, caught.value.keyword


REFUSED = [
    ({"properties": {"a/b": {"uniqueItems": True}}}, "/properties/a~1b", "uniqueItems"),
    ({"items": {"unevaluatedProperties": False}}, "/items", "unevaluatedProperties"),
    ({"allOf": [{}, {"minContains": 2, "contains": {}}]}, "/allOf/1", "minContains"),
    ({"contains": {}, "maxContains": 2}, "", "maxContains"),
    ({"$ref": "https://example.org/other.json"}, "", "$ref"),
    ({"$ref": "#/definitions/nowhere", "definitions": {}}, "", "$ref"),
    ({"$ref": "#/const/a", "const": {"a": {}}, "$schema": D2020}, "", "$ref"),
    ({"$dynamicRef": "#a"}, "", "$dynamicRef"),
    ({"nullable": True, "type": "string"}, "", "nullable"),
    ({"minlength": 3}, "", "minlength"),
    ({"pattern": r"(a)\1"}, "", "pattern"),
    ({"patternProperties": {"(?=a)": {}}}, "", "patternProperties"),
    ({"properties": {"\ud800": {}}}, "/properties", ascii("\ud800")),
    ({"const": "\udfff"}, "/const", ascii("\udfff")),
    ({"$schema": "https://example.org/meta"}, "", "$schema"),
    ({"not": {"uniqueItems": True}, "type": "array"}, "/not", "uniqueItems"),
    ({"$schema": D7, "prefixItems": [True]}, "", "prefixItems"),
    ({"$schema": D2020, "additionalItems": False}, "", "additionalItems"),
    ({"prefixItems": [True], "additionalItems": False}, "", "additionalItems"),
    ({"$schema": D4, "const": 1}, "", "const"),
]


@pytest.mark.parametrize(("schema", "pointer", "keyword"), REFUSED, ids=str)
def test_what_cannot_be_enforced_is_refused_with_its_place(schema, pointer, keyword):
    assert refusal(schema) == (pointer, keyword)


def test_refusals_wait_until_a_place_is_needed():
    schema = {"definitions": {"unused": {"uniqueItems": True}}, "type": "integer"}
    assert accepts(normalize(schema), 1)
    schema = {
        "allOf": [
            {"type": "integer"},
            {"type": "string"},
            {"properties": {"a": {"uniqueItems": True}}},
        ]
    }
    with pytest.raises(GrammarError, match="no value is valid"):
        normalize(schema)


MALFORMED = [
    ({"type": "strin"}, "/type"),
    ({"type": []}, "/type"),
    ({"properties": {"a": {"minLength": -1}}}, "/properties/a/minLength"),
    ({"maxItems": 1.5}, "/maxItems"),
    ({"minimum": "3"}, "/minimum"),
    ({"multipleOf": 0}, "/multipleOf"),
    ({"required": "a"}, "/required"),
    ({"enum": "a"}, "/enum"),
    ({"anyOf": []}, "/anyOf"),
    ({"anyOf": [1]}, "1 at /anyOf/0 is not a schema"),
    ({"properties": {"a": 3}}, "/properties"),
    ({"items": "x"}, "/items"),
    ({"additionalProperties": "no"}, "/additionalProperties"),
    ({"uniqueItems": 1}, "/uniqueItems"),
    ({"pattern": 7}, "/pattern"),
    ({"not": 1}, "/not"),
    ({"$schema": D7, "exclusiveMinimum": True, "minimum": 1}, "/exclusiveMinimum"),
    ({"$schema": D4, "exclusiveMinimum": 1}, "/exclusiveMinimum"),
    ({"dependencies": {"a": [1]}}, "/dependencies"),
    ({"$ref": 7}, "$ref"),
    ({"const": float("nan")}, "not a JSON number"),
    ({"const": ...}, "not a JSON value"),
    ("type", "not a schema"),
    ([], "not a schema"),
]


@pytest.mark.parametrize(("schema", "named"), MALFORMED, ids=str)
def test_a_malformed_schema_is_an_error_that_names_the_place(schema, named):
    with pytest.raises(GrammarError) as caught:
        normalize(schema)
    assert named in str(caught.value)


UNSATISFIABLE = [
    False,
    {"enum": []},
    {"type": "object", "properties": {"x": {"type": "string", "enum": []}}, "required": ["x"]},
    {"type": "string", "pattern": "^a+$", "minLength": 3, "maxLength": 2},
    {"type": "string", "pattern": "^a{5}$", "maxLength": 4},
    {"type": "integer", "minimum": 1.2, "maximum": 1.8},
    {"type": "array", "items": False, "minItems": 1},
    {"type": "array", "contains": {"type": "string"}, "items": {"type": "integer"}},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 3},
    {"type": "object", "required": ["a", "b"], "maxProperties": 1},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"const": 1, "type": "string"},
    {"not": {}},
]


@pytest.mark.parametrize("schema", UNSATISFIABLE, ids=str)
def test_a_schema_without_valid_values_is_an_error(schema):
    with pytest.raises(GrammarError, match="no value is valid"):
        normalize(schema)


def test_the_place_that_contradicts_itself_is_named():
    x = {"type": "string", "enum": []}
    schema = {"type": "object", "properties": {"x": x, "y": {}}, "required": ["x"]}
    with pytest.raises(GrammarError, match="as none is at /properties/x"):
        normalize(schema)
    with pytest.raises(GrammarError, match="under the schema: remove"):
        normalize({"type": "integer", "minimum": 3, "maximum": 2})


def test_a_property_that_cannot_be_is_not_offered():
    schema = {"properties": {"x": {"enum": []}, "y": {"$ref": "#/$defs/endless"}}, "type": "object"}
    schema["$defs"] = {
        "endless": {"type": "array", "items": {"$ref": "#/$defs/endless"}, "minItems": 1}
    }
    [shape] = normalize(schema).nodes[0].objects
    assert shape.properties == ()
    assert not any(each.names.accepts(name) for each in shape.others for name in (b"x", b"y"))
    assert any(each.names.accepts(b"z") for each in shape.others)


def test_properties_keep_the_order_of_the_schema_and_required_ones_follow():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["z", "a"]}
    [shape] = normalize(schema).nodes[0].objects
    assert [(each.name, each.required) for each in shape.properties] == [
        ("b", False),
        ("a", True),
        ("z", True),
    ]


def test_equal_subschemas_share_a_node():
    person = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}
    schema = {"type": "object", "properties": dict.fromkeys("abcdef", person)}
    schema["additionalProperties"] = False
    assert len(normalize(schema).nodes) < 6


def test_a_reference_beside_keywords_needs_a_draft_to_be_understood():
    schema = {
        "properties": {"p": {"$ref": "#/properties/q", "maxItems": 1}, "q": {"type": "array"}}
    }
    assert refusal(schema) == ("/properties/p", "$ref")
    assert accepts(normalize(schema, draft=Draft.D7), {"p": [1, 2]})
    assert not accepts(normalize(schema, draft=Draft.D2019), {"p": [1, 2]})
    assert not accepts(normalize({**schema, "$defs": {}}), {"p": [1, 2]})
    assert refusal({**schema, "definitions": {}}) == ("/properties/p", "$ref")
    schema["properties"]["p"] = {"$ref": "#/properties/q", "description": "just words"}
    assert not accepts(normalize(schema), {"p": 1})


def test_a_schema_that_refers_to_itself_in_place_is_an_error():
    for schema in ({"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"not": {"$ref": "#"}}):
        with pytest.raises(GrammarError, match="itself"):
            normalize(schema)


def test_an_id_of_draft_4_is_not_passed_over_without_the_draft():
    inner = {"id": "https://example.org/x", "definitions": {"t": {"type": "integer"}}}
    inner["definitions"]["u"] = {"$ref": "#/definitions/t"}
    schema = {"definitions": {"a": inner, "t": {"type": "string"}}}
    schema["items"] = {"$ref": "#/definitions/a/definitions/u"}
    assert refusal(schema) == ("/definitions/a/definitions/u", "$ref")
    assert accepts(normalize(schema, draft=Draft.D4), [1])
    assert refusal({"id": "https://example.org/x"}) == ("", "id")


def test_an_identifier_given_twice_is_not_guessed():
    inner = {"$id": "https://example.org/x", "type": "integer"}
    schema = {"$schema": D7, "definitions": {"a": inner, "b": inner}}
    schema["properties"] = {"p": {"$ref": "https://example.org/x"}}
    assert refusal(schema) == ("/properties/p", "$ref")


def test_annotations_and_unused_definitions_change_nothing():
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}}
    noisy = {
        "title": "t",
        "description": "d",
        "default": {},
        "examples": [1],
        "$comment": "c",
        "x-order": 1,
        "type": "object",
        "properties": {"a": {"type": "integer", "readOnly": True, "deprecated": False}},
        "definitions": {"unused": {"type": "string"}},
    }
    assert shape_of(normalize(plain)) == shape_of(normalize(noisy))


def test_text_that_is_no_json_is_an_error():
    with pytest.raises(GrammarError, match="not JSON"):
        load_schema("{")
    with pytest.raises(GrammarError, match="not JSON"):
        load_schema("[" * 100_000)


def nested(depth, wrap, leaf):
    for level in range(depth):
        leaf = wrap(leaf, level)
    return leaf


def one_of(schema, level):
    record = {"type": "object", "properties": {f"p{level}": schema}, "required": [f"p{level}"]}
    other = {"type": "object", "properties": {f"q{level}": {"type": "integer"}}}
    return {"oneOf": [schema, record, other]}


HOSTILE = {
    "oneOf nested 12 deep": nested(12, one_of, {"type": "string"}),
    "a product of allOf and anyOf": {
        "allOf": [{"anyOf": [{"required": [f"{a}{b}"]} for b in range(4)]} for a in range(12)]
    },
    "many dependencies": {"dependentRequired": {f"a{n}": [f"b{n}"] for n in range(30)}},
    "objects nested 1000 deep": nested(1000, lambda each, _: {"properties": {"a": each}}, {}),
    "a chain of 5000 references": {
        "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(5000)},
        "$ref": "#/$defs/d0",
    },
    "100,000 strings": {"enum": [f"value-{n * 7919**9 % 2**64}" for n in range(100_000)]},
    "10,000 objects": {"enum": [{"a": n} for n in range(10_000)]},
    "a repetition of repetitions": {"pattern": "(a{1,1000}){1,1000}"},
    "a count without end": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 10**9},
    "a count of ten digits": {"minItems": 10**10},
    "an exponent of five digits": load_schema('{"minimum": 1e99999}'),
}
HOSTILE["a chain of 5000 references"]["$defs"]["d5000"] = {}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_ends_at_a_limit(name):
    with pytest.raises(ConstraintTooComplex):
        normalize(HOSTILE[name], budget=Budget.of_seconds(1))


def test_large_schemas_of_the_usual_kind_are_no_problem():
    words = [f"value-{n}" for n in range(10_000)]
    assert accepts(normalize({"enum": words}), "value-7919")
    choices = [
        {
            "type": "object",
            "properties": {"kind": {"const": f"k{n}"}, "v": {"type": "integer", "minimum": n}},
            "required": ["kind", "v"],
            "additionalProperties": False,
        }
        for n in range(25)
    ]
    graph = normalize({"oneOf": choices})
    assert accepts(graph, {"kind": "k7", "v": 7})
    assert not accepts(graph, {"kind": "k7", "v": 6})
    assert len(graph.nodes[0].objects) == 25
    deep = nested(
        60, lambda each, _: {"type": "object", "properties": {"a": each}}, {"type": "null"}
    )
    assert accepts(normalize(deep), json.loads('{"a":' * 60 + "null" + "}" * 60))


def test_hundreds_of_alternatives_are_told_apart_in_a_moment():
    choices = [
        {"type": "object", "properties": {f"k{n}": {}}, "required": [f"k{n}"]} for n in range(400)
    ]
    # It takes half a second, or two beside other work; pair by pair it would take minutes.
    graph = normalize({"anyOf": choices + choices}, budget=Budget.of_seconds(10))
    assert len(graph.nodes[graph.root].objects) == 400


@pytest.mark.parametrize(
    "schema",
    [
        '{"$ref": 1.5}',
        '{"$schema": 1.5}',
        '{"allOf": [1.5]}',
        '{"dependencies": {"a": 1.5}}',
        "1.5",
    ],
)
def test_messages_show_values_as_json(schema):
    with pytest.raises(GrammarError, match=r"1\.5") as caught:
        normalize(load_schema(schema))
    assert "Decimal" not in str(caught.value)
