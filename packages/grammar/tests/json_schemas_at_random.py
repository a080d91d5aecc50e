"""Random JSON schemas of draft 2020-12, and random values that they are likely to divide."""

from __future__ import annotations

import random
from typing import Any

NAMES = ["a", "b", "c", "ab", "x1", ""]
TEXTS = ["", "a", "b", "ab", "aaa", "x1", "abc", "é", "😀b"]
NUMBERS = [0, 1, 2, 3, -1, -2, 5, 10, 1.0, 1.5, -0.5, 2.5, 0.25, 100, 7, 1e20, 1e-7, -3e16]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
PATTERNS = ["^a", "b$", "^a+$", "[ab]", "x[0-9]"]
LEAVES = [True, {}, False, {"type": "integer"}, {"type": "string"}]


def random_value(rng: random.Random, depth: int = 0) -> Any:
    """A value nested up to four deep."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return None if kind else rng.random() < 0.5
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind == 4:
        return rng.choice(TEXTS)
    if kind == 5:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    names = rng.sample(NAMES, rng.randrange(4))
    return {name: random_value(rng, depth + 1) for name in names}


def values_near(rng: random.Random, schema: Any) -> list[Any]:
    """Random values, and some that differ little from the constants of a schema."""
    values = [random_value(rng) for _ in range(20)]
    constants = list(_constants(schema))
    for _ in range(12 if constants else 0):
        constant = rng.choice(constants)
        values += [constant, _changed(rng, constant)]
    return values


def random_schema(rng: random.Random) -> dict[str, Any]:
    """A schema whose `multipleOf` are all parts of 1; it may refer to itself."""
    definitions = ["A", "B"] if rng.random() < 0.4 else []
    schema = _schema(rng, 0, definitions)
    if not isinstance(schema, dict):
        schema = {"allOf": [schema]}
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    if definitions:
        schema["$defs"] = {name: _schema(rng, 1, definitions) for name in definitions}
    return schema


def _schema(rng: random.Random, depth: int, definitions: list[str]) -> Any:
    if depth > 3 or rng.random() < 0.06:
        return rng.choice(LEAVES)
    if definitions and rng.random() < 0.12:
        return {"$ref": f"#/$defs/{rng.choice(definitions)}"}
    schema: dict[str, Any] = {}
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        group = rng.choice([_scalars, _arrays, _objects, _objects, _in_place, _in_place])
        keyword, value = group(rng, lambda: _schema(rng, depth + 1, definitions))
        if keyword == "properties":
            schema.setdefault(keyword, {}).update(value)
        else:
            schema[keyword] = value
    return schema


def _scalars(rng, _):
    return rng.choice(
        [
            ("type", rng.choice(TYPES)),
            ("type", rng.sample(TYPES, 2)),
            ("minimum", rng.choice([-1, 0, 1.5, 2, 1e19])),
            ("maximum", rng.choice([-1, 0, 1.5, 2, 10, 1e-6])),
            ("exclusiveMinimum", rng.choice([-1, 0, 1.5, 2])),
            ("exclusiveMaximum", rng.choice([-1, 0, 1.5, 2, 10])),
            ("multipleOf", rng.choice([1, 0.5, 0.25])),
            ("minLength", rng.randrange(4)),
            ("maxLength", rng.choice([0, 1, 2, 3, 20])),
            ("pattern", rng.choice(PATTERNS)),
            ("enum", [random_value(rng, 1) for _ in range(rng.randrange(1, 4))]),
            ("const", random_value(rng, 1)),
        ]
    )


def _arrays(rng, schema):
    return rng.choice(
        [
            ("items", schema()),
            ("prefixItems", [schema() for _ in range(rng.randrange(1, 3))]),
            ("minItems", rng.randrange(3)),
            ("maxItems", rng.randrange(4)),
            ("contains", schema()),
            ("uniqueItems", rng.random() < 0.2),
        ]
    )


def _objects(rng, schema):
    names = [
        {"maxLength": 1},
        {"pattern": "^a"},
        {"enum": ["a", "b", "x1"]},
        {"not": {"const": "a"}},
    ]
    return rng.choice(
        [
            *[("properties", {rng.choice(NAMES): schema()}) for _ in range(3)],
            ("patternProperties", {rng.choice([*PATTERNS, "^$"]): schema()}),
            ("additionalProperties", rng.choice([False, False, schema()])),
            ("required", rng.sample(NAMES, rng.choice([1, 1, 2]))),
            ("minProperties", rng.randrange(3)),
            ("maxProperties", rng.randrange(4)),
            ("propertyNames", rng.choice([*names, schema()])),
            ("dependentRequired", {rng.choice(NAMES): rng.sample(NAMES, 1)}),
            ("dependentSchemas", {rng.choice(NAMES): schema()}),
        ]
    )


def _in_place(rng, schema):
    return rng.choice(
        [
            ("allOf", [schema() for _ in range(rng.randrange(1, 3))]),
            ("anyOf", [schema() for _ in range(rng.randrange(1, 4))]),
            ("oneOf", [schema() for _ in range(rng.randrange(1, 4))]),
            ("oneOf", [schema() for _ in range(rng.randrange(1, 4))]),
            ("not", schema()),
            ("if", schema()),
            ("then", schema()),
            ("else", schema()),
        ]
    )


def _constants(schema):
    if isinstance(schema, list):
        for each in schema:
            yield from _constants(each)
    elif isinstance(schema, dict):
        yield from schema.get("enum", []) if isinstance(schema.get("enum"), list) else []
        if "const" in schema:
            yield schema["const"]
        for each in schema.values():
            yield from _constants(each)


def _changed(rng, value):
    """One part of a value replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.7:
        name = rng.choice(list(value))
        return {**value, name: _changed(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], _changed(rng, value[place]), *value[place + 1 :]]
    return random_value(rng, 2)
