"""Requests for responses as chats."""

from __future__ import annotations

import msgspec
import pytest

from phloem.server.http.errors import ApiError
from phloem.server.http.responses.protocol import ResponseRequest
from phloem.server.http.responses.translate import chat_of

USER = {"role": "user", "content": "hi"}
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
SUB = {"type": "function", "name": "sub"}


def chat(input="hi", history=(), **asked):
    return chat_of(msgspec.convert({"input": input, **asked}, ResponseRequest), history)


def texts(message):
    return [part["text"] for part in message["content"]]


def test_a_text_is_a_message_of_the_user_behind_the_instructions():
    messages = chat("hi", instructions="be brief").messages
    assert [(m["role"], texts(m)) for m in messages] == [
        ("system", ["be brief"]),
        ("user", ["hi"]),
    ]


def test_items_of_one_turn_of_the_assistant_are_one_message():
    items = [
        USER,
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "so", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "2"}],
        },
    ]
    user, turn, *results = chat(items).messages
    assert user["role"] == "user"
    assert texts(turn) == ["so"]
    assert turn["reasoning_content"] == "t"
    assert [call["id"] for call in turn["tool_calls"]] == ["c1", "c2"]
    assert results == [
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
    ]


def test_what_was_said_before_comes_behind_the_instructions_and_before_the_input():
    history = [USER, {"type": "message", "role": "assistant", "content": "hello"}]
    messages = chat("again", history, instructions="new").messages
    assert [texts(m)[0] for m in messages] == ["new", "hi", "hello", "again"]


def test_a_summary_is_taken_for_reasoning_that_has_nothing_else():
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]}
    assert chat([USER, item]).messages[1]["reasoning_content"] == "t"


def test_fields_are_those_of_a_chat():
    made = chat(
        max_output_tokens=5,
        top_p=0.5,
        seed=7,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    )
    assert (made.max_completion_tokens, made.top_p, made.seed) == (5, 0.5, 7)
    assert (made.logprobs, made.top_logprobs) == (True, 2)
    assert made.parallel_tool_calls is False
    assert made.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}},
    }


def test_functions_are_tools_and_a_choice_may_allow_some():
    made = chat(tools=[ADD, SUB], tool_choice={"type": "function", "name": "add"})
    assert [tool.function.name for tool in made.tools] == ["add", "sub"]
    assert made.tool_choice == {"type": "function", "function": {"name": "add"}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "sub"}]}
    made = chat(tools=[ADD, SUB], tool_choice=allowed)
    assert [tool.function.name for tool in made.tools] == ["sub"]
    assert made.tool_choice == "required"


@pytest.mark.parametrize(
    ("asked", "param", "says"),
    [
        ({"input": [{"type": "computer_call"}]}, "input", "computer_call"),
        ({"input": [{"type": {}}]}, "input", "of type"),
        ({"input": ["hi"]}, "input", "of type"),
        ({"input": [USER | {"content": [{"type": "input_image"}]}]}, "input", "input_image"),
        ({"input": [USER | {"content": 5}]}, "input", "no text"),
        ({"input": [{"role": "critic", "content": "hi"}]}, "input", "critic"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input", "no name"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input", "encrypted"),
        ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
        ({"tools": [ADD | {"defer_loading": True}]}, "tools", "defer_loading"),
        ({"tools": [{"type": "function"}]}, "tools", "name"),
        ({"tools": [ADD], "tool_choice": {"type": "mcp"}}, "tool_choice", "mcp"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "mode"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [SUB]}},
            "tool_choice",
            "none of the tools",
        ),
        ({"include": ["file_search_call.results"]}, "include", "file_search_call.results"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "17 entries"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(asked, param, says):
    with pytest.raises(ApiError, match=says) as caught:
        chat(**asked)
    assert (caught.value.status, caught.value.param) == (400, param)
