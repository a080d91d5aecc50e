"""The ready-made constraints: what they allow, and above all what they never do."""

from __future__ import annotations

import datetime
import json
import random
import re
import shlex
import sqlite3

import jsonschema
import numpy as np
import pytest
from grammar_vocabularies import END, SPECIAL, toy_vocabulary

from phloem.grammar import Constraint, GrammarError, UnsupportedConstraint, create_backend
from phloem.grammar.shipped import (
    Option,
    command_line,
    international_phone_number,
    iso_date,
    iso_date_time,
    select_statement,
    tagged_tool_calls,
    tool_call,
    tool_calls,
    us_phone_number,
)
from phloem.grammar.shipped.command_line import WORD

VOCABULARY = toy_vocabulary()
BACKEND = create_backend("auto", VOCABULARY)
TABLES = {"users": ["id", "name"], "orders": ["id", "user_id", "total"]}


def spoken(grammar, rng: random.Random, longest: int, closing: bytes = b"") -> tuple[str, bool]:
    """A text by random tokens, partial to `closing` ones, and whether it was finished."""
    matcher, text = grammar.matcher(), b""
    mask = np.zeros((1, VOCABULARY.words), np.int32)
    for _ in range(longest):
        matcher.fill_mask(mask, 0)
        bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
        legal = np.flatnonzero(bits).tolist()
        if END in legal and (len(legal) == 1 or rng.random() < 0.2):
            return text.decode(), True
        legal = [token for token in legal if token != END]
        closers = [token for token in legal if token < 256 and token in closing]
        plain = [token for token in legal if VOCABULARY.tokens[token].isascii()]
        token = rng.choice(closers if closers and rng.random() < 0.3 else plain or legal)
        assert matcher.accept(token)
        text += VOCABULARY.tokens[token]
    return text.decode(errors="ignore"), False


@pytest.fixture(scope="module", name="select")
def _select():
    pytest.importorskip("xgrammar")
    return BACKEND.compile(select_statement(TABLES))


class TestSelect:
    @pytest.mark.parametrize(
        "statement",
        [
            "SELECT * FROM users",
            'SELECT name, COUNT(*) AS "how many" FROM users GROUP BY name HAVING COUNT(*) > 1',
            "SELECT DISTINCT users.name FROM users LEFT JOIN orders ON users.id = orders.user_id "
            "WHERE total BETWEEN 1 AND -2.5 AND name LIKE '%it''s; DROP TABLE users%' "
            "ORDER BY total DESC, name LIMIT 10 OFFSET 5",
            "SELECT id FROM users WHERE id NOT IN (SELECT user_id FROM orders) UNION ALL "
            "SELECT id FROM orders WHERE NOT (total IS NOT NULL)",
        ],
    )
    def test_queries_are_written(self, select, statement):
        assert select.accepts(statement)
        assert _executed(statement) == ""

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM users",
            "UPDATE users SET name = 'x'",
            "INSERT INTO users SELECT * FROM users",
            "DROP TABLE users",
            "SELECT * INTO other FROM users",
            "SELECT * FROM users; DROP TABLE users",
            "SELECT * FROM users WHERE name = 'x'; DELETE FROM users --'",
            "SELECT * FROM users -- comment",
            "SELECT 1 --1 FROM users",
            "SELECT * FROM users FOR UPDATE",
            "WITH x AS (DELETE FROM users RETURNING *) SELECT * FROM x",
            "SELECT setval('s', 1) FROM users",
            "SELECT load_extension('x') FROM users",
            "SELECT * FROM users WHERE name = '\\'; DELETE FROM users'",
            "SELECT secret FROM users",
            "SELECT * FROM passwords",
            "PRAGMA writable_schema = 1",
            "EXPLAIN DELETE FROM users",
        ],
    )
    def test_nothing_else_can_be_said(self, select, statement):
        assert not select.accepts(statement)

    def test_no_statement_that_changes_data_can_be_produced(self, select):
        rng = random.Random(1)
        finished = 0
        for _ in range(150):
            text, ended = spoken(select, rng, 300, closing=b"')\"F")
            outside = re.sub(r"'(?:[^']|'')*('|$)|\"[^\"]*(\"|$)", "", text)
            assert not re.search(
                r"[;\\#`]|--|/\*|\b(INTO|INSERT|UPDATE|DELETE|DROP|ALTER|CREATE|REPLACE|MERGE|CALL"
                r"|EXEC|GRANT|ATTACH|PRAGMA|TRUNCATE|FOR|WITH|SET)\b",
                outside,
                re.IGNORECASE,
            ), text
            if ended:
                finished += 1
                problem = _executed(text)
                assert "syntax error" not in problem, (text, problem)
                assert "not authorized" not in problem, (text, problem)
        assert finished >= 50

    def test_tables_are_given_by_plain_names(self):
        for tables in ({}, {"t": []}, {"t; DROP": ["a"]}, {"t": ['a"']}):
            with pytest.raises(GrammarError):
                select_statement(tables)


def _executed(statement: str) -> str:
    """What SQLite says against a statement, where anything but reading is forbidden."""
    connection = sqlite3.connect(":memory:")
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    harmless = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
    connection.set_authorizer(
        lambda action, *_: sqlite3.SQLITE_OK if action in harmless else sqlite3.SQLITE_DENY
    )
    try:
        connection.execute(statement).fetchall()
    except sqlite3.Error as error:
        return str(error)
    finally:
        connection.close()
    return ""


def test_phone_numbers():
    grammar = BACKEND.compile(international_phone_number())
    assert grammar.accepts("+4915112345678")
    assert not any(grammar.accepts(text) for text in ("+0123456789", "4915112345678", "+1" * 9))
    grammar = BACKEND.compile(us_phone_number())
    assert grammar.accepts("(212) 555-0123")
    assert not any(grammar.accepts(text) for text in ("(112) 555-0123", "212-555-0123", "(212)"))


def test_dates_are_those_of_the_calendar():
    grammar = BACKEND.compile(iso_date())
    day, end = datetime.date(1899, 1, 1), datetime.date(1905, 1, 1)
    while day < end:
        assert grammar.accepts(day.isoformat())
        day += datetime.timedelta(1)
    for year in (1900, 1999, 2000, 2001, 2004, 2100, 2400, 9999):
        for month in range(14):
            for day_number in (0, 28, 29, 30, 31, 32):
                text = f"{year}-{month:02}-{day_number:02}"
                assert grammar.accepts(text) == _is_date(text), text


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def test_dates_with_times():
    grammar = BACKEND.compile(iso_date_time())
    assert grammar.accepts("2024-02-29T23:59:59Z")
    assert grammar.accepts("2023-12-31T00:00:00+05:30")
    for text in ("2023-02-29T00:00:00Z", "2024-02-29T24:00:00Z", "2024-02-29T00:00:00"):
        assert not grammar.accepts(text)


class TestCommandLine:
    CONSTRAINT = command_line(
        "git",
        [
            Option("log", required=True),
            Option("-n", "[1-9][0-9]{0,2}"),
            Option("--format", "short|full"),
            Option("--author", WORD),
            Option("--", required=True),
        ],
        (0, 2),
    )

    def test_the_template_is_followed(self):
        grammar = BACKEND.compile(self.CONSTRAINT)
        for text in ("git log --", "git log -n 5 --format short -- a/b.py 'c d'"):
            assert grammar.accepts(text)
        for text in (
            "git push --",
            "git log -n 0 --",
            "git log --format oneline --",
            "git log -- a b c",
            "git log -- -p",
            "git log -- a;rm",
            "git log -- $(rm)",
            "git log -- a|b",
            "git log -- 'a",
            "git log -- a\nrm",
            "git log -- `rm`",
        ):
            assert not grammar.accepts(text)

    def test_a_shell_reads_nothing_but_words(self):
        grammar, rng = BACKEND.compile(self.CONSTRAINT), random.Random(2)
        for _ in range(60):
            text, ended = spoken(grammar, rng, 60, closing=b"'- ")
            if ended:
                words = shlex.split(text)
                assert words[:2] == ["git", "log"]
                outside = re.sub("'[^']*'", "", text)
                assert not set(outside) & set(";&|<>$`\\\"'()*?[]{}!#~\n")

    def test_what_is_no_word_is_refused(self):
        for program in ("git log", "a;b", ""):
            with pytest.raises(GrammarError):
                command_line(program, [], (0, 0))
        with pytest.raises(GrammarError):
            command_line("ls", [], (2, 1))


TOOLS = [
    {"type": "function", "function": {"name": "now"}},
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {
                "type": "object",
                "properties": {
                    "near": {"$ref": "#/$defs/Place"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["near"],
                "additionalProperties": False,
                "$defs": {
                    "Place": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}, "$ref": {"enum": ["#/x"]}},
                        "required": ["city"],
                        "additionalProperties": False,
                    }
                },
            },
        },
    },
]
NOW = '{"name": "now", "arguments": {}}'
FIND = '{"name": "find", "arguments": {"near": {"city": "Oslo"}, "limit": 3}}'
WRONG = (
    '{"name": "now", "arguments": {"near": {"city": "Oslo"}}}',
    '{"name": "find", "arguments": {"near": {}}}',
    '{"name": "find", "arguments": {"near": {"city": "Oslo"}, "limit": 10}}',
    '{"name": "other", "arguments": {}}',
)


def test_one_call_is_of_a_declared_tool_with_its_arguments():
    grammar = BACKEND.compile(tool_call(TOOLS))
    assert grammar.accepts(NOW)
    assert grammar.accepts(FIND)
    assert not any(grammar.accepts(text) for text in WRONG)
    named = BACKEND.compile(tool_call(TOOLS, "find"))
    assert named.accepts(FIND)
    assert not named.accepts(NOW)
    with pytest.raises(GrammarError):
        tool_call(TOOLS, "other")


def test_parallel_calls_are_a_list():
    constraint = tool_calls(TOOLS, at_most=2)
    grammar = BACKEND.compile(constraint)
    assert grammar.accepts(f"[{FIND}]")
    assert grammar.accepts(f"[{NOW}, {FIND}]")
    assert not grammar.accepts("[]")
    assert not grammar.accepts(f"[{NOW}, {NOW}, {NOW}]")
    assert not any(grammar.accepts(f"[{text}]") for text in WRONG)
    # The references were moved along with the parameters.
    jsonschema.Draft202012Validator(json.loads(constraint.source)).validate(json.loads(f"[{FIND}]"))


DIGIT = {"type": "integer", "minimum": 1, "maximum": 3}


@pytest.mark.parametrize(
    "parameters",
    [
        {"$id": "http://x/", "ref": "#/definitions/i"},
        {"$id": "http://x/f", "ref": "http://x/f#/definitions/i"},
        {"$id": "f.json", "ref": "f.json#/definitions/i"},
        {"ref": "#/definitions/i"},
        {"ref": "#digit"},
        {"$id": "http://x/", "ref": "#digit"},
        {"ref": "http://y/#/allOf/0"},
        {"ref": "#/properties/a~1b%22"},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "http://x/",
            "ref": "#/definitions/i",
        },
    ],
)
def test_references_of_parameters_lead_where_they_did(parameters):
    """Of one tool as of several, of which two go by one name."""
    names = dict(parameters)
    ref = names.pop("ref")
    named = "id" if "$schema" in names else "$id"
    parameters = names | {
        "type": "object",
        "properties": {
            "x": {"$ref": ref, "description": "a digit"},
            'a/b"': DIGIT,
            "other": {named: "http://y/", "allOf": [DIGIT]},
            "next": {"$ref": "#"},
            "values": {"enum": [{"$ref": "#/x"}]},
        },
        "definitions": {"i": DIGIT if named == "id" else {"$anchor": "digit", **DIGIT}},
        "additionalProperties": False,
    }
    own = BACKEND.compile(Constraint.json_schema(parameters))
    legal = ('{"x": 2}', '{"next": {"x": 1}}', '{"values": {"$ref": "#/x"}}', '{"other": 3}')
    wrong = ('{"x": 4}', '{"next": {"x": "1"}}', '{"next": [{"name": "f"}]}', '{"values": 1}')
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name in ("f", "g")
    ]
    for count in (1, 2):
        calls = BACKEND.compile(tool_calls(tools[:count]))
        for name in ("f", "g")[:count]:
            for text in (*legal, *wrong):
                call = f'[{{"name": "{name}", "arguments": {text}}}]'
                assert own.accepts(text) is calls.accepts(call) is (text in legal)


@pytest.mark.parametrize(
    "parameters",
    [
        {
            "$ref": "#/$defs/o",
            "$defs": {"o": {"type": "object", "required": ["a"]}},
            "minProperties": 2,
        },
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/o",
            "definitions": {"o": {"type": "object", "required": ["a"]}},
            "minProperties": 9,
        },
    ],
)
def test_what_stands_beside_a_reference_means_what_it_did(parameters):
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    calls = BACKEND.compile(tool_calls(tools))
    own = BACKEND.compile(Constraint.json_schema(parameters))
    for text in ("{}", '{"a": 1}', '{"a": 1, "b": 2}', '{"b": 1, "c": 2}'):
        assert own.accepts(text) is calls.accepts(f'[{{"name": "f", "arguments": {text}}}]')
    assert own.accepts('{"a": 1, "b": 2}')
    assert not own.accepts("{}")


@pytest.mark.parametrize("reference", ["#/items", "#/nope", "http://z/", "#no"])
def test_a_reference_to_nothing_is_refused_where_it_stands(reference):
    parameters = {"type": "object", "properties": {"a": {"$ref": reference}}}
    with pytest.raises(UnsupportedConstraint) as caught:
        tool_calls([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    assert caught.value.pointer == "/items/properties/arguments/properties/a"
    assert reference in str(caught.value)


def test_parameters_that_are_no_json_are_refused():
    endless: dict = {"type": "object"}
    endless["properties"] = {"a": endless}
    for parameters in (endless, {"type": "object", "default": {1, 2}}):
        with pytest.raises(GrammarError, match="not JSON"):
            tool_calls([{"type": "function", "function": {"name": "f", "parameters": parameters}}])


def test_tagged_calls_stand_in_free_text():
    grammar = BACKEND.compile(tagged_tool_calls(TOOLS))
    call = f"<tool_call>\n{FIND}\n</tool_call>"
    for text in ("", "No call is needed.", call, f"Wait:\n{call}\n{call} done", "a <tool_call b"):
        assert grammar.accepts(text)
    assert not grammar.accepts("<tool_call>\n")
    assert not any(grammar.accepts(f"<tool_call>\n{text}\n</tool_call>") for text in WRONG)


def test_tagged_calls_may_be_required_and_single():
    grammar = BACKEND.compile(tagged_tool_calls(TOOLS, required=True, parallel=False))
    call = f"<tool_call>\n{NOW}\n</tool_call>"
    assert grammar.accepts(call)
    assert grammar.accepts(f"Let me see. {call}")
    assert not any(grammar.accepts(text) for text in ("", "No.", f"{call}x", call + call))


def test_a_special_token_does_not_end_a_call():
    matcher = BACKEND.compile(tagged_tool_calls(TOOLS)).matcher()
    text = b'<tool_call>\n{"name": "find", "arguments": {"near": {"city": "hello'
    assert all(matcher.accept(byte) for byte in text)
    assert not matcher.accept(SPECIAL)
    assert not matcher.accept(END)
    assert not matcher.is_complete
