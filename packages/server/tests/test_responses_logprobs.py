"""Which logprobs go with which text of a response, however its news come."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.server.http.answer_parts import AnswerParts, ChatHead, Reading
from phloem.server.http.logprobs import TokenNames
from phloem.server.http.responses.form import Head, ResponseForm
from phloem.server.http.responses.protocol import ResponseRequest
from phloem.server.messages import Finish, Logprobs, TextNews
from phloem.server.parsers.registry import notation_of

END = 0
"""A special token, which is no text."""


class Vocabulary:
    """A tokenizer whose tokens are the given bytes."""

    special_ids = frozenset({END})

    def __init__(self, tokens):
        self._tokens = [b"<end>", *tokens]

    def token_bytes(self, token):
        return self._tokens[token]


def respond(tokens, cuts, text=None, streamed=True, finish=None):
    """The events of a response to news that end behind the tokens `cuts`, or its whole answer."""
    names = TokenNames(Vocabulary(tokens))
    ids = [*range(1, len(tokens) + 1), END]
    text = b"".join(tokens) if text is None else text
    notation = notation_of("none", "deepseek-r1", None)
    reading = Reading(lambda: notation.parser("", ()), names)
    chat = ChatHead("c", "m", 1, False, names, [[1]], lambda: AnswerParts(reading), False, False)
    form = ResponseForm(Head("resp_1", "m", ResponseRequest(input="x")), chat, lambda made: None)
    told, seen, data = 0, 0, b""
    for cut in [*sorted(cuts), len(ids)] if streamed else [len(ids)]:
        last = cut == len(ids)
        ready = text if last else whole_characters(b"".join(tokens[:cut])[: len(text)])
        news = TextNews(
            "r",
            ready[seen:].decode(),
            ids[told:cut],
            (finish or Finish("stop", matched=END)) if last else None,
            prompt_tokens=1,
            completion_tokens=cut,
            cached_tokens=0,
            logprobs=Logprobs([-float(i) for i in ids[told:cut]], None),
        )
        told, seen = cut, len(ready)
        data += form.chunk(0, news) if streamed else form.whole([news])
    if not streamed:
        return json.loads(data)
    return [json.loads(e.split("data: ", 1)[1]) for e in data.decode().split("\n\n")[:-1]]


def whole_characters(data):
    return data.decode(errors="ignore").encode()


def texts(response):
    """The texts of messages, each with the bytes of the tokens that it has logprobs of."""
    return [
        (part["text"], [bytes(entry["bytes"]) for entry in part["logprobs"]])
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    ]


def agreed(tokens, cuts, **options):
    """What a response has, after seeing that all ways to be told agree."""
    whole = texts(respond(tokens, cuts, streamed=False, **options))
    events = respond(tokens, cuts, **options)
    assert texts(events[-1]["response"]) == whole
    told = [e for e in events if e["type"] == "response.output_text.delta"]
    assert [bytes(entry["bytes"]) for e in told for entry in e["logprobs"]] == [
        raw for _, raws in whole for raw in raws
    ]
    return whole


def tokens_of(*texts):
    return [text if isinstance(text, bytes) else text.encode() for text in texts]


@given(st.sets(st.integers(1, 12)))
@settings(max_examples=100, deadline=None)
def test_only_the_answers_own_tokens_are_told_however_the_news_come(cuts):
    tokens = tokens_of(
        "so", " I", " think", "</th", "ink>", "\n\n", "I", " am", b" \xe2\x80", b"\x9cso", "!", "!"
    )
    assert agreed(tokens, cuts) == [
        ("I am “so!!", tokens_of("I", " am", b" \xe2\x80", b"\x9cso", "!", "!"))
    ]


@given(
    st.lists(st.sampled_from(["a", "b", "ab", " ", "\n", "é", "</", "think>", ">x"]), min_size=1),
    st.sets(st.integers(1, 8)),
)
@settings(max_examples=300, deadline=None)
def test_every_token_of_the_text_is_told_once(texts, cuts):
    tokens = tokens_of("r", "</think>", "T", *texts)
    ((text, told),) = agreed(tokens, {cut for cut in cuts if cut < len(tokens)})
    assert b"".join(told) == text.encode() == b"T" + "".join(texts).encode()


@pytest.mark.parametrize("cuts", [set(), {3}, {3, 4, 5}])
def test_a_stop_string_is_none_of_the_text_nor_are_its_tokens(cuts):
    tokens = tokens_of("</think>", "he", "llo", " wor", "ld", "!")
    made = agreed(tokens, cuts, text=b"</think>hello wo", finish=Finish("stop", matched="rld!"))
    assert made == [("hello wo", tokens_of("he", "llo", " wor"))]


def test_a_token_that_ends_a_mark_and_begins_the_text_is_told():
    tokens = tokens_of("r", "</think", ">He", "y")
    assert agreed(tokens, {2}) == [("Hey", tokens_of(">He", "y"))]


def test_bytes_that_are_no_character_do_not_lose_the_others():
    tokens = tokens_of("</think>", "a", b"\xe2\x80", b"b", "c")
    made = agreed(tokens, set(), text="</think>a\ufffdbc".encode())
    assert made == [("a\ufffdbc", tokens_of("a", b"\xe2\x80", "b", "c"))]
