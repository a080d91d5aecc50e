"""Bodies against what an endpoint takes: types, unknown fields, fields that cannot be honoured."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from starlette.requests import Request

from phloem.server.bodies.decoding import MOST_FIELDS, BadBody, check_sizes
from phloem.server.http.body import checked, read_json
from phloem.server.http.chat_protocol import UNSUPPORTED_IN_CHAT, ChatRequest
from phloem.server.http.errors import ApiError, refusing
from phloem.server.http.protocol import (
    IGNORED,
    UNSUPPORTED_IN_COMPLETIONS,
    UNSUPPORTED_IN_GENERATE,
    CompletionRequest,
    GenerateRequest,
)


class Shape(msgspec.Struct, kw_only=True):
    number: int | None = None
    words: list[str] | None = None


UNSUPPORTED = {"tools": ([],), "store": (False,)}


def check(content):
    return checked(content, Shape, UNSUPPORTED, {"user"})


def read(body, limit=1000):
    async def receive():
        return {"type": "http.request", "body": body}

    return asyncio.run(read_json(Request({"type": "http"}, receive), limit))


@pytest.mark.parametrize(
    ("body", "escape"),
    [
        (rb'{"a": "\ud800"}', r"\ud800 at byte 7"),
        (rb'{"a": "\\\udc00 and more"}', r"\udc00 at byte 9"),
        (rb'{"a": "\uD83D\uDE00\uD83D\u0041"}', r"\uD83D at byte 19"),
    ],
)
def test_half_a_surrogate_pair_is_told_as_that(body, escape):
    with pytest.raises(ApiError) as caught:
        read(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    assert f"the escape {escape} is half of a surrogate pair" in str(caught.value)


def test_other_bodies_that_are_no_json_are_told_as_that():
    for body in (rb'{"a": "\uD83D\uDE00', b"{", rb'{"a": \x}'):
        with pytest.raises(ApiError, match="cannot be read as JSON") as caught:
            read(body)
        assert "surrogate" not in str(caught.value)
    assert read(rb'{"a": "\uD83D\uDE00 \\ud800"}') == {"a": "\U0001f600 \\ud800"}


def test_null_is_the_same_as_absent():
    assert check({"number": None, "tools": None}) == check({}) == Shape()


def test_ignored_fields_and_harmless_values_are_taken():
    assert check({"number": 1, "user": {"any": 1}, "tools": [], "store": False}).number == 1


@pytest.mark.parametrize(
    ("content", "param", "code"),
    [
        ({"number": "1"}, "number", "invalid_type"),
        ({"number": True}, "number", "invalid_type"),
        ({"words": ["a", 1]}, "words[1]", "invalid_type"),
        ({"tools": [1]}, "tools", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"nmber": 1}, "nmber", "unknown_parameter"),
        ({"": 1}, "", "unknown_parameter"),
    ],
)
def test_a_refusal_names_the_field(content, param, code):
    with pytest.raises(ApiError) as caught:
        check(content)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)
    assert param in str(caught.value)


def test_a_misspelt_field_gets_the_nearest_known():
    with pytest.raises(ApiError, match="did you mean number"):
        check({"nmber": 1})


def test_a_refusal_says_what_is_supported():
    with pytest.raises(ApiError, match=r"tools is \[1\], .*: give \[\] or leave it out"):
        check({"tools": [1]})


def test_a_long_name_is_quoted_in_part():
    with pytest.raises(ApiError) as caught:
        check({"x" * 10**6: 1})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("shape", "unsupported"),
    [
        (ChatRequest, UNSUPPORTED_IN_CHAT),
        (CompletionRequest, UNSUPPORTED_IN_COMPLETIONS),
        (GenerateRequest, UNSUPPORTED_IN_GENERATE),
    ],
)
def test_a_field_is_either_served_or_refused_or_ignored(shape, unsupported):
    sets = [set(shape.__struct_fields__), set(unsupported), IGNORED]
    assert len(set.union(*map(set, sets))) == sum(map(len, sets))


@pytest.mark.parametrize(("name", "value"), [("store", 0), ("priority", False)])
def test_truth_values_are_no_numbers(name, value):
    with pytest.raises(ApiError, match=f"{name} is {value}"):
        checked({name: value}, Shape, {"store": (False,), "priority": (0,)}, ())


def test_a_harmless_number_may_be_written_with_a_point():
    checked({"length_penalty": 1.0}, Shape, {"length_penalty": (1,)}, ())


def test_a_large_value_is_quoted_in_part_without_being_written_out():
    class Written(list):
        def __repr__(self):
            raise AssertionError("the whole value was written out")

    with pytest.raises(ApiError, match=r"tools is \[\[1, 1"):
        check({"tools": [[1] * 10**6] * 10})
    with pytest.raises(ApiError, match="tools is"):
        check({"tools": Written([1])})


def test_only_the_beginning_of_a_malformed_body_is_searched_for_halves_of_characters():
    far = rb'{"a": "' + rb"\n" * (8 << 10) + rb'\ud83d\ude00 \ud800"}'
    with pytest.raises(ApiError, match="cannot be read as JSON") as caught:
        read(far, len(far))
    assert "surrogate" not in str(caught.value)
    cut = rb'{"a": "' + b"x" * ((16 << 10) - 10) + rb"\ud83d\ude00"
    with pytest.raises(ApiError) as caught:
        read(cut, len(cut))
    assert "surrogate" not in str(caught.value)


@pytest.mark.parametrize("value", [[1] * 11, {str(i): 1 for i in range(11)}])
def test_fields_with_too_many_entries_are_refused_by_their_length_alone(value):
    check_sizes({"stop_token_ids": value}, 11)
    with pytest.raises(BadBody, match="stop_token_ids has 11 entries and may have 10") as caught:
        check_sizes({"a": 1, "stop_token_ids": value}, 10)
    assert caught.value.param == "stop_token_ids"


def test_so_are_too_many_fields():
    with pytest.raises(BadBody, match=f"{MOST_FIELDS + 1} fields"):
        check_sizes({str(i): 1 for i in range(MOST_FIELDS + 1)}, 10)


@pytest.mark.parametrize(
    ("sentence", "param"),
    [
        ("the prompt is empty: give at least one token", "input"),
        ("request id 'a' is in use: give each request its own", "rid"),
        ("stop has 33 strings: give at most 32", "stop"),
        ("something else is wrong", None),
    ],
)
def test_a_refusal_names_the_field_that_its_sentence_is_about(sentence, param):
    with pytest.raises(ApiError) as caught, refusing(prompt="input"):
        raise ValueError(sentence)
    assert caught.value.param == param
