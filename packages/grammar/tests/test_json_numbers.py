"""Sets of numbers, by brute force and against exact decimals."""

import json
from decimal import Decimal, localcontext
from fractions import Fraction

import jsonschema
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
@given(bound=decimals | floats, value=decimals, keyword=st.sampled_from(["min", "max"]))
def test_bounds_agree_with_exact_comparison(bound, value, keyword):
    text = f"{value:f}"
    exact = Decimal(text)
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
    if isinstance(value, int):
        assert allows(any_integer, text)


def rounded(value):
    """To 15 digits, within what floats tell apart."""
    return float(f"{value:.14e}") if abs(value) > 1e-306 else 0.0


@given(value=floats.filter(lambda value: abs(value) < 1e308).map(rounded))
def test_what_python_writes_of_15_digits_is_legal_where_it_matters_which_number_it_is(value):
    text = json.dumps(value)
    assert allows(from_a_bound, text) == (value >= -(2**260))
    assert allows(no_integer, text) == (not value.is_integer())


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
    assert allows(any_integer, "9007199254740991.0")
    assert not allows(any_integer, "9007199254740993.0")
    assert allows(any_integer, "9007199254740994.0")


AS_FLOATS = [
    {"const": 9007199254740993},
    {"multipleOf": 3},
    {"minimum": 2, "multipleOf": 3},
    {"type": "integer", "minimum": 9007199254740993},
    {"type": "integer", "maximum": 9007199254740993},
    {"type": "integer", "exclusiveMinimum": 9007199254740992},
    {"maximum": 2**63 - 1},
    {"minimum": 2**63 + 1},
    {"maximum": 12345678901234600001},
    {"const": 10**23},
    {"enum": [12345678901234567000, 12345678901234600000]},
    {"not": {"const": 10**23}},
    {"not": {"type": "integer"}},
    {"not": {"const": 3}},
    {"not": {"const": 5e-324}},
    {"not": {"maximum": 3}},
    {"not": {"minimum": 3}},
    {"oneOf": [{"maximum": 3}, {"minimum": 3}]},
    {"oneOf": [{"multipleOf": 2}, {"maximum": 9007199254740993}]},
    {"not": {"enum": [0.1]}},
    {"not": {"enum": [0.30000000000000004, 7]}},
    {"not": {"multipleOf": 1}},
    {"not": {"multipleOf": 0.25}},
    {"if": {"type": "integer"}, "then": {"minimum": 10}},
    {"exclusiveMaximum": 0.30000000000000004},
    {"exclusiveMinimum": 1e16},
    {"anyOf": [{"enum": [98765432109876543210]}, {"not": {"type": "integer"}}]},
    {"enum": [2**60 + number for number in range(1, 50)]},
]
LIMITS = [3, 0.1, 2**53, 2**53 + 1, 2**63 - 1, 12345678901234600001, 10**23, 0.3, 10, 1e16, 5.5]
REVIEWED = [
    "9007199254740993.0 8819567661472309549398558.0 12345678901234567.8 3.0000000000000000000001",
    "2.9999999999999999999 9007199254740992.0 9223372036854775807.0 9.223372036854775808e18",
    "1.2345678901234567e19 1.23456789012346e19 1e23 1e+23 9.2233720368547758e18 4.94e-324 5e-324",
    "0.1000000000000000055 0.3000000000000000444 98765432109876543210.25 5.00000000000000000001",
    "1152921504606846977.0 1.152921504606847e18 0.99999999999999999 9.9999999999999999e-1",
]


@st.composite
def texts_near_limits(draw):
    limit = Decimal(repr(draw(st.sampled_from(LIMITS))))
    with localcontext() as context:
        context.prec = 60
        step = Decimal(10) ** draw(st.integers(-26, 2))
        value = draw(st.sampled_from([-1, 1])) * limit + draw(st.sampled_from([-1, 0, 1])) * step
        places = draw(st.integers(1, 26))
        plain = draw(st.booleans())
        return f"{value:.{places}f}" if plain else f"{value:.{min(places, 17)}e}"


@pytest.mark.parametrize("schema", AS_FLOATS, ids=str)
def test_what_is_legal_is_valid_for_who_reads_floats(schema):
    dfa = numbers_of({"type": "number", **schema})
    validator = jsonschema.Draft7Validator(schema)

    @settings(max_examples=60, deadline=None, database=None)
    @given(text=texts_near_limits())
    def check(text):
        if allows(dfa, text):
            assert validator.is_valid(json.loads(text)), text

    for text in " ".join(REVIEWED).split():
        check.hypothesis.inner_test(text)
    check()


def test_the_numbers_of_a_schema_are_legal_as_python_writes_them_whatever_their_digits():
    for value in (0.30000000000000004, 1.0000000000000002e16, 5e-324, 1e23, 1e16):
        assert allows(numbers_of({"enum": [value, 1]}), json.dumps(value))
        text = json.dumps({"enum": [value, 1]})
        assert allows(numbers_of(load_schema(text)), json.dumps(value))


def test_draft_4_tells_integers_by_their_text():
    four = {"$schema": "http://json-schema.org/draft-04/schema#"}
    for schema in ({"type": "integer"}, {"type": "integer", "minimum": 1}):
        dfa = numbers_of({**four, **schema})
        assert allows(dfa, "1")
        assert not any(allows(dfa, text) for text in ("1.0", "1e16", "1.5"))
    assert allows(numbers_of({**four, "not": {"type": "integer"}}), "1.0")
    assert allows(numbers_of({**four, "enum": [1]}), "1.0")
    assert allows(numbers_of({"type": "integer"}), "1.0")


def test_a_multiple_that_no_small_automaton_can_count_is_refused_by_name():
    with pytest.raises(UnsupportedConstraint) as caught:
        numbers_of({"properties": {"a": {"multipleOf": 0.123456789}}})
    assert (caught.value.pointer, caught.value.keyword) == ("/properties/a", "multipleOf")


def test_exact_numbers_are_kept_where_floats_would_round():
    dfa = numbers_of(load_schema('{"minimum": 9007199254740993, "maximum": 9007199254740993.0}'))
    assert allows(dfa, "9007199254740993")
    assert not allows(dfa, "9007199254740992")
