"""Answers in OpenAI's shapes: the chunks of a stream, joined, are the whole answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.server.http.chat import ChatForm
from phloem.server.http.completions import Choice, CompletionForm
from phloem.server.http.errors import ApiError
from phloem.server.http.generation import join_news
from phloem.server.http.sse import event, json_line
from phloem.server.messages import Finish, TextNews

TEXT = st.text(max_size=5) | st.sampled_from(["", "\u2028", "\x85", "\r\n\n", '"', "\\", "🐎"])


def make_news(texts, finish, index=0):
    """The news of one sequence: a token for each text, the end with the last."""
    last = len(texts) - 1
    return [
        TextNews(
            rid=f"r-{index}",
            text=text,
            token_ids=[i],
            finish=finish if i == last else None,
            prompt_tokens=3,
            completion_tokens=i + 1,
            cached_tokens=2,
        )
        for i, text in enumerate(texts)
    ]


def parsed(data):
    """The events in bytes, which are framed so that no client can misread them."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    assert all(len(block.splitlines()) == 1 for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def chat_form(n=1, usage=False):
    return ChatForm("id", "model", n, usage, None)


def completion_form(n=1, usage=False, echo=""):
    return CompletionForm("id", "model", n, usage, [Choice(echo) for _ in range(n)])


def streamed(form, sequences):
    """All events, the sequences' news taken in turns."""
    events = []
    for step in range(max(map(len, sequences))):
        for index, news in enumerate(sequences):
            if step < len(news):
                events += parsed(form.chunk(index, news[step]))
    *last, mark = form.tail().split(b"\n\n")[:-1]
    assert mark == b"data: [DONE]"
    return events + parsed(b"".join(part + b"\n\n" for part in last))


def piece(choice):
    return (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""


def content(choice):
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize("make", [chat_form, completion_form])
@given(
    texts=st.lists(st.lists(TEXT, min_size=1, max_size=6), min_size=1, max_size=3),
    finish=st.sampled_from([Finish("stop", 5), Finish("stop", "END"), Finish("length")]),
    usage=st.booleans(),
)
def test_a_stream_joined_is_the_whole(make, texts, finish, usage):
    sequences = [make_news(each, finish, i) for i, each in enumerate(texts)]
    n = len(sequences)
    whole = json.loads(make(n).whole([join_news(news) for news in sequences]))
    events = streamed(make(n, usage), sequences)
    if usage:
        last = events.pop()
        assert last["choices"] == []
        assert last["usage"] == whole["usage"]
    assert all(event.get("usage") is None for event in events)
    for name in ("id", "created", "model"):
        assert len({event[name] for event in events}) == 1
    for choice in whole["choices"]:
        parts = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
        assert "".join(map(piece, parts)) == content(choice)
        ends = [part for part in parts if part["finish_reason"]]
        assert ends == parts[-1:]
        for name in ("finish_reason", "matched_stop"):
            assert ends[0][name] == choice[name]


def test_the_first_chunk_of_each_chat_choice_has_the_role():
    sequences = [make_news("ab", Finish("stop"), i) for i in range(2)]
    events = streamed(chat_form(2), sequences)
    roles = [e["choices"][0]["delta"].get("role") for e in events]
    assert roles == ["assistant", None, "assistant", None, None, None, None, None]


def test_a_prompt_counts_once_and_its_first_sequence_tells_what_was_cached():
    sequences = [make_news("ab", Finish("stop"), i) for i in range(4)]
    for i, news in enumerate(sequences):
        news[-1].cached_tokens = i
    body = json.loads(completion_form(4).whole([news[-1] for news in sequences]))
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 8,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_an_echo_comes_once_and_first():
    news = make_news("ab", Finish("length"))
    texts = [piece(e["choices"][0]) for e in streamed(completion_form(echo="prompt "), [news])]
    assert texts == ["prompt a", "b"]


@pytest.mark.parametrize("make", [chat_form, completion_form])
@pytest.mark.parametrize(
    ("finish", "status"),
    [
        (Finish("abort"), 499),
        (Finish("error", message="NaN", status_code=500), 500),
        (Finish("error"), 500),
        (Finish("abort", message="queue is full", status_code=503), 503),
    ],
)
def test_a_failed_sequence_is_an_error(make, finish, status):
    (news,) = make_news("a", finish)
    for answer in (lambda form: form.whole([news]), lambda form: form.chunk(0, news)):
        with pytest.raises(ApiError) as caught:
            answer(make())
        assert caught.value.status == status
        assert caught.value.body()["error"]["message"] == (
            finish.message or f"the request ended by {finish.type}"
        )


@given(st.text())
def test_a_line_of_json_has_no_line_ends_in_it(value):
    encoded = json_line(value)
    assert json.loads(encoded) == value
    assert len(encoded.decode().splitlines()) == 1
    assert parsed(event({"a": value})) == [{"a": value}]


def test_joined_news_have_the_counts_of_the_last():
    first = TextNews("r", "a", [1], None, 3, 1, 0)
    last = TextNews("r", "b", [2, 4], Finish("stop"), 3, 3, 2, jump_forward_tokens=1)
    joined = join_news([first, last])
    assert (joined.text, joined.token_ids, joined.completion_tokens) == ("ab", [1, 2, 4], 3)
    assert (joined.cached_tokens, joined.jump_forward_tokens) == (2, 1)
