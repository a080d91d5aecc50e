"""Calls of tools: the schema that their text keeps to, and its reading however it is cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.grammar import Constraint
from phloem.server.http.answer_parts import AnswerParts, ChatHead, Reading
from phloem.server.http.answer_parts_form import PartsForm
from phloem.server.http.chat_protocol import ChatRequest, FunctionSpec, ToolSpec
from phloem.server.http.errors import ApiError
from phloem.server.http.tools import tool_use
from phloem.server.messages import Finish, TextNews
from phloem.server.parsers import CallArguments, CallBegin
from phloem.server.parsers.constrained import CallList, NamedCall

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name="weather", parameters=CITY):
    return ToolSpec(type="function", function=FunctionSpec(name=name, parameters=parameters))


def use(tools=(), **fields):
    return tool_use(ChatRequest(messages=[], tools=list(tools), **fields))


@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_without_tools_nothing_is_shown_and_nothing_made_sure_of(choice):
    assert use(tool_choice=choice) == use()
    assert (use().shown, use().constraint) == (None, None)


def test_auto_shows_the_tools_and_leaves_the_text_free():
    for choice in (None, "auto"):
        found = use([tool()], tool_choice=choice)
        assert found.constraint is None
        # What was left out is not there: a template would show it.
        function = {"name": "weather", "parameters": CITY}
        assert found.shown == [{"type": "function", "function": function}]
    assert use([tool()], tool_choice="none").shown is None


def test_a_named_function_constrains_to_its_parameters():
    choice = {"type": "function", "function": {"name": "weather"}}
    found = use([tool("time", None), tool()], tool_choice=choice)
    assert found.named == "weather"
    assert found.constraint.constraint == Constraint.json_schema(CITY, whitespace="compact")
    choice = {"type": "function", "function": {"name": "time"}}
    none = use([tool("time", None)], tool_choice=choice).constraint.constraint
    assert json.loads(none.source) == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_required_constrains_to_a_list_of_calls():
    found = use([tool(), tool("time")], tool_choice="required")
    schema = json.loads(found.constraint.constraint.source)
    assert [c["properties"]["name"] for c in schema["items"]["anyOf"]] == [
        {"const": "weather"},
        {"const": "time"},
    ]
    assert "maxItems" not in schema
    one = use([tool()], tool_choice="required", parallel_tool_calls=False)
    assert json.loads(one.constraint.constraint.source)["maxItems"] == 1


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([], "required"),
        ([], {"type": "function", "function": {"name": "f"}}),
        ([tool()], "always"),
        ([tool()], {"type": "function", "function": {"name": "other"}}),
        ([tool()], {"type": "function"}),
        ([tool()], {"function": {"name": "weather"}}),
        ([tool()], 5),
        ([tool(), tool()], None),
        ([tool("a b")], None),
        ([tool("")], None),
        ([tool(parameters={"type": "array"})], "required"),
        ([tool(str(i)) for i in range(129)], None),
    ],
)
def test_what_does_not_fit_is_refused(tools, choice):
    with pytest.raises(ApiError) as caught:
        use(tools, tool_choice=choice)
    assert caught.value.status == 400
    assert caught.value.param in ("tools", "tool_choice")


def test_options_that_are_malformed_are_refused_by_their_field():
    with pytest.raises(ApiError) as caught:
        use([tool()], tool_choice="required", grammar_options={"no": 1})
    assert caught.value.param == "grammar_options"


NAMED = {"type": "function", "function": {"name": "weather"}}


def test_options_say_how_a_call_is_meant():
    options = {"whitespace": "bounded", "property_order": "free", "steering": False}
    found = use([tool()], tool_choice=NAMED, grammar_options=options).constraint
    assert (found.constraint.whitespace, found.constraint.property_order) == ("bounded", "free")
    assert found.steering is False
    options["property_order"] = "fixed"
    found = use([tool()], tool_choice="required", grammar_options=options).constraint
    assert (found.constraint.whitespace, found.constraint.property_order) == ("bounded", "fixed")


def test_the_name_comes_first_in_a_list_of_calls():
    options = {"property_order": "free"}
    with pytest.raises(ApiError, match="property_order free") as caught:
        use([tool()], tool_choice="required", grammar_options=options)
    assert (caught.value.status, caught.value.param) == (400, "grammar_options")


ARGUMENTS = st.dictionaries(
    st.text(max_size=3) | st.just("]}"),
    st.recursive(st.text(max_size=4) | st.integers(), lambda s: st.lists(s, max_size=2)),
    max_size=3,
)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "g-1"]), ARGUMENTS), min_size=1, max_size=3)


def pieces(text, cuts):
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(bounds)]


def gathered(parts):
    """The calls that parts make up: each named once, at its beginning."""
    calls = []
    for part in parts:
        if isinstance(part, CallBegin):
            assert part.index == len(calls)
            calls.append([part.name, ""])
        elif isinstance(part, CallArguments):
            calls[part.index][1] += part.text
    return calls


@given(CALLS, st.lists(st.integers(0, 500)), st.sampled_from([None, 1]), st.booleans())
def test_calls_are_the_same_however_their_text_is_cut(calls, cuts, indent, ascii):
    """Cases TO-01 and TO-03."""
    content = [{"name": name, "arguments": arguments} for name, arguments in calls]
    text = json.dumps(content, indent=indent, ensure_ascii=ascii)
    for cut in (cuts, range(len(text))):
        reader = CallList()
        found = gathered([part for piece in pieces(text, cut) for part in reader.feed(piece)])
        assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@given(CALLS, st.integers(0, 500))
def test_a_cut_text_has_the_calls_that_it_names(calls, length):
    """Case TO-04: no half call is invented."""
    content = [{"name": name, "arguments": arguments} for name, arguments in calls]
    text = json.dumps(content)[:length]
    found = gathered(CallList().feed(text))
    assert [name for name, _ in found] == [name for name, _ in calls][: len(found)]
    heads = [f'"name": "{name}", "arguments": {{' for name in ("f", "g-1")]
    assert len(found) == sum(map(text.count, heads))


def news(text, finish=None):
    return TextNews("r", text, [1], finish and Finish(finish), 3, 1, 0)


def deltas(form, parts):
    """What a client makes of the chunks: the calls and the finish reason."""
    calls, finish, roles = {}, [], []
    data = b"".join(form.chunk(0, part) for part in parts)
    for block in data.decode().split("\n\n")[:-1]:
        (choice,) = json.loads(block.removeprefix("data: "))["choices"]
        finish.append(choice["finish_reason"])
        roles.append(choice["delta"].get("role"))
        for part in choice["delta"].get("tool_calls", ()):
            call = calls.setdefault(part["index"], {"function": {"arguments": ""}})
            call.update({k: v for k, v in part.items() if k in ("id", "type")})
            call["function"].setdefault("name", part["function"].get("name"))
            call["function"]["arguments"] += part["function"]["arguments"]
    assert roles == ["assistant"] + [None] * (len(roles) - 1)
    assert not any(finish[:-1])
    return list(calls.values()), finish[-1]


@pytest.mark.parametrize(
    ("named", "text", "end", "finish"),
    [
        (None, '[{"name":"f","arguments":{"a":"]}"}}]', "stop", "tool_calls"),
        (None, '[{"name":"f","arguments":{}},{"name":"g","arguments":{}}]', "stop", "tool_calls"),
        ("f", '{"a":1}', "stop", "stop"),
        ("f", '{"a":', "length", "length"),
        (None, '[{"name":"f","argu', "length", "length"),
        (None, '[{"name":"f","argu', "stop", "stop"),
        (None, '[{"name":"f","arguments":{"a":"]}', "stop", "stop"),
        (None, '[{"name":"f","arguments":{}}', "stop", "stop"),
        (None, '[{"name":"f","arguments":{}},{"na', "stop", "stop"),
        (None, "", "stop", "stop"),
        ("f", '{"a":', "stop", "stop"),
    ],
)
def test_a_streamed_answer_has_the_calls_of_the_whole_one(named, text, end, finish):
    """Cases AP-09 and TO-04: required ends with tool_calls, a named function with stop, and what is
    cut with what cut it.
    """
    reading = Reading(CallList, None)
    if named is not None:
        reading = Reading(lambda: NamedCall(named), None, call_is_an_end=False)
    head = ChatHead("id", "m", 1, False, None, [[1]], lambda: AnswerParts(reading), False)
    whole, stream = PartsForm(head), PartsForm(head)
    (choice,) = json.loads(whole.whole([news(text, end)]))["choices"]
    calls = choice["message"].get("tool_calls", [])
    assert choice["message"]["content"] == (None if calls else "")
    streamed, streamed_finish = deltas(stream, [*map(news, text), news("", end)])
    assert streamed_finish == choice["finish_reason"] == finish
    for call in (*calls, *streamed):
        assert call.pop("id").startswith("call_")
        assert call["type"] == "function"
    assert streamed == calls
