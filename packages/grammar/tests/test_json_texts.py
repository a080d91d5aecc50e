"""Which JSON texts are legal: `jsonschema` is the oracle for values, tables say the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grammar_vocabularies import byte_vocabulary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_schema_strategies import schemas, values
from jsonschema import Draft7Validator

from phloem.grammar import Constraint
from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.matcher import AutomatonGrammar

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "on": {"const": True}},
    "required": ["name"],
    "additionalProperties": {"type": "null"},
}


def compiled(schema: Any, **options: Any) -> AutomatonGrammar:
    backend = FsmBackend(byte_vocabulary(), seconds=20)
    grammar = backend.compile(Constraint.json_schema(schema, **options))
    return backend.deserialize(grammar.serialize())


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas, st.lists(values, min_size=4, max_size=8))
def test_a_text_is_legal_where_its_value_is_valid(schema: Any, instances: list[Any]) -> None:
    validator = Draft7Validator(schema)
    try:
        grammar = compiled(schema, property_order="free")
    except (ConstraintTooComplex, UnsupportedConstraint):
        return
    except GrammarError:
        assert not any(map(validator.is_valid, instances))
        return
    for value in instances:
        valid = validator.is_valid(value)
        assert grammar.accepts(json.dumps(value, separators=(",", ":"))) == valid
        assert grammar.accepts(json.dumps(value, indent=2, ensure_ascii=False)) == valid
        assert grammar.accepts(json.dumps(value, indent="\t")) == valid


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ('{"a":[1,2],"b":{}}', True),
        ('{"a": [1, 2], "b": {}}', True),
        ('{ "a": [ 1, 2 ], "b": {} }', True),
        ('{\n  "a": [\n    1\n  ],\n  "b": {}\n}', True),
        ('{\n\t"a": [\n\t\t1\n\t],\n\t"b": {}\n}', True),
        ('{\n"a": [\n1\n]\n}', True),
        ('{"a": [1, 2],\n "b": {\n  "c": 0}}', True),
        ('{"a":[\n    1\n  ]}', True),
        ('{"a":{\n"b":1\n}}', True),
        ('{\n  "a": [\n  1]}', False),
        ('{\n  "a": 1,\n    "b": 2}', False),
        ('{\n         "a": 1}', False),
        ('{\n \t"a": 1}', False),
        ('{\n\t\t"a": 1}', False),
        ('{\n\n "a": 1}', False),
        (' {"a":1}', False),
        ('{"a":1} ', False),
        ('{"a" :1}', False),
        ('{"a":  1}', False),
        ('{"a":\n1}', False),
        ('{"a":1 ,"b":2}', False),
        ("{ }", False),
        ('{"a":[ ]}', False),
        ('{"a":1,}', False),
        ('{"a":1\r\n}', False),
    ],
)
def test_blanks_are_bounded(text: str, legal: bool) -> None:
    assert compiled({"type": "object"}).accepts(text) == legal
    bare = text.translate(str.maketrans("", "", " \n\t\r"))
    assert compiled({"type": "object"}, whitespace="compact").accepts(text) == (
        legal and text == bare
    )


def test_any_object_is_a_json_object_and_nothing_else_is() -> None:
    grammar = FsmBackend(byte_vocabulary()).compile(Constraint.json_object())
    for text in ("{}", '{"a":{"b":[null,true,-0.5e+3,"x"]}}'):
        assert grammar.accepts(text)
        assert compiled({"type": "object"}).accepts(text)
    for text in ("[]", "1", '"{}"', "null", "{", '{"a"}', '{"a":01}', '{"a":+1}', '{"a":.5}'):
        assert not grammar.accepts(text)


def test_declared_properties_come_in_their_order_and_others_after_them() -> None:
    fixed, free = compiled(PERSON), compiled(PERSON, property_order="free")
    in_order = ['{"name":"x","age":1,"on":true,"z":null}', '{"name":"x","on":true}']
    not_in_order = ['{"age":1,"name":"x"}', '{"z":null,"name":"x"}', '{"name":"","z":null,"age":1}']
    for text in in_order:
        assert fixed.accepts(text)
        assert free.accepts(text)
    for text in not_in_order:
        assert not fixed.accepts(text)
        assert free.accepts(text)


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_no_name_comes_twice_however_it_is_spelled(order: str) -> None:
    grammar = compiled(PERSON, property_order=order)
    assert grammar.accepts('{"name":"","x":null,"y":null,"xy":null}')
    for text in (
        '{"name":"","name":""}',
        '{"name":"","x":null,"y":null,"x":null}',
        '{"name":"","x":null,"\\u0078":null}',
        '{"name":"","é":null,"\\u00e9":null}',
        '{"name":"","😀":null,"\\ud83d\\ude00":null}',
    ):
        assert not grammar.accepts(text)


@pytest.mark.parametrize(
    ("spelled", "legal"),
    [
        ('"/"', True),
        ('"\\/\\"\\\\\\b\\f\\n\\r\\t"', True),
        ('"\\u0041\\u00e9\\uABCD\\uabcd"', True),
        ('"\\ud83d\\ude00\\uD83D\\uDE00😀"', True),
        ('"\\ud83d"', False),
        ('"\\ude00"', False),
        ('"\\ud83d\\u0041"', False),
        ('"\\ud83dx"', False),
        ('"\\ud83d\\ud83d"', False),
        ('"\\u12"', False),
        ('"\\u12g4"', False),
        ('"\\x41"', False),
        ('"\\\'"', False),
        ('"\n"', False),
        ('"\x7f"', True),
    ],
)
def test_free_strings_take_every_escape_of_json_and_no_other(spelled: str, legal: bool) -> None:
    assert compiled({"type": "string"}).accepts(spelled) == legal


def test_bytes_that_are_no_utf8_are_not_legal() -> None:
    grammar = compiled({"type": "string"})
    for content in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"):
        assert not grammar.accepts(b'"' + content + b'"')


def test_where_finitely_many_strings_are_left_ascii_is_spelled_in_one_way() -> None:
    grammar = compiled({"enum": ["a/b", "é\n", '"\x01', "😀"]})
    for spelled in ('"a/b"', '"é\\n"', '"\\u00e9\\n"', '"\\u00E9\\n"', '"\\"\\u0001"', '"😀"'):
        assert grammar.accepts(spelled)
    assert grammar.accepts('"\\ud83d\\ude00"')
    for spelled in ('"a\\/b"', '"\\u0061/b"', '"é\\u000a"', '"\\u0022\\u0001"', '"\\ud83d\\ude01"'):
        assert not grammar.accepts(spelled)


def test_escapes_count_as_the_characters_that_they_mean() -> None:
    grammar = compiled({"type": "string", "pattern": "^a+$", "maxLength": 2})
    assert [grammar.accepts(json.dumps("a" * n)) for n in range(4)] == [False, True, True, False]
    counted = compiled({"type": "string", "minLength": 300, "maxLength": 302})
    for length in range(298, 305):
        text = "😀" * (length - 2) + "é\n"
        legal = 300 <= length <= 302
        assert counted.accepts(json.dumps(text)) == legal
        assert counted.accepts(json.dumps(text, ensure_ascii=False)) == legal


def test_alternatives_are_followed_side_by_side_through_equal_beginnings() -> None:
    one = {"type": "object", "properties": {"k": {"const": "one"}, "v": {"type": "string"}}}
    two = {"type": "object", "properties": {"k": {"const": "once"}, "v": {"type": "integer"}}}
    closed = {"required": ["k", "v"], "additionalProperties": False}
    grammar = compiled({"type": "array", "items": {"anyOf": [one | closed, two | closed]}})
    assert grammar.accepts('[{"k":"one","v":"x"},{"k":"once","v":5}]')
    assert not grammar.accepts('[{"k":"one","v":5}]')
    assert not grammar.accepts('[{"k":"once","v":"x"}]')


def test_deeply_nested_alternatives_stay_cheap() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for depth in range(12):
        layer = [
            {
                "type": "object",
                "properties": {"x": schema, tag: {"type": "null"}},
                "required": [tag],
            }
            for tag in (f"p{depth}", f"q{depth}")
        ]
        schema = {"anyOf": layer}
    grammar = compiled(schema)
    text, value = '{"x":' * 12 + "1", "}"
    for depth in range(12):
        text += f',"q{depth}":null{value}'
    assert grammar.accepts(text)
    assert not grammar.accepts(text.replace("q3", "r3"))


@pytest.mark.parametrize("damage", [b"", b"\x00", b"\xff\xff\xff\xff"])
def test_damaged_compiled_forms_are_refused(damage: bytes) -> None:
    backend = FsmBackend(byte_vocabulary())
    data = backend.compile(Constraint.json_schema(PERSON)).serialize()
    header = data.partition(b"\n")[0] + b"\n"
    with pytest.raises(GrammarError, match="damaged"):
        backend.deserialize(header + damage)
    with pytest.raises(GrammarError, match="damaged"):
        backend.deserialize(data[:-3])


def test_a_required_name_that_no_text_can_hold_is_refused() -> None:
    with pytest.raises(GrammarError):
        compiled('{"type":"object","required":["\\ud800"],"properties":{"\\ud800":{}}}')
    with pytest.raises(GrammarError):
        compiled({"type": "object", "properties": {"x": {"enum": []}}, "required": ["x"]})
