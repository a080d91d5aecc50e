"""What models write beside what their notation says: it means what it was meant to, or is text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.server.parsers import CallArguments, CallBegin, CallEnd, Content, PlainText, Reasoning
from phloem.server.parsers.constrained import CallList, NamedCall
from phloem.server.parsers.reading import is_object
from phloem.server.parsers.registry import REASONING_PARSERS, TOOL_CALL_PARSERS, Notation

NOTATIONS = [Notation(c, r) for c in TOOL_CALL_PARSERS[1:] for r in REASONING_PARSERS[1:]]
MARKS = sorted({mark for notation in NOTATIONS for mark in notation.marks})
FRAGMENTS = (
    *MARKS,
    *("f", " to=functions.f", "to=f", "analysis", "final", "commentary", "json", "function"),
    *('"name"', '"arguments"', '"f"', '"\\ud800"', "```json\n", "\\", "NaN", "null", "true"),
    *'{}[](),:;="' + " \n1",
    '[{"name":"f","arguments":',
)
TEXTS = st.text() | st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join)
INNER = (None, CallList, PlainText, lambda: NamedCall("f"))


def parts_of(parser, *pieces):
    return [part for piece in pieces for part in parser.feed(piece)] + parser.end()


def said_in(parts):
    """Names with arguments of calls that are whole, reasoning, and content."""
    ended = {part.index for part in parts if isinstance(part, CallEnd)}
    texts = dict.fromkeys(ended, "")
    for part in parts:
        if isinstance(part, CallArguments) and part.index in ended:
            texts[part.index] += part.text
    calls = [
        (part.name, json.loads(texts[part.index]))
        for part in parts
        if isinstance(part, CallBegin) and part.index in ended
    ]
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return calls, thought, "".join(part.text for part in parts if isinstance(part, Content))


def read(notation, text, inner=None):
    """What is in a text, whole and character by character."""
    tools = () if inner else ("f", "g")
    whole = said_in(parts_of(notation.parser("", tools, inner), text))
    assert said_in(parts_of(notation.parser("", tools, inner), *text)) == whole
    return whole


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.sampled_from(NOTATIONS), st.sampled_from(INNER), st.booleans(), st.booleans())
def test_no_text_breaks_a_parser(text, notation, inner, separate, opened):
    prompt = "<think>" if opened else ""
    for pieces in ([text], text):
        parts = parts_of(notation.parser(prompt, ("f",), inner, separate=separate), *pieces)
        json.dumps([part.name for part in parts if isinstance(part, CallBegin)]).encode()
    for made in (CallList(), NamedCall("f")):
        parts_of(made, text)


HERMES = [
    ('{"arguments": "{\\"a\\": 1}", "name": "f"}', [("f", {"a": 1})]),
    ('{"name": "f", "arguments": null}', [("f", {})]),
    ('{"arguments": null, "name": "f"}', [("f", {})]),
    ('{"name": "f", "arguments": ""}', [("f", {})]),
    ('{"name": "f", "arguments": {"a": 1}, "more": [1, {"x": "}"}], "id": 3}', [("f", {"a": 1})]),
    ('{"arguments": {"a": 1}, "name": "f", "more": -1.5e3}', [("f", {"a": 1})]),
    ('{"id": 7, "name": "f", "arguments": {}}', [("f", {})]),
    ('{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}', [("f", {}), ("g", {})]),
    ('[{"name": "f", "arguments": {}}, {"name": "g"}]', [("f", {}), ("g", {})]),
]


@pytest.mark.parametrize(("body", "calls"), HERMES)
def test_an_object_between_tags_may_be_written_in_many_ways(body, calls):
    text = f"Look. <tool_call>\n{body}\n</tool_call>Done."
    assert read(Notation("hermes"), text) == (calls, "", "Look. Done.")


def test_a_key_that_no_call_has_makes_an_object_text():
    text = '<tool_call>{"thought": 1, "name": "f", "arguments": {}}</tool_call>'
    assert read(Notation("hermes"), text) == ([], "", text)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_only_python_reads_is_no_json(constant):
    assert not is_object(f'{{"a": {constant}}}')
    calls, _, _ = read(
        Notation("hermes"), f'<tool_call>{{"name": "f", "arguments": {{"a": {constant}}}}}'
    )
    assert calls == []


def test_llama_may_call_the_name_function():
    text = '{"type": "function", "function": "f", "parameters": {"a": 1}}'
    assert read(Notation("llama3-json"), text) == ([("f", {"a": 1})], "", "")


def test_python_calls_may_have_the_literals_of_json():
    text = "[f(a=true, b=[false, {'x': null}], c=None)]"
    calls = [("f", {"a": True, "b": [False, {"x": None}], "c": None})]
    assert read(Notation("pythonic"), text) == (calls, "", "")
    text = "[f(a=nothing)]"
    assert read(Notation("pythonic"), text) == ([], "", text)


HARMONY = Notation("gpt-oss", "gpt-oss")
THOUGHT = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<|channel|>commentary to=f <|constrain|>json<|message|>{"a": 1}<|call|>', {"a": 1}),
        (" to=functions.f<|channel|>commentary<|message|><|call|>", {}),
        ("<|channel|>commentary to=functions.f<|message|> <|end|>", {}),
        ("<|channel|>commentary to=f<|message|>null<|call|>", {}),
    ],
)
def test_a_message_to_a_function_is_a_call(text, calls):
    assert read(HARMONY, THOUGHT + text) == ([("f", calls)], "Hm", "")


def test_what_a_constraint_makes_sure_of_is_the_final_message_alone():
    listed = '[{"name":"f","arguments":{"a":[{"b":1}]}}]'
    before = (
        f"{THOUGHT}<|channel|>commentary<|message|>use [{{x: {{1}}]<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.f<|message|>{"a":[{"b":2}]}<|call|>'
    )
    for header in ("final", "final <|constrain|>json"):
        text = f"{before}<|start|>assistant<|channel|>{header}<|message|>{listed}<|return|>"
        calls, thought, content = read(HARMONY, text, CallList)
        assert (calls, thought) == ([("f", {"a": [{"b": 1}]})], "Hm")
        assert content.startswith("use [{x: {1}]")
        named, _, _ = read(HARMONY, text.replace(listed, '{"c":1}'), lambda: NamedCall("g"))
        assert named == [("g", {"c": 1})]


@pytest.mark.parametrize("text", ["]]", "[{x: {1}}]", '[{"name":5,"arguments":{', '[{"a":{', "[[["])
def test_a_list_that_is_none_has_no_calls(text):
    assert parts_of(CallList(), text, text) == parts_of(CallList(), *text, *text) == []


def test_a_whole_output_is_read_in_pieces():
    """What is not read yet is moved with each mark: it must not be all of a long output."""
    rests = []

    class Watched(type(Notation("hermes").parser("", ("f",)))):
        def _take(self, count):
            rests.append(len(self._rest))
            return super()._take(count)

    text = "<tool_call>" * 2000
    assert said_in(parts_of(Watched(("f",)), text)) == ([], "", text)
    assert max(rests) < len(text) / 5
