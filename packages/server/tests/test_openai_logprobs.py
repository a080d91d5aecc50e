"""Logprobs as OpenAI's endpoints write them."""

from __future__ import annotations

import pytest

from phloem.server.http.logprobs import CompletionLogprobs, TokenNames, chat_logprobs
from phloem.server.messages import Logprobs, TextNews

HORSE = [*"🐎".encode()]


class ByteTokenizer:
    """Ids are bytes; 256 is a special token."""

    special_ids = frozenset({256})

    def token_bytes(self, token):
        return b"<end>" if token == 256 else bytes([token])


class WordTokenizer(ByteTokenizer):
    """Without a table of bytes."""

    token_bytes = None

    def decode(self, ids, skip_special_tokens=True):
        return "".join(f"w{i}" for i in ids)


@pytest.fixture
def names():
    return TokenNames(ByteTokenizer())


def news(ids, logprobs=None, prompt=None):
    return TextNews(
        rid="r",
        text="",
        token_ids=ids,
        finish=None,
        prompt_tokens=1,
        completion_tokens=1,
        cached_tokens=0,
        logprobs=logprobs,
        prompt_logprobs=prompt,
    )


def test_parts_of_a_character_have_names_of_their_own(names):
    assert [names.unique(t) for t in HORSE] == [f"bytes:\\x{t:02x}" for t in HORSE]
    assert names.unique(97) == "a"
    assert names.unique(256) == "<end>"


def test_a_tokenizer_without_bytes_decodes_its_tokens():
    assert TokenNames(WordTokenizer()).unique(7) == "w7"


def test_a_chat_has_an_entry_for_each_token(names):
    given = Logprobs([-1.0, -2.0], [[(98, -0.5), (97, -1.0)], [(HORSE[0], -2.0)]])
    first, second = chat_logprobs(names, news([97, HORSE[0]], given))["content"]
    assert first == {
        "token": "a",
        "logprob": -1.0,
        "bytes": [97],
        "top_logprobs": [
            {"token": "b", "logprob": -0.5, "bytes": [98]},
            {"token": "a", "logprob": -1.0, "bytes": [97]},
        ],
    }
    assert second["token"] == "\ufffd"
    assert second["bytes"] == HORSE[:1]
    assert chat_logprobs(names, news([]))["content"] == []


def test_without_candidates_a_chat_has_only_what_was_chosen(names):
    (entry,) = chat_logprobs(names, news([97], Logprobs([-1.0], [])))["content"]
    assert entry["top_logprobs"] == []


def test_a_completion_has_the_chosen_token_among_the_candidates(names):
    given = Logprobs([-2.0], [[(98, -0.5)]])
    made = CompletionLogprobs(names, (), True).of(news([97], given))
    assert made["top_logprobs"] == [{"b": -0.5, "a": -2.0}]
    made = CompletionLogprobs(names, (), True).of(news([97], Logprobs([-2.0], [])))
    assert made["top_logprobs"] == [{"a": -2.0}]


def test_offsets_go_on_over_chunks_and_count_characters(names):
    made = CompletionLogprobs(names, (), True)
    ids = [97, *HORSE, 256, 98]
    offsets = [made.of(news([i], Logprobs([-1.0], [])))["text_offset"][0] for i in ids]
    assert offsets == [0, 1, 2, 2, 2, 2, 2]


def test_special_tokens_that_are_shown_take_room(names):
    made = CompletionLogprobs(names, (), False)
    given = Logprobs([-1.0, -1.0], [])
    assert made.of(news([256, 98], given))["text_offset"] == [0, 5]


@pytest.mark.parametrize(
    ("ids", "skip", "echo", "offsets"),
    [
        ([256, 97, 98], True, "ab", [0, 0, 1]),
        ([256, 97, 98], False, "ab", [0, 0, 1]),
        ([256, 97, 98], False, "<end>ab", [0, 5, 6]),
        ([256, 97, 256, 98], True, "a<end>b", [0, 0, 1, 6]),
        ([97, *HORSE], True, "a🐎", [0, 1, 2, 2, 2]),
        ([32, 97], True, "a", [0, 0]),
        ([32, 97], True, " a", [0, 1]),
    ],
)
def test_offsets_in_an_echo_are_those_of_its_text(names, ids, skip, echo, offsets):
    """It has not what the tokenizer put in front, and it has marks that are tokens."""
    prompt = Logprobs([-1.0] * (len(ids) - 1), [])
    made = CompletionLogprobs(names, ids, skip, echo)
    first = made.of(news([99, 100], Logprobs([-1.0, -1.0], []), prompt))
    assert first["text_offset"] == [*offsets, len(echo), len(echo) + 1]
    assert made.of(news([99], Logprobs([-1.0], [])))["text_offset"] == [len(echo) + 2]


def test_an_echoed_prompt_comes_first_and_its_first_token_has_none(names):
    made = CompletionLogprobs(names, [97, 98], True, "ab")
    first = made.of(news([99], Logprobs([-3.0], [[(99, -3.0)]]), Logprobs([-2.0], [[(97, -1.0)]])))
    assert first["tokens"] == ["a", "b", "c"]
    assert first["token_logprobs"] == [None, -2.0, -3.0]
    assert first["top_logprobs"] == [None, {"a": -1.0, "b": -2.0}, {"c": -3.0}]
    assert made.of(news([99], Logprobs([-1.0], [])))["tokens"] == ["c"]
