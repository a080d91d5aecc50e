"""Constraints in the fields of a request: every spelling, and one of them at most."""

from __future__ import annotations

import pytest

from phloem.grammar import Constraint
from phloem.server.constraints import (
    ALIASES,
    BUNDLE,
    FIELDS,
    BadConstraint,
    ConstraintRequest,
    constraint_of,
    take_constraint,
)
from phloem.server.jobs import make_jobs

SCHEMA = {"type": "integer"}
BY_SCHEMA = Constraint.json_schema(SCHEMA)


def asked(**fields):
    found = constraint_of(fields)
    return found and (found.field, found.constraint)


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "json_object"}}, Constraint.json_object()),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            BY_SCHEMA,
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            BY_SCHEMA,
        ),
        ({"json_schema": SCHEMA}, BY_SCHEMA),
        ({"json_schema": '{"type": "integer"}'}, BY_SCHEMA),
        ({"json_schema": {}}, Constraint.json_schema({})),
        ({"json_object": True}, Constraint.json_object()),
        ({"regex": "a+"}, Constraint.regex("a+")),
        ({"ebnf": 'root ::= "a"'}, Constraint.ebnf('root ::= "a"')),
        ({"choices": ["a", "b"]}, Constraint.choice(["a", "b"])),
        ({"structural_tag": {"type": "x"}}, Constraint.structural_tag({"type": "x"})),
        ({"guided_json": SCHEMA}, BY_SCHEMA),
        ({"guided_regex": "a+"}, Constraint.regex("a+")),
        ({"guided_choice": ["a"]}, Constraint.choice(["a"])),
        ({"guided_grammar": "g"}, Constraint.ebnf("g")),
        ({"grammar": "g"}, Constraint.ebnf("g")),
        ({"structured_outputs": {"json": SCHEMA}}, BY_SCHEMA),
        ({"structured_outputs": {"json_object": True}}, Constraint.json_object()),
        ({"structured_outputs": {"choice": ["a"], "regex": None}}, Constraint.choice(["a"])),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            Constraint.json_schema(SCHEMA, whitespace="compact"),
        ),
    ],
)
def test_every_spelling_is_the_same_constraint(fields, constraint):
    (name,) = fields
    assert asked(**fields) == (name, constraint)


def test_a_structural_tag_is_the_whole_response_format():
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
    assert asked(response_format=tag) == ("response_format", Constraint.structural_tag(tag))


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"ebnf": None},
        {"json_object": False},
        {"structured_outputs": None},
        {"structured_outputs": {"regex": None}},
        {},
    ],
)
def test_what_is_null_or_off_asks_for_nothing(fields):
    assert asked(**fields) is None


@pytest.mark.parametrize("field", [*FIELDS, *ALIASES, BUNDLE])
def test_what_is_empty_is_refused_by_its_name(field):
    """It would be an output that keeps to nothing."""
    for empty in ("", [], {}):
        if empty == {} and field in ("json_schema", "guided_json", "structural_tag"):
            continue  # a schema that every value satisfies, and what the compiler refuses
        with pytest.raises(BadConstraint) as caught:
            asked(**{field: empty})
        assert caught.value.field == field
        if field in FIELDS:
            with pytest.raises(BadConstraint):
                take_constraint({field: empty})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"regex": "a" * 32_769}, "regex: it has 32769 characters: give at most 32768"),
        ({"guided_grammar": "a" * 32_769}, "guided_grammar: it has 32769 characters"),
        ({"json_schema": {"const": "a" * (1 << 20)}}, "json_schema: it has 1048588 characters"),
        ({"structural_tag": {"type": "a" * (1 << 20)}}, "structural_tag: it has"),
        ({"choices": ["a"] * 10_001}, "choices: there are 10001 choices: give at most 10000"),
        ({"choices": ["a" * (1 << 20)]}, "choices: it has"),
    ],
)
def test_what_would_only_take_time_is_refused_before_it_does(fields, said):
    with pytest.raises(BadConstraint, match=f"^{said}"):
        asked(**fields)


@pytest.mark.parametrize("fields", [{"regex": "a" * 32_768}, {"choices": ["a"] * 10_000}])
def test_what_is_just_within_the_limits_is_taken(fields):
    assert asked(**fields) is not None


def test_an_empty_text_may_be_one_of_the_choices():
    assert asked(choices=[""]) == ("choices", Constraint.choice([""]))


@pytest.mark.parametrize("kind", ["json", "regex", "grammar", "choice", "structural_tag"])
def test_what_is_empty_in_a_bundle_is_refused_too(kind):
    with pytest.raises(BadConstraint, match=f"^{BUNDLE}"):
        asked(structured_outputs={kind: ""})


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": False},
        {"guided_json": False},
        {"structured_outputs": {"json": False}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": False}}},
    ],
)
def test_a_schema_that_nothing_satisfies_is_a_constraint(fields):
    """It is for the compiler to refuse it: false is a schema, and not the absence of one."""
    (name,) = fields
    assert asked(**fields) == (name, Constraint.json_schema(False))
    if name == "json_schema":
        assert take_constraint(dict(fields)).constraint == Constraint.json_schema(False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"regex": 1}, "regex: it is an integer"),
        ({"ebnf": []}, "ebnf: it is a list"),
        ({"choices": {}}, "choices: it is an object"),
        ({"json_object": 1.5}, "json_object: it is a number"),
        ({"json_schema": []}, "json_schema: the schema is a list"),
        ({"response_format": False}, "response_format is a boolean"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 0}}},
            "response_format: the schema is an integer",
        ),
        ({"ebnf": "\0"}, r"ebnf: the constraint \(ebnf\) contains a NUL character"),
    ],
)
def test_a_wrong_type_is_named_in_a_sentence(fields, said):
    with pytest.raises(BadConstraint, match=f"^{said}"):
        constraint_of(fields)


def test_two_constraints_are_refused_and_both_are_named():
    with pytest.raises(BadConstraint, match="regex was given beside response_format") as caught:
        asked(response_format={"type": "json_object"}, regex="a")
    assert caught.value.field == "regex"
    with pytest.raises(BadConstraint, match="both json_schema and regex"):
        asked(structured_outputs={"json": {}, "regex": "a"})
    assert asked(response_format={"type": "text"}, regex="a")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {}},
        {"response_format": "json"},
        {"response_format": {"type": "yaml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"json_schema": "{"},
        {"json_schema": "\0"},
        {"json_schema": []},
        {"json_schema": 0},
        {"json_object": 1},
        {"json_object": 0},
        {"response_format": False},
        {"response_format": []},
        {"response_format": 0},
        {"regex": ["a"]},
        {"regex": False},
        {"regex": 0},
        {"ebnf": []},
        {"choices": False},
        {"choices": {}},
        {"structural_tag": False},
        {"structural_tag": []},
        {"guided_regex": False},
        {"structured_outputs": False},
        {"structured_outputs": {"regex": False}},
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": "nope"}},
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": 0}},
        {"regex": "\0"},
        {"ebnf": 5},
        {"choices": []},
        {"choices": "ab"},
        {"choices": [1]},
        {"structural_tag": "{"},
        {"structured_outputs": 5},
        {"structured_outputs": {"whitespace_pattern": "x"}},
        {"grammar_options": {"whitespace": "any"}},
        {"grammar_options": {"steer": True}},
    ],
)
def test_what_is_malformed_is_refused_by_its_field(fields):
    (name,) = fields
    with pytest.raises(BadConstraint, match=name) as caught:
        constraint_of(fields, fields.get("grammar_options"))
    assert caught.value.field == name


def test_options_say_how_a_constraint_is_meant_and_followed():
    options = {
        "whitespace": "compact",
        "property_order": "free",
        "formats": "annotate",
        "jump_forward": False,
        "steering": True,
    }
    meant = Constraint.json_schema(
        SCHEMA, whitespace="compact", property_order="free", formats="annotate"
    )
    wanted = ConstraintRequest(meant, "json_schema", False, True)
    assert constraint_of({"json_schema": SCHEMA}, options) == wanted
    assert constraint_of({}, options) is None


def test_a_request_goes_before_the_engine_in_how_whitespace_is_meant():
    by_engine = constraint_of({"json_object": True}, None, "compact")
    assert by_engine.constraint.whitespace == "compact"
    by_request = constraint_of({"json_object": True}, {"whitespace": "bounded"}, "compact")
    assert by_request.constraint.whitespace == "bounded"


def test_a_constraint_is_taken_out_of_the_sampling_parameters():
    fields = {"regex": "a", "temperature": 0.5, "grammar_options": {"steering": False}}
    assert take_constraint(fields).constraint == Constraint.regex("a")
    assert fields == {"temperature": 0.5}


def test_jobs_carry_the_constraint_of_their_prompt(byte_level):
    params = [{"regex": "a", "n": 2}, {"temperature": 0}]
    jobs, _ = make_jobs(byte_level, ["x", "y"], params, None, ())
    assert [job.constraint and job.constraint.constraint.source for job in jobs] == ["a", "a", None]
