"""Messages of the OpenAI API as chat templates take them."""

from __future__ import annotations

import pytest

from phloem.server.chat_template import ChatTemplate
from phloem.server.http.chat_messages import plain_messages
from phloem.server.http.errors import ApiError


def user(content):
    return {"role": "user", "content": content}


def text(value):
    return {"type": "text", "text": value}


def test_strings_stay_and_parts_are_joined_by_lines():
    assert plain_messages([user("a"), user([text("b"), text("c")])]) == [user("a"), user("b\nc")]


def test_developers_speak_as_the_system_unless_the_template_knows_them():
    given = [{"role": "developer", "content": "x"}]
    assert plain_messages(given)[0]["role"] == "system"
    assert plain_messages(given, developers=True)[0]["role"] == "developer"


def call(arguments='{"city": "B"}', **fields):
    function = {"name": "weather", "arguments": arguments}
    return {"id": "c1", "type": "function", "function": function} | fields


def test_calls_have_objects_as_arguments_and_tools_the_names_of_what_was_called():
    turn = {"role": "assistant", "content": None, "tool_calls": [call()]}
    said = {"role": "tool", "tool_call_id": "c1", "content": [text("sun")]}
    assert plain_messages([turn, said]) == [
        {"role": "assistant", "content": "", "tool_calls": [call({"city": "B"})]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun", "name": "weather"},
    ]
    (empty,) = plain_messages([turn | {"tool_calls": [call("")]}])
    assert empty["tool_calls"][0]["function"]["arguments"] == {}


def test_arguments_are_written_as_objects_or_added_as_text():
    (turn,) = plain_messages([{"role": "assistant", "content": None, "tool_calls": [call()]}])
    template = ChatTemplate(
        "{% set a = messages[0].tool_calls[0].function.arguments %}"
        "{{ a | tojson }} {{ 'x' + a + 'y' }} {{ a ~ '!' }} {{ a.city }} {{ a is mapping }}",
        {},
    )
    text = '{"city": "B"}'
    assert template.render([turn]) == f"{text} x{text}y {text}! B True"


@pytest.mark.parametrize(
    "text", ["{", "", " ", "[1]", '{"a":\n"b', '{"a": NaN}', '{"a": "\\ud800"}', "5", "null"]
)
def test_arguments_that_are_no_object_stay_the_text_that_they_are(text):
    """An answer that was cut has them, and is sent back with what came of it."""
    (turn,) = plain_messages([{"role": "assistant", "content": "", "tool_calls": [call(text)]}])
    template = ChatTemplate(
        "{% set a = messages[0].tool_calls[0].function.arguments %}"
        "{{ a | tojson }}|{{ 'x' + a + 'y' }}|{{ a }}|"
        "{% for k, v in a | items %}{{ k }}{% endfor %}",
        {},
    )
    written = text or "{}"
    assert template.render([turn]) == f"{{}}|x{written}y|{written}|"


@pytest.mark.parametrize("content", [None, [], ""])
@pytest.mark.parametrize(
    "fields", [{}, {"refusal": None}, {"tool_calls": []}, {"reasoning_content": "so"}]
)
def test_an_answer_without_content_may_be_sent_back(content, fields):
    (turn,) = plain_messages([{"role": "assistant", "content": content} | fields])
    kept = {name: value for name, value in fields.items() if value}
    assert turn == {"role": "assistant", "content": ""} | kept


def test_a_refusal_is_what_an_assistant_said():
    for content in (None, "", []):
        (turn,) = plain_messages([{"role": "assistant", "content": content, "refusal": "No."}])
        assert turn == {"role": "assistant", "content": "No."}


def test_a_tool_may_have_said_nothing():
    (said,) = plain_messages([{"role": "tool", "tool_call_id": "c", "content": []}])
    assert said["content"] == ""


def test_ids_of_calls_may_have_to_be_short():
    turn = {"role": "assistant", "content": None, "tool_calls": [call()]}
    said = {"role": "tool", "tool_call_id": "c1", "content": "sun"}
    asked, answered = plain_messages([turn, said], short_ids=True)
    short = answered["tool_call_id"]
    assert (len(short), short.isalnum()) == (9, True)
    assert asked["tool_calls"][0]["id"] == short
    kept = plain_messages([said | {"tool_call_id": "abcDEF123"}], short_ids=True)
    assert kept[0]["tool_call_id"] == "abcDEF123"


def test_earlier_reasoning_is_called_as_the_template_calls_it():
    turn = {"role": "assistant", "content": "x", "reasoning_content": "so"}
    assert plain_messages([turn]) == [turn]
    assert plain_messages([turn], reasoning="thinking")[0]["thinking"] == "so"


def test_a_name_is_kept_and_empty_fields_are_dropped():
    answer = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": [], "name": "b"}
    assert plain_messages([answer]) == [{"role": "assistant", "content": "x", "name": "b"}]


@pytest.mark.parametrize(
    "message",
    [
        5,
        {},
        user(5),
        user(None),
        user([]),
        user(["a"]),
        user([{"type": "image_url"}]),
        user([text(5)]),
        {"role": "tool", "content": "a"},
        {"role": 5, "content": "a"},
        user("a") | {"name": 5},
        user("a") | {"name": []},
        {"role": "assistant", "content": "a", "tool_calls": [{}]},
        {"role": "assistant", "content": "a", "tool_calls": 5},
        {"role": "assistant", "content": "a", "tool_calls": [call(["{}"])]},
        {"role": "assistant", "content": "a", "tool_calls": [call(5)]},
        {"role": "assistant", "content": "a", "tool_calls": [call(type="custom")]},
        {"role": "assistant", "content": "a", "refusal": "b"},
        {"role": "assistant", "content": None, "refusal": 5},
        {"role": "tool", "content": None, "tool_call_id": "c1"},
        {"role": "assistant", "content": "a", "reasoning_content": 5},
        {"role": "assistant", "content": "a", "audio": {"id": "x"}},
        {"role": "user", "content": "a", "tool_calls": [call()]},
        user([{"type": "input_audio", "input_audio": {}}]),
    ],
)
def test_a_refusal_names_the_message(message):
    with pytest.raises(Exception, match="message 1 ") as caught:
        plain_messages([user("a"), message])
    assert caught.type.__name__ in ("ApiError", "ValueError")


def test_what_was_given_is_not_changed():
    given = [user([text("a")])]
    plain_messages(given)
    assert given == [user([text("a")])]


def test_more_messages_than_anybody_needs_are_refused():
    with pytest.raises(ApiError, match="there are 10001 messages: give at most 10000"):
        plain_messages([user("a")] * 10_001)


def test_so_are_more_parts_in_all_messages_together():
    with pytest.raises(ApiError, match="have 10002 content parts: give at most 10000"):
        plain_messages([user([text("a")] * 5_001)] * 2)
