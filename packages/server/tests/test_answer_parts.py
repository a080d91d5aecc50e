"""What a sequence of an answer says, as its news come."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.server.http.answer_parts import AnswerParts, ChatHead, Reading
from phloem.server.http.answer_parts_form import PartsForm
from phloem.server.http.logprobs import TokenNames
from phloem.server.messages import Finish, TextNews
from phloem.server.parsers import CallBegin, Content, Reasoning
from phloem.server.parsers.registry import Notation

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def reading(tokenizer=None, **fields):
    notation = Notation("hermes", "deepseek-r1")
    names = None if tokenizer is None else TokenNames(tokenizer)
    return Reading(lambda: notation.parser("", ["f"]), names, **fields)


def news(text, ids=(), finish=None):
    return TextNews("r", text, list(ids), finish and Finish(finish), 3, len(ids), 0)


@pytest.mark.parametrize(
    ("text", "ended", "reason"),
    [
        (f"</think>{CALL}", "stop", "tool_calls"),
        (f"</think>{CALL}{CALL}", "stop", "tool_calls"),
        (f"</think>{CALL}{CALL[:-20]}", "stop", "stop"),
        (f"</think>{CALL[:-20]}", "length", "length"),
        (f"</think>{CALL}", "length", "length"),
        ("</think>a", "stop", "stop"),
        (CALL, "stop", "stop"),
    ],
)
def test_an_answer_ends_by_its_calls_if_they_are_whole(text, ended, reason):
    """Case AP-09."""
    parts = AnswerParts(reading())
    parts.take(news(text))
    assert parts.finish_reason(ended) == reason
    named = AnswerParts(reading(call_is_an_end=False))
    named.take(news(text))
    assert named.finish_reason(ended) == ended


def test_calls_after_the_first_are_left_out_where_there_may_be_one():
    parts = AnswerParts(reading(one_call=True))
    told = parts.take(news(f"</think>{CALL}{CALL[:-20]}", finish="stop"))
    assert [part.index for part in told if isinstance(part, CallBegin)] == [0]
    assert parts.finish_reason("stop") == "tool_calls"


def test_reasoning_may_be_told_at_its_end():
    parts = AnswerParts(reading(stream_reasoning=False))
    assert parts.take(news("a")) == parts.take(news("b")) == []
    assert parts.take(news("c</think>d")) == [Reasoning("abc"), Content("d")]
    cut = AnswerParts(reading(stream_reasoning=False))
    assert cut.take(news("a")) == []
    assert cut.take(news("b", finish="length")) == [Reasoning("ab")]


@given(st.text("ab \n\u00e9", max_size=8), st.text(max_size=8), st.lists(st.integers(0, 99)))
def test_tokens_of_reasoning_do_not_depend_on_how_the_news_came(byte_level, thought, answer, cuts):
    text = f"{thought}</think>{answer}"
    ids = byte_level.encode(text)
    whole = AnswerParts(reading(byte_level))
    whole.take(news(text, ids, "stop"))
    parts = AnswerParts(reading(byte_level))
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for a, b in pairwise(bounds):
        parts.take(news(text[a:b]))
    for token in ids:
        parts.take(news("", [token]))
    assert parts.reasoning_tokens == whole.reasoning_tokens
    said = len(byte_level.encode(thought.lstrip())) if thought.strip() else 0
    assert whole.reasoning_tokens <= said + 1


def test_each_choice_has_a_parser_of_its_own():
    """Case ST-12."""
    head = ChatHead("id", "m", 2, False, None, [[1]], lambda: AnswerParts(reading()), False)
    form, said = PartsForm(head), {0: ["", ""], 1: ["", ""]}
    for index, text in (
        (0, "Short."),
        (1, "Still thinking"),
        (0, "</think>"),
        (1, " more</think>x"),
    ):
        for block in form.chunk(index, news(text)).decode().split("\n\n")[:-1]:
            (choice,) = json.loads(block.removeprefix("data: "))["choices"]
            assert choice["index"] == index
            said[index][0] += choice["delta"].get("reasoning_content") or ""
            said[index][1] += choice["delta"].get("content") or ""
    assert said == {0: ["Short.", ""], 1: ["Still thinking more", "x"]}
