"""JSON under schemas with large counts and many names: exact, or refused when it is compiled."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from grammar_vocabularies import byte_vocabulary

from phloem.grammar.constraint import Constraint
from phloem.grammar.dfa import Dfa
from phloem.grammar.errors import ConstraintTooComplex
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.json_machine.paths import Paths, ShortestTexts
from phloem.grammar.regex import parse


def compiled(schema, **options):
    return FsmBackend(byte_vocabulary(), seconds=60).compile(
        Constraint.json_schema(schema, **options)
    )


def test_the_distance_of_a_long_string_is_calculated_rather_than_counted():
    matcher = compiled({"type": "string", "minLength": 10**9}).matcher()
    assert matcher.distance_to_end() == 10**9 + 2
    assert all(matcher.accept(token) for token in b'"abc')
    assert matcher.distance_to_end() == 10**9 - 2


def test_a_pattern_in_front_of_filler_counts_its_own_way():
    matcher = compiled({"type": "string", "pattern": "^x{70}", "minLength": 300}).matcher()
    for said, token in enumerate(b'"' + b"x" * 75):
        assert matcher.distance_to_end() == 302 - said
        assert matcher.accept(token)


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_each_token_of_the_cheapest_way_through_many_names_comes_one_nearer(order):
    names = [f"p{number}" for number in range(300)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "null"} for name in names},
        "required": names[100:],
        "minProperties": 240,
        "additionalProperties": False,
    }
    matcher = compiled(schema, property_order=order).matcher()
    # The 40 optional names that weigh least are p0 to p39.
    shortest = names[:40] + names[100:]
    text = "{" + ",".join(f'"{name}":null' for name in shortest) + "}"
    mask = np.zeros((1, byte_vocabulary().words), np.int32)
    for said, token in enumerate(text.encode()):
        left = len(text) - said
        if said < 500 or left < 100:
            assert matcher.distance_to_end() == left
            matcher.fill_mask(mask, 0, left)
            assert mask[0, token // 32] >> token % 32 & 1
        assert matcher.accept(token)
    assert matcher.is_complete


def test_undeclared_names_on_the_way_to_the_end_are_the_shortest_that_are_left():
    matcher = compiled({"type": "object", "minProperties": 60}).matcher()
    told = matcher.distance_to_end()
    for token in b'{"a":1,"":2,"b':
        assert matcher.accept(token)
    # Two names were used that the shortest way has, and one is begun.
    assert matcher.distance_to_end() == told - len(b'{"a":1,"":2,"b')


def test_an_object_that_needs_many_undeclared_names_is_refused():
    declared = {f"p{number}": {} for number in range(70)}
    with pytest.raises(ConstraintTooComplex, match="at most 64 properties beyond the required"):
        compiled({"type": "object", "properties": declared, "minProperties": 65})
    closed = {"type": "object", "properties": declared, "minProperties": 65}
    assert compiled({**closed, "additionalProperties": False}).matcher().distance_to_end()


@pytest.mark.parametrize("pattern", ["a*", "(ab|c)*d?", "b{2}|a{1,3}|", "[ab]c|(a|b){5}", "é*"])
def test_texts_come_shortest_first_and_each_once(pattern):
    dfa = parse(pattern)
    alphabet = [bytes([byte]) for byte in range(256) if _is_used(dfa, byte)]
    texts = ShortestTexts(Paths(dfa), 0)
    found: list[bytes] = []
    while len(found) < 40:
        text = texts.first_without(frozenset(found))
        if text in found or not dfa.accepts(text):
            break
        found.append(text)
    lengths = [len(text) for text in found]
    assert lengths == sorted(lengths)
    expected = [
        text
        for length in range(min(max(lengths), 7))
        for text in map(b"".join, product(alphabet, repeat=length))
        if dfa.accepts(text)
    ]
    assert sorted(found[: len(expected)]) == sorted(expected)


def _is_used(dfa: Dfa, byte: int) -> bool:
    return bool((dfa.table.next[:, dfa.table.classes[byte]] >= 0).any())


def test_many_alternatives_that_any_name_can_begin_are_refused():
    def union(count, **more):
        named = [
            {"type": "object", "properties": {f"k{n}": {"type": "null"}}, "required": [f"k{n}"]}
            for n in range(count)
        ]
        return {"anyOf": [{**each, **more} for each in named]}

    assert compiled(union(32), property_order="free").accepts('{"x":1,"k7":null}')
    with pytest.raises(ConstraintTooComplex, match="more than 32 alternatives at one place"):
        compiled(union(33), property_order="free")
    # What is required comes first, or nothing else may come: they are told apart by the name.
    assert compiled(union(100)).accepts('{"k70":null,"x":1}')
    closed = union(100, additionalProperties=False)
    assert compiled(closed, property_order="free").accepts('{"k70":null}')


def test_each_token_of_an_array_of_many_places_comes_one_nearer():
    places = [{"type": "null"}, {"type": "boolean"}, {"type": "array"}] * 20
    matcher = compiled({"type": "array", "prefixItems": places, "minItems": 10**6}).matcher()
    told = matcher.distance_to_end()
    assert told == len("[" + "null,true,[]," * 20) + 2 * (10**6 - 60)
    for said, token in enumerate(b"[" + b"null,true,[]," * 20 + b"7,7,7"):
        assert matcher.distance_to_end() == told - said
        assert matcher.accept(token)
