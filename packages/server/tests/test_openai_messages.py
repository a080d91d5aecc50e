"""Messages of the OpenAI API as chat templates take them."""

from __future__ import annotations

import pytest

from phloem.server.http.chat_messages import plain_messages
from phloem.server.http.errors import ApiError


def user(content):
    return {"role": "user", "content": content}


def text(value):
    return {"type": "text", "text": value}


def test_strings_stay_and_parts_are_joined_by_lines():
    assert plain_messages([user("a"), user([text("b"), text("c")])]) == [user("a"), user("b\nc")]


def test_developers_speak_as_the_system():
    (message,) = plain_messages([{"role": "developer", "content": "x"}])
    assert message["role"] == "system"


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
