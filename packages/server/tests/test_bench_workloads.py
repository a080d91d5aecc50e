from __future__ import annotations

import json
import re

import pytest

from phloem.server.bench.workloads import (
    WORKLOADS,
    TextMaker,
    build,
    is_person,
    warm_up_workload,
)


def encode(text):
    """A token for each word, with the space before it, and for each mark."""
    return [hash(piece) for piece in re.findall(r" ?\w+|[^\w ]", text)]


@pytest.fixture
def make():
    return TextMaker(encode, 0)


@pytest.mark.parametrize("tokens", [1, 7, 64, 1024])
def test_texts_have_exactly_the_tokens_asked_for(make, tokens):
    assert len(encode(make.text(tokens, "key"))) == tokens


def test_texts_depend_on_seed_and_key_alone(make):
    other = TextMaker(encode, 0)
    other.text(5, "something else before")
    assert make.text(64, "a", 1) == other.text(64, "a", 1)
    assert len({make.text(64, "a", 1), make.text(64, "a", 2), make.text(64, "a", "1/2")}) == 3
    assert TextMaker(encode, 1).text(64, "a", 1) != make.text(64, "a", 1)


def test_a_text_leaves_the_tokens_of_what_it_is_joined_to(make):
    first, second = make.text(33, 1), make.text(12, 2)
    assert encode(first + second) == encode(first) + encode(second)


SHAPES = {
    # requests, prompt, output, at once
    "w1": (5, 128, 128, 1),
    "w2": (32, 256, 64, 16),
    "w3": (64, 1024 + 64, 32, 16),
}


@pytest.mark.parametrize("name", SHAPES)
def test_single_requests_have_their_shape(make, name):
    workload = build(name, make, 0)
    requests, prompt, output, at_once = SHAPES[name]
    assert (workload.name, len(workload.conversations), workload.concurrency) == (
        name,
        requests,
        at_once,
    )
    for conversation in workload.conversations:
        assert [len(encode(turn)) for turn in conversation.turns] == [prompt]
        assert (conversation.max_tokens, conversation.schema) == (output, None)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_repetition_is_the_same_every_time_and_unlike_the_others(make, name):
    assert build(name, make, 1) == build(name, TextMaker(encode, 0), 1)
    firsts = [build(name, make, rep).conversations[0].turns[0] for rep in range(3)]
    assert len(set(firsts)) == 3


@pytest.mark.parametrize("name", ["w1", "w2", "w4"])
def test_distinct_prompts_share_next_to_nothing(make, name):
    prompts = [c.turns[0] for rep in range(2) for c in build(name, make, rep).conversations]
    begins = {tuple(encode(prompt)[:16]) for prompt in prompts}
    assert len(begins) == len(prompts)


def test_the_shared_prefix_is_shared_and_what_follows_is_not(make):
    workload = build("w3", make, 0)
    prompts = [encode(c.turns[0]) for c in workload.conversations]
    assert len({tuple(prompt[:1024]) for prompt in prompts}) == 1
    assert len({tuple(prompt[1024:]) for prompt in prompts}) == 64
    assert workload.again == "w3warm"
    assert encode(build("w3", make, 1).conversations[0].turns[0])[:1024] != prompts[0][:1024]


def test_conversations_have_four_turns(make):
    workload = build("w4", make, 0)
    assert (len(workload.conversations), workload.concurrency) == (8, 8)
    for conversation in workload.conversations:
        assert [len(encode(turn)) for turn in conversation.turns] == [64] * 4
        assert len(set(conversation.turns)) == 4


def test_structured_requests_bring_their_schema(make):
    workload = build("w5", make, 0)
    assert (len(workload.conversations), workload.concurrency) == (16, 8)
    assert all(c.schema["additionalProperties"] is False for c in workload.conversations)


def test_the_warm_up_is_short(make):
    workload = warm_up_workload(make)
    assert sum(c.max_tokens for c in workload.conversations) == 64


def test_an_unknown_workload_is_refused_with_those_there_are(make):
    with pytest.raises(ValueError, match="no workload 'w9': known are w1, w2, w3, w4, w5"):
        build("w9", make, 0)


def test_a_tokenizer_without_the_words_is_refused():
    with pytest.raises(ValueError, match="has 0 as one token"):
        TextMaker(list, 0)


def test_a_tokenizer_that_joins_words_is_refused():
    def joins(text):
        return encode(text) if text.count(" ") < 2 else [0]

    with pytest.raises(ValueError, match="64 words came out as 1 tokens"):
        TextMaker(joins, 0).text(64)


PERSON = {"name": "A", "age": 3, "email": "a@b", "tags": ["x"]}


def test_a_person_is_one():
    assert is_person(json.dumps(PERSON))


@pytest.mark.parametrize(
    "change",
    [
        {"age": "3"},
        {"age": True},
        {"tags": ["x"] * 4},
        {"tags": [1]},
        {"tags": None},
        {"name": None},
        {"more": 1},
    ],
)
def test_what_breaks_the_schema_is_no_person(change):
    assert not is_person(json.dumps(PERSON | change))
    assert not is_person(json.dumps(PERSON)[:-1])
    assert not is_person("[]")
