"""Requests for messages as chats, and what their marks for the cache come to."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.server.http.anthropic.caching import common_length, marked
from phloem.server.http.anthropic.protocol import MessagesRequest
from phloem.server.http.anthropic.translate import chat_of
from phloem.server.http.errors import ApiError

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "add", "description": "adds", "input_schema": {"type": "object"}}
MARK = {"cache_control": {"type": "ephemeral"}}


def asked(**given):
    fields = {"model": "m", "max_tokens": 100, "messages": [USER]} | given
    return msgspec.convert(fields, MessagesRequest)


def chat(**given):
    return chat_of(asked(**given))


def text(value, **more):
    return {"type": "text", "text": value, **more}


def said(message):
    content = message["content"]
    return content if isinstance(content, str) else [part["text"] for part in content]


def test_the_system_is_the_first_message_whatever_its_form():
    for system in ("be brief", [text("be"), text("brief")]):
        first, second = chat(system=system).messages
        assert first["role"] == "system"
        assert " ".join(said(first)) == "be brief"
        assert said(second) == ["hi"]


def test_blocks_are_the_messages_of_a_chat():
    messages = [
        {"role": "user", "content": [text("one"), text("two")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": ""},
                text("so"),
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("2")]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True},
                text("and?"),
            ],
        },
    ]
    user, turn, result, failed, last = chat(messages=messages).messages
    assert said(user) == ["one", "two"]
    assert (said(turn), turn["reasoning_content"]) == (["so"], "t")
    (call,) = turn["tool_calls"]
    assert call["id"] == "toolu_1"
    assert json.loads(call["function"]["arguments"]) == {"a": 1}
    assert (result["tool_call_id"], result["content"]) == ("toolu_1", "2")
    assert failed["content"].startswith("Error")
    assert (last["role"], said(last)) == ("user", ["and?"])


def test_turns_of_one_role_are_one():
    messages = [USER, USER | {"content": "there"}, {"role": "assistant", "content": "yes"}]
    user, turn = chat(messages=messages).messages
    assert (said(user), said(turn)) == (["hi", "there"], ["yes"])


def test_an_assistants_last_message_is_what_the_answer_begins_with():
    made = chat(messages=[USER, {"role": "assistant", "content": "well,"}])
    assert (made.continue_final_message, made.add_generation_prompt) == (True, False)
    assert not chat().continue_final_message


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "add"}, {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tools_and_choices_are_those_of_a_chat(choice, made):
    request = chat(tools=[TOOL | MARK], tool_choice=choice)
    (tool,) = request.tools
    assert (tool.function.name, tool.function.description) == ("add", "adds")
    assert request.tool_choice == made
    assert request.parallel_tool_calls
    choice = choice | {"disable_parallel_tool_use": True}
    assert chat(tools=[TOOL], tool_choice=choice).parallel_tool_calls is False


def test_fields_are_those_of_a_chat():
    made = chat(
        temperature=0.5,
        top_k=3,
        stop_sequences=["END"],
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    )
    assert (made.max_tokens, made.temperature, made.top_k, made.stop) == (100, 0.5, 3, ["END"])
    assert made.reasoning_effort == "low"
    assert made.response_format == {"type": "json_schema", "json_schema": {"schema": {}}}


def test_thinking_is_off_unless_it_is_asked_for():
    for thinking, on, budget in (
        (None, False, None),
        ({"type": "disabled"}, False, None),
        ({"type": "adaptive"}, True, None),
        ({"type": "enabled", "budget_tokens": 50}, True, 50),
    ):
        made = chat(thinking=thinking)
        assert made.chat_template_kwargs["enable_thinking"] is on
        assert made.max_thinking_tokens == budget


@pytest.mark.parametrize(
    ("given", "param", "says"),
    [
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages", "critic"),
        ({"messages": ["hi"]}, "messages", "role None"),
        ({"messages": [{"role": "user"}]}, "messages", "no text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages", "'image'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages",
            "no tool_use_id",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "t",
                                "content": [{"type": "image"}],
                            }
                        ],
                    }
                ]
            },
            "messages",
            "'image'",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "t", "name": "add"}],
                    }
                ]
            },
            "messages",
            "no input",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]},
            "messages",
            "redacted_thinking",
        ),
        ({"system": [{"type": "image"}]}, "system", "image"),
        ({"tools": [{"name": "b", "type": "bash_20250124"}]}, "tools", "bash_20250124"),
        ({"tools": [{"name": "b"}]}, "tools", "no input_schema"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice", "name one"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "without"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 100}},
            "thinking.budget_tokens",
            "max_tokens is 100",
        ),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format", "xml"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(given, param, says):
    with pytest.raises(ApiError, match=says) as caught:
        chat(**given)
    assert (caught.value.status, caught.value.param) == (400, param)


class TestMarks:
    """Of `cache_control`."""

    LONG = {
        "system": [text("a"), text("b")],
        "tools": [TOOL],
        "messages": [USER, {"role": "assistant", "content": "yes"}, USER],
    }

    def beginning(self, **given):
        """The chat up to the last mark; None: all of it."""
        kept = marked(asked(**self.LONG | given))
        return None if kept.beginning is None else chat_of(kept.beginning)

    def test_without_any_nothing_is_retained(self):
        assert marked(asked(**self.LONG)) is None

    def test_marked_tools_are_what_comes_before_any_message(self):
        made = self.beginning(tools=[TOOL | MARK])
        assert [message["role"] for message in made.messages] == ["user"]
        assert len(made.tools) == 1

    def test_a_marked_block_of_the_system_is_retained_up_to_its_end(self):
        made = self.beginning(system=[text("a", **MARK), text("b")])
        assert said(made.messages[0]) == ["a"]
        made = self.beginning(system=[text("a"), text("b", **MARK)])
        assert said(made.messages[0]) == ["a", "b"]

    def test_a_marked_block_of_a_message_is_retained_with_all_before_it(self):
        marked_user = {"role": "user", "content": [text("x", **MARK), text("y")]}
        made = self.beginning(messages=[marked_user, USER])
        assert [said(message) for message in made.messages] == [["a", "b"], ["x"]]

    def test_a_mark_at_the_end_is_for_all_of_it(self):
        last = {"role": "user", "content": [text("x"), text("y", **MARK)]}
        assert self.beginning(messages=[USER, last], tools=[TOOL | MARK]) is None
        assert self.beginning(**MARK) is None

    def test_the_longest_time_of_all_marks_counts(self):
        hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
        kept = marked(asked(system=[text("a", **hour)], **MARK))
        assert (kept.seconds, kept.ttl) == (3600, "1h")
        assert marked(asked(**MARK)).seconds == 300

    @pytest.mark.parametrize(
        "given",
        [
            {"system": [text("a", **MARK)] * 5},
            {"system": [text("a", cache_control={"type": "forever"})]},
            {"messages": [{"role": "user", "content": [text("a", cache_control=5)]}]},
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "t",
                                "content": [text("a", cache_control={"type": "forever"})],
                            }
                        ],
                    }
                ]
            },
        ],
    )
    def test_marks_that_are_wrong_or_too_many_are_refused(self, given):
        with pytest.raises(ApiError, match="cache_control"):
            marked(asked(**given))


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_a_common_beginning_is_found(first, second):
    length = common_length(first, second)
    assert first[:length] == second[:length]
    assert first[length : length + 1] != second[length : length + 1] or length == min(
        len(first), len(second)
    )
