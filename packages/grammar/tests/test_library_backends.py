"""xgrammar and llguidance behind our contract: what they accept, mask, forget and refuse."""

from __future__ import annotations

import json
import random
import re
import sys

import jsonschema
import numpy as np
import pytest

from phloem.grammar import (
    Constraint,
    ConstraintTooComplex,
    GrammarError,
    UnsupportedConstraint,
)
from phloem.grammar.llguidance_backend import LLGuidanceBackend
from phloem.grammar.vocabulary import Vocabulary
from phloem.grammar.xgrammar_backend import XGrammarBackend

STOP, SECOND_STOP, SPECIAL, TWIN, OTHER_TWIN = 256, 257, 258, 259, 260
TEXTS = (b"abc", b"abc", b'"]}', b'":', b'{"', b'","', b"\xc3", b"]}", b"ab")
VOCABULARY = Vocabulary(
    [*(bytes([byte]) for byte in range(256)), None, None, b'"]}', *TEXTS, None],
    stop_ids=[STOP, SECOND_STOP],
    special_ids=[SPECIAL],
)
BACKENDS = {"xgrammar": XGrammarBackend, "llguidance": LLGuidanceBackend}


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    pytest.importorskip(request.param)
    return BACKENDS[request.param](VOCABULARY)


@pytest.fixture(scope="module")
def xgrammar():
    pytest.importorskip("xgrammar")
    return XGrammarBackend(VOCABULARY)


@pytest.fixture(scope="module")
def llguidance():
    pytest.importorskip("llguidance")
    return LLGuidanceBackend(VOCABULARY)


def legal(matcher) -> set[int]:
    mask = np.full((2, VOCABULARY.words), 0x55555555, np.int32)
    matcher.fill_mask(mask, 1)
    bits = np.unpackbits(mask[1].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def follow(matcher, text: bytes):
    assert all(matcher.accept(byte) for byte in text), text
    return matcher


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
    pytest.importorskip(name)
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
    grammar = BACKENDS[name](VOCABULARY).compile(Constraint.json_schema(schema))
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


def test_a_refusal_points_at_the_keyword(backend):
    schema = {"type": "object", "properties": {"a/b": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(UnsupportedConstraint) as caught:
        backend.check(Constraint.json_schema(schema))
    assert caught.value.pointer == "/properties/a~1b/uniqueItems"
    assert caught.value.keyword == "uniqueItems"


def test_options_that_a_library_would_find_in_a_schema_are_refused(llguidance):
    with pytest.raises(UnsupportedConstraint) as caught:
        llguidance.compile(Constraint.json_schema({"x-guidance": {"lenient": True}}))
    assert caught.value.keyword == "x-guidance"


def test_what_llguidance_itself_refuses_has_a_pointer(llguidance):
    with pytest.raises(UnsupportedConstraint) as caught:
        llguidance.compile(Constraint.json_schema({"items": {"oneOf": [A, {"type": "number"}]}}))
    assert caught.value.pointer == "/items/oneOf"


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


@pytest.mark.parametrize("choices", [["a", "ab", 'q"\\x', "é💩", "a\nb"], ["", "x"]])
def test_a_choice_is_one_of_the_choices(backend, choices):
    grammar = backend.compile(Constraint.choice(choices))
    assert all(grammar.accepts(choice) for choice in choices)
    assert not any(grammar.accepts(text) for text in ("b", "aab", "éa"))


def random_pattern(rng: random.Random, dots: bool, depth: int = 0) -> str:
    kind = rng.random()
    if depth > 3 or kind < 0.3:
        return rng.choice(
            [
                "a",
                "b",
                "[ab]",
                "[^a]",
                "c",
                "é",
                r"\.",
                r"\n",
                r"[\x41b]",
                r"\x41",
                r"[\u0061-\u0062]",
                *"." * dots,
            ]
        )
    if kind < 0.5:
        return random_pattern(rng, dots, depth + 1) + random_pattern(rng, dots, depth + 1)
    if kind < 0.65:
        one, other = (random_pattern(rng, dots, depth + 1) for _ in range(2))
        return f"(?:{one}|{other})"
    times = rng.choice(["", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"])
    return f"({random_pattern(rng, dots, depth + 1)}){times}"


def test_regular_expressions_match_what_python_matches(backend):
    rng = random.Random(7)
    for _ in range(40):
        pattern = random_pattern(rng, dots=backend.name == "llguidance")
        grammar = backend.compile(Constraint.regex(rng.choice([pattern, f"^(?:{pattern})$"])))
        for _ in range(25):
            text = "".join(rng.choices("abcA\né.\r", k=rng.randint(0, 5)))
            assert grammar.accepts(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "offset", "construct"),
    [
        (r"a\w", "1", r"\w"),
        (r"a[\d]", "2", r"\d"),
        ("(?=a)b", "0", "(?="),
        ("(?P<n>a)", "0", "(?P"),
        (r"(a)\1", "3", r"\1"),
        ("a^b", "1", "^"),
        ("^a|b$", "0", "^"),
        (r"a\b", "1", r"\b"),
        ("[a&&b]", "0", "&&"),
        ("[]a]", "0", "]"),
        ("a++", "1", "++"),
        ("a{,3}", "1", "{"),
    ],
)
def test_a_construct_that_engines_read_differently_is_refused_by_name(
    backend, pattern, offset, construct
):
    with pytest.raises(UnsupportedConstraint) as caught:
        backend.compile(Constraint.regex(pattern))
    assert (caught.value.pointer, caught.value.keyword) == (offset, construct)


@pytest.mark.parametrize("pattern", ["(a", "a)", "[b-a]", "*a", "a**", "\\"])
def test_what_is_no_regular_expression_is_an_error(backend, pattern):
    with pytest.raises(GrammarError):
        backend.compile(Constraint.regex(pattern))


def test_a_grammar_in_ebnf_generates_its_texts(xgrammar):
    grammar = xgrammar.compile(
        Constraint.ebnf(
            'root ::= term ("+" term)* # a sum\nterm ::= [0-9]+ | "(" root ")" | "i" id | "if"\n'
            "id ::= [a-z]+"
        )
    )
    for text in ("1", "1+22", "(1+2)+3", "if", "ifx"):
        assert grammar.accepts(text)
    for text in ("", "1+", "(1", "i"):
        assert not grammar.accepts(text)


@pytest.mark.parametrize(
    "grammar",
    [
        'rule ::= "a"',
        "root ::= nowhere",
        'root ::= "a',
        "root ::= root",
        'root ::= "a" (="b")',
        'root ::= Regex("a+")',
        'root ::= "a\\x00b"',
        "root ::= [\\x41b]",
    ],
)
def test_a_grammar_that_would_not_be_enforced_is_an_error(xgrammar, grammar):
    with pytest.raises(GrammarError) as caught:
        xgrammar.compile(Constraint.ebnf(grammar))
    assert "/project" not in str(caught.value)


def test_grammars_and_tags_go_elsewhere(llguidance, xgrammar):
    with pytest.raises(UnsupportedConstraint):
        llguidance.compile(Constraint.ebnf('root ::= "a"'))
    for backend in (llguidance, xgrammar):
        with pytest.raises(UnsupportedConstraint):
            backend.compile(Constraint.structural_tag({"tags": []}))


def test_a_mask_has_exactly_the_tokens_that_are_accepted(backend):
    schema = {"type": "object", "properties": {"é": {"type": "array", "items": {}}},
              "required": ["é"], "additionalProperties": False}  # fmt: skip
    constraints = [
        Constraint.json_schema(schema),
        Constraint.regex("(abc)+x?"),
        Constraint.regex(".?" if backend.name == "llguidance" else "[^x]?"),
    ]
    rng = random.Random(3)
    for constraint in constraints:
        matcher = backend.compile(constraint).matcher()
        for _ in range(25):
            tokens = legal(matcher)
            for token in range(VOCABULARY.size + 40):
                fork = matcher.fork()
                assert fork.accept(token) == (token in tokens), token
            going_on = sorted(tokens - {STOP, SECOND_STOP})
            if not going_on:
                break
            assert matcher.accept(rng.choice(going_on))


def test_special_tokens_are_never_matched_by_their_bytes(backend):
    schema = {"type": "array", "items": {"type": "string"}}
    matcher = backend.compile(Constraint.json_schema(schema)).matcher()
    follow(matcher, b'["hello","')
    assert SPECIAL not in legal(matcher)
    assert not any(matcher.accept(token) for token in (SPECIAL, STOP, SECOND_STOP))
    assert follow(matcher, b'"]').is_complete


def test_any_stop_token_ends_a_complete_text(backend):
    matcher = backend.compile(Constraint.regex("(abc)+")).matcher()
    assert not matcher.accept(STOP)
    assert matcher.accept(TWIN)
    assert matcher.is_complete
    assert not matcher.is_terminated
    assert {STOP, SECOND_STOP} <= legal(matcher)
    assert matcher.accept(SECOND_STOP)
    assert matcher.is_terminated
    assert legal(matcher) == set()
    assert not matcher.accept(ord("a"))
    matcher.rollback(1)
    assert not matcher.is_terminated
    assert matcher.accept(ord("a"))


def test_a_text_that_cannot_go_on_is_terminated(backend):
    matcher = backend.compile(Constraint.regex("ab")).matcher()
    assert not follow(matcher, b"a").is_terminated
    assert follow(matcher, b"b").is_terminated
    assert legal(matcher) == {STOP, SECOND_STOP}


def test_rollback_and_fork_are_like_a_fresh_start(backend):
    grammar = backend.compile(Constraint.json_object())
    rng = random.Random(5)
    matcher, taken = grammar.matcher(), []
    for _ in range(120):
        count = rng.randint(0, min(3, len(taken)))
        matcher.rollback(count)
        taken = taken[: len(taken) - count]
        tokens = sorted(legal(matcher))
        assert tokens == sorted(legal(_replayed(grammar, taken)))
        if tokens:
            other = matcher.fork()
            assert other.accept(rng.choice(tokens))
            token = rng.choice(tokens)
            assert matcher.accept(token)
            taken.append(token)
    with pytest.raises(ValueError, match="taken back"):
        matcher.rollback(len(taken) + 1)


def _replayed(grammar, tokens):
    matcher = grammar.matcher()
    assert all(matcher.accept(token) for token in tokens)
    return matcher


def test_forced_text_is_what_leaves_no_choice(backend):
    schema = {"type": "object", "properties": {"name": {"enum": ["one", "other"]}},
              "required": ["name"], "additionalProperties": False}  # fmt: skip
    grammar = backend.compile(Constraint.json_schema(schema, whitespace="compact"))
    matcher = grammar.matcher()
    assert matcher.forced() == b'{"name":"o'
    assert follow(matcher, b'{"name":"ot').forced() == b'her"}'
    assert follow(matcher, b'her"}').forced() == b""
    assert matcher.distance_to_end() is None


def test_a_wider_mask_has_no_bits_beyond_the_vocabulary(backend):
    mask = np.full((1, VOCABULARY.words + 3), -1, np.int32)
    backend.compile(Constraint.regex("[^x]*")).matcher().fill_mask(mask, 0)
    bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
    assert bits[: VOCABULARY.size].any()
    assert not bits[VOCABULARY.size :].any()


def test_a_serialized_grammar_is_read_by_an_equal_backend_only(backend):
    grammar = backend.compile(Constraint.json_schema(A))
    data = grammar.serialize()
    again = type(backend)(VOCABULARY).deserialize(data)
    assert again.accepts("12")
    assert not again.accepts("x")
    assert again.matcher().accept(ord("1"))
    other = Vocabulary([b"1", None], [1])
    with pytest.raises(GrammarError, match="vocabulary"):
        type(backend)(other).deserialize(data)
    for damaged in (b"", b"x", data[:-20], b"{}\n" + data):
        with pytest.raises(GrammarError):
            backend.deserialize(damaged)


def test_a_vocabulary_without_stop_tokens_is_refused(backend):
    with pytest.raises(GrammarError, match="stop"):
        type(backend)(Vocabulary([b"a"], []))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_missing_library_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"phloem-grammar\[{name}\]"):
        BACKENDS[name](VOCABULARY)
