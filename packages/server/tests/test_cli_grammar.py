from __future__ import annotations

import json

import pytest

from phloem.server.compiling import BACKENDS

SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
UNIQUE = json.dumps({"properties": {"a": {"type": "array", "uniqueItems": True}}})


def check(phloem, source, *options):
    return phloem("grammar", "check", "-", *options, stdin=source)


def test_a_schema_that_can_be_enforced_is_supported(phloem):
    done = check(phloem, SCHEMA, "--backend", "fsm")
    assert (done.code, done.out.split()) == (0, ["fsm", "supported"])


def test_the_place_and_the_keyword_of_what_is_not_are_told(phloem):
    done = check(phloem, UNIQUE, "--backend", "fsm")
    assert done.code == 1
    assert "'uniqueItems' at /properties/a" in done.out


def test_without_a_backend_all_are_asked(phloem):
    done = check(phloem, SCHEMA, "--json")
    report = json.loads(done.out)
    assert [each["backend"] for each in report["backends"]] == list(BACKENDS)
    assert report["supported"] is True


@pytest.mark.parametrize(
    ("kind", "source"),
    [("regex", "a+\n"), ("choices", '["a", "b"]'), ("ebnf", 'root ::= "a"')],
)
def test_other_kinds_can_be_checked(phloem, kind, source):
    assert check(phloem, source, "--kind", kind).code == 0


def test_options_change_what_is_asked(phloem):
    source = json.dumps({"type": "string", "format": "no-such-format"})
    assert check(phloem, source, "--backend", "fsm").code == 1
    options = ("--options", '{"formats": "annotate"}')
    assert check(phloem, source, "--backend", "fsm", *options).code == 0


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("{", ()),
        ("", ()),
        ("{}", ("--backend", "os:system")),
        ("{}", ("--options", "{")),
        ("{}", ("--options", '{"no": 1}')),
        ("{", ("--kind", "choices")),
        ('"a"', ("--kind", "choices")),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(phloem, source, options):
    assert check(phloem, source, *options).code == 2
