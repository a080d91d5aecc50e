"""Drafts: no backend reads a schema otherwise than `fsm`, or names a place in it otherwise."""

from __future__ import annotations

import json

import pytest
from library_support import BACKENDS, VOCABULARY, made

from phloem.grammar import Constraint, GrammarError, UnsupportedConstraint, create_backend
from phloem.grammar.auto import AutoBackend
from phloem.grammar.fsm_backend import FsmBackend

D3 = "http://json-schema.org/draft-03/schema#"
D4 = "http://json-schema.org/draft-04/schema#"
D6 = "http://json-schema.org/draft-06/schema#"
D7 = "http://json-schema.org/draft-07/schema#"
D2020 = "https://json-schema.org/draft/2020-12/schema"
INTEGER = {"type": "integer"}


@pytest.fixture(params=BACKENDS)
def library(request):
    return made(request.param)


@pytest.fixture(params=["fsm", *BACKENDS])
def backend(request):
    if request.param != "fsm":
        return made(request.param)
    return create_backend("fsm", VOCABULARY)


UNCERTAIN = [
    ({"$schema": D3, **INTEGER}, "", "$schema"),
    ({"$schema": "https://example.com/mine", **INTEGER}, "", "$schema"),
    ({"$schema": 7, **INTEGER}, "", "$schema"),
    ({"items": {"$schema": D4, **INTEGER}}, "/items", "$schema"),
    ({"$schema": D4, "const": 3}, "", "const"),
    ({"$schema": D4, "type": "array", "items": {"const": 3}}, "/items", "const"),
    ({"$schema": D4, "type": "integer", "exclusiveMinimum": 3}, "", "exclusiveMinimum"),
    ({"$schema": D6, "type": "array", "prefixItems": [INTEGER]}, "", "prefixItems"),
    ({"$schema": D7, "prefixItems": [INTEGER], "items": False}, "", "prefixItems"),
    ({"$schema": D2020, "prefixItems": [INTEGER], "additionalItems": False}, "", "additionalItems"),
    ({"prefixItems": [INTEGER], "additionalItems": INTEGER}, "", "additionalItems"),
    ({"$schema": D2020, "type": "array", "items": [INTEGER]}, "", "items"),
    ({"prefixItems": [INTEGER], "items": [INTEGER]}, "", "items"),
]


@pytest.mark.parametrize(("schema", "pointer", "keyword"), UNCERTAIN, ids=json.dumps)
def test_a_library_gets_no_schema_that_its_draft_gives_no_meaning(
    library, schema, pointer, keyword
):
    with pytest.raises(UnsupportedConstraint) as caught:
        library.check(Constraint.json_schema(schema))
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)


@pytest.mark.parametrize("schema", [schema for schema, *_ in UNCERTAIN[:10]], ids=json.dumps)
def test_auto_hands_on_no_schema_that_has_no_certain_meaning(schema):
    class Lenient:
        name = "lenient"
        asked = 0

        def check(self, constraint):
            self.asked += 1

    lenient = Lenient()
    schema = {**schema, "uniqueItems": True}  # which fsm refuses in any case
    auto = AutoBackend(VOCABULARY, {"fsm": FsmBackend, "lenient": lambda _: lenient})
    with pytest.raises(GrammarError):
        auto.check(Constraint.json_schema(schema))
    assert lenient.asked == 0


def test_what_a_draft_has_is_enforced_as_before(library):
    for schema in (
        {"$schema": D6, "const": 3},
        {"$schema": D4, "enum": [3]},
        {"$schema": D2020, "type": "array", "prefixItems": [{"enum": [3]}], "items": False},
        {"$schema": D7, "$ref": "#/definitions/a", "definitions": {"a": {"const": 3}}},
    ):
        grammar = library.compile(Constraint.json_schema(schema))
        value = [3] if "prefixItems" in schema else 3
        assert grammar.accepts(json.dumps(value))
        assert not grammar.accepts(json.dumps([4] if value == [3] else 4))


@pytest.mark.parametrize(
    ("part", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"$ref": "other.json"}, "$ref"),
        ({"$ref": "#/nowhere"}, "$ref"),
        ({"type": "string", "format": "float-sink"}, "format"),
        ({"type": "string", "pattern": "(?=a)"}, "pattern"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ],
    ids=json.dumps,
)
def test_every_backend_points_at_the_schema_and_names_the_keyword(backend, part, keyword):
    schema = {
        "type": "object",
        "properties": {"a/b": part},
        "required": ["a/b"],
        "additionalProperties": False,
    }
    with pytest.raises(UnsupportedConstraint) as caught:
        backend.check(Constraint.json_schema(schema))
    assert (caught.value.pointer, caught.value.keyword) == ("/properties/a~1b", keyword)
