"""Sets of numbers, by brute force and against exact decimals."""

import json
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.grammar import UnsupportedConstraint
from phloem.grammar.json_schema import load_schema, normalize

NOTATIONS = ["0", "-0", "0.0", "1.0", "-1.00", "3.5", "-0.001", "10", "99.99", "1e16", "-2.5E+17"]
NO_NUMBERS = ["", "-", "+1", "01", "-01", "1.", ".5", "1e", "0x1", "1 ", "--1", "1.5.5", "\u0661"]


def numbers_of(schema):
    return normalize(schema).nodes[0].numbers


def allows(dfa, text):
    return dfa is not None and dfa.accepts(text.encode())


BOUNDS = [
    {"minimum": 3},
    {"minimum": -123, "maximum": 42},
    {"exclusiveMinimum": 3},
    {"exclusiveMaximum": -7, "minimum": -100},
    {"minimum": 0, "exclusiveMaximum": 10},
    {"minimum": -0.5, "maximum": 9.5},
    {"maximum": 100},
    {"minimum": 99, "maximum": 101},
]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_integers_from_minus_200_to_200_against_their_bounds(bounds):
    dfa = numbers_of({"type": "integer", **bounds})
    for number in range(-200, 201):
        legal = bounds.get("minimum", -999) <= number <= bounds.get("maximum", 999) and bounds.get(
            "exclusiveMinimum", -999
        ) < number < bounds.get("exclusiveMaximum", 999)
        assert allows(dfa, str(number)) == legal, number
        assert allows(dfa, f"{number}.0") == legal, number
        for wrong in (f"0{number}", f"-0{abs(number)}", f"{number}.5", f"+{number}", f"{number}."):
            assert not allows(dfa, wrong), wrong


@pytest.mark.parametrize("multiple", [1, 2, 3, 7, 10, 12, 0.5, 1.5, 0.25, 0.01, 2.5])
def test_multiples_from_minus_200_to_200(multiple):
    dfa = numbers_of({"multipleOf": multiple})
    whole = numbers_of({"type": "integer", "multipleOf": multiple})
    for hundredths in range(-20_000, 20_001, 13):
        text = str(Decimal(hundredths) / 100)
        value = Fraction(hundredths, 100)
        legal = value % Fraction(str(multiple)) == 0
        assert allows(dfa, text) == legal, text
        assert allows(whole, text) == (legal and value.denominator == 1), text


def test_bounds_hold_for_texts_with_an_exponent():
    dfa = numbers_of({"minimum": -1e-7, "exclusiveMaximum": 2.5e16})
    for text in ("1e-07", "-1e-7", "-9.99E-8", "2.4e+16", "1.0e16", "5e-300", "-3e-09"):
        assert allows(dfa, text), text
    for text in ("-1.01e-07", "2.5e16", "2.51E16", "1e17", "-1e16", "1e+300", "-5e-7", "-1e999"):
        assert not allows(dfa, text), text


decimals = st.decimals(
    allow_nan=False, allow_infinity=False, places=4, min_value=-(10**6), max_value=10**6
)
floats = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=50, deadline=None)
@given(bound=decimals | floats, value=decimals | floats, keyword=st.sampled_from(["min", "max"]))
def test_bounds_agree_with_exact_comparison(bound, value, keyword):
    def text_of(number):
        return repr(number) if isinstance(number, float) else str(number.normalize() + 0)

    text = text_of(value)
    if "E" in text:
        text = f"{value:f}"
    exact, limit = Decimal(text), Decimal(text_of(bound))
    dfa = numbers_of(load_schema(json.dumps({f"{keyword}imum": float(bound)})))
    limit = Decimal(repr(float(bound)))
    legal = exact >= limit if keyword == "min" else exact <= limit
    assert allows(dfa, text) == legal


@settings(max_examples=50, deadline=None)
@given(values=st.lists(floats | st.integers(-(10**18), 10**18), min_size=1, max_size=5))
def test_an_enum_holds_its_numbers_as_python_writes_them_and_no_neighbours(values):
    dfa = numbers_of({"enum": values})
    for value in values:
        assert allows(dfa, json.dumps(value))
        for other in (value + 1, value * 3 + 7):
            if other not in values and abs(other) < 1e300:
                assert not allows(dfa, json.dumps(other))


def test_integers_are_not_written_with_a_fraction_and_an_exponent():
    for schema in ({"type": "integer"}, {"type": "integer", "minimum": 0}):
        dfa = numbers_of(schema)
        assert all(allows(dfa, text) for text in ("4", "4.0", "4e16", "1e+308"))
        assert not any(allows(dfa, text) for text in ("4.5", "4.5e16", "4.0e16", "1e309", "4e0"))
    assert not allows(numbers_of({"not": {"type": "integer"}}), "4.5e16")
    assert allows(numbers_of({"minimum": 0}), "4.5e16")


def test_what_printers_write_is_legal_where_any_number_is():
    dfa = numbers_of({"type": "number"})
    largest = "1.7976931348623157e+308"
    for text in (*NOTATIONS, largest, "5e-324", "1E9", "0e0", "0.000000e+00", "12.5e-3", "100e2"):
        assert allows(dfa, text), text
    for text in NO_NUMBERS:
        assert not allows(dfa, text), text


@pytest.mark.parametrize("schema", [{"type": "number"}, {"minimum": -1e300}, {"not": {"const": 3}}])
def test_no_number_reads_as_an_infinity_or_by_mistake_as_zero(schema):
    dfa = numbers_of(schema)
    for text in ("1e309", "1.7976931348623159e308", "9.9e308", "4.1e+0326145812", "1e-325"):
        assert not allows(dfa, text), text
    assert allows(dfa, "9.9e+299")


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"type": "integer"}, ["1.00", "1.000", "-0.00"]),
        ({"type": "integer", "minimum": 0, "multipleOf": 7}, ["7.00", "7" * 81]),
        ({"type": "number"}, ["1e007", "1e-001", "0." + "3" * 25, "1" * 81]),
        ({"type": "number", "exclusiveMinimum": 0}, ["1e-001", "0." + "3" * 25, "1" * 81]),
        ({"multipleOf": 0.01}, ["1.25" + "0" * 23, "1" * 81]),
        ({"multipleOf": 97}, ["97.00", "97" + "0" * 79]),
        ({"enum": [1, 2.5]}, ["1" + ".0" * 30, "2.5" + "0" * 30]),
    ],
    ids=str,
)
def test_zeros_and_digits_have_an_end(schema, texts):
    dfa = numbers_of(schema)
    assert dfa.is_finite
    assert not any(allows(dfa, text) for text in texts)


any_number = numbers_of({"type": "number"})
no_integer = numbers_of({"type": "number", "not": {"type": "integer"}})
any_integer = numbers_of({"type": "integer"})
from_a_bound = numbers_of({"minimum": -(2**260)})


@given(value=floats | st.integers(-(2**256), 2**256))
def test_what_python_writes_is_legal(value):
    text = json.dumps(value)
    assert allows(any_number, text)
    assert allows(from_a_bound, text) == (value >= -(2**260))
    if isinstance(value, int):
        assert allows(any_integer, text)


def test_limits_of_digits_grow_with_the_numbers_of_a_schema():
    large, small = 10**99 + 1, Decimal("0.1234567890123456789012345678901234567891")
    long = Decimal("98765432109876543210.25")
    dfa = numbers_of({"enum": [{"x": 1}, large, small, long, 7]})
    assert all(allows(dfa, str(each)) for each in (large, small, long, 7, "7.0"))
    assert allows(numbers_of({"const": long}), str(long))
    above = numbers_of({"type": "integer", "minimum": large})
    assert allows(above, str(large))
    assert not allows(above, str(large - 1))


def test_integers_with_a_point_are_read_exactly():
    threes = numbers_of({"type": "integer", "multipleOf": 3})
    for number in (9007199254740990, 9007199254740993, 9999999999999999, 3709996178662660236):
        assert allows(threes, str(number))
        assert allows(threes, f"{number}.0") == (number == 9007199254740990)


@given(
    digits=st.integers(0, 10**17),
    places=st.integers(1, 24),
    near=st.sampled_from(["", "0" * 14, "9" * 15, "0" * 20, "9" * 16]),
)
def test_what_is_no_integer_reads_as_none(digits, places, near):
    text = f"{digits}.{near}{'123456789012345678901234'[:places]}"
    if allows(no_integer, text):
        assert not float(text).is_integer()


@given(value=floats)
def test_what_python_writes_of_a_float_that_is_no_integer_is_legal(value):
    text = json.dumps(value)
    assert (
        allows(no_integer, text) == (not value.is_integer()) or "0" * 12 in text or "9" * 12 in text
    )


@settings(max_examples=40, deadline=None)
@given(limit=st.floats(-1e15, 1e15), side=st.sampled_from([-1, 1]), places=st.integers(15, 30))
def test_strict_bounds_hold_for_who_reads_floats(limit, side, places):
    dfa = numbers_of({"exclusiveMaximum" if side < 0 else "exclusiveMinimum": limit})
    following = math.nextafter(limit, side * math.inf)
    assert allows(dfa, json.dumps(following))
    for text in (f"{limit:.24f}", f"{Decimal(limit) + side * Decimal(10) ** -places:.{places}f}"):
        if allows(dfa, text):
            assert (float(text) - limit) * side > 0


def test_a_multiple_that_no_small_automaton_can_count_is_refused_by_name():
    with pytest.raises(UnsupportedConstraint) as caught:
        numbers_of({"properties": {"a": {"multipleOf": 0.123456789}}})
    assert (caught.value.pointer, caught.value.keyword) == ("/properties/a", "multipleOf")


def test_exact_numbers_are_kept_where_floats_would_round():
    dfa = numbers_of(load_schema('{"minimum": 9007199254740993, "maximum": 9007199254740993.0}'))
    assert allows(dfa, "9007199254740993")
    assert not allows(dfa, "9007199254740992")
