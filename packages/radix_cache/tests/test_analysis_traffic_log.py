import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phloem.radix_cache.analysis.traffic_log import BadLine, LoggedRequest, RequestReader


def read(*lines, tokenizer=None):
    return list(
        RequestReader(tokenizer).read(
            line if isinstance(line, str) else json.dumps(line) for line in lines
        )
    )


class Letters:
    """A token for each letter; a chat begins with 0."""

    def encode(self, text):
        return [1, *map(ord, text)]

    def encode_output(self, text):
        return [*map(ord, text)]

    def encode_chat(self, messages, tools):
        if any("content" not in message for message in messages):
            raise ValueError("the chat template refuses these messages: no content")
        return [0, *map(ord, "".join(message["content"] for message in messages)), len(tools or ())]


CHAT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ({"prompt": "Hello"}, "Hello"),
        ({"text": "Hello"}, "Hello"),
        ({"input_ids": [1, 2]}, [1, 2]),
        ({"token_ids": [1, 2]}, [1, 2]),
        ({"prompt_token_ids": [1, 2], "prompt": "shown"}, [1, 2]),
        ({"prompt": [1, 2]}, [1, 2]),
        ({"prompt": []}, []),
        ({"messages": CHAT}, "<|system|>\nBe kind.\n<|user|>\nHi\n"),
        ({"body": {"prompt": "Hello"}, "custom_id": "7", "method": "POST"}, "Hello"),
        ({"request": {"text": "Hello"}}, "Hello"),
    ],
)
def test_the_forms_of_real_logs_are_understood(line, prompt):
    assert read(line) == [LoggedRequest(prompt, (), type(prompt)())]


def test_a_list_of_prompts_is_several_requests():
    both = read({"prompt": ["a", "b"], "cache_salt": "s"})
    assert [request.prompt for request in both] == ["a", "b"]
    assert read({"prompt": [[1], [2, 3]]})[1].prompt == [2, 3]


def test_what_keeps_requests_apart_becomes_the_namespace():
    (one,) = read({"text": "a", "namespace": ["team", 7], "cache_salt": "x", "model": "m"})
    assert one.namespace == (("model", "m"), ("namespace", ("team", 7)), ("cache_salt", "x"))
    assert read({"text": "a", "cache_salt": None})[0].namespace == ()


def test_outputs_are_read_if_they_are_of_the_same_kind():
    assert read({"text": "a", "completion": "b"})[0].output == "b"
    assert read({"input_ids": [1], "output_ids": [2]})[0].output == [2]
    (bad,) = read({"input_ids": [1], "output": "text"})
    assert "one of prompt and output is a text and the other ids" in bad.reason
    assert read({"text": "a", "response": {"choices": []}})[0].output == "", "an answer's envelope"


def test_chats_keep_parts_tools_and_calls_in_the_text():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "see"}]},
    ]
    (request,) = read({"messages": messages, "tools": [{"name": "see"}]})
    assert request.prompt == (
        '<|tools|>\n[{"name": "see"}]\n'
        '<|user|>\nLook: {"type": "image_url"}\n'
        '<|assistant|>\n[{"name": "see"}]\n'
    )


def test_with_a_tokenizer_everything_becomes_ids():
    text, ids, chat = read(
        {"text": "ab", "output": "c"},
        {"input_ids": [5]},
        {"messages": CHAT, "tools": [{}]},
        tokenizer=Letters(),
    )
    assert (text.prompt, text.output) == ([1, 97, 98], [99])
    assert (ids.prompt, ids.output) == ([5], [])
    assert (chat.prompt[0], chat.prompt[-1]) == (0, 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is no JSON"),
        ("[1]", "it is a JSON list, not an object"),
        ({}, "only nothing"),
        ({"question": "?"}, "only 'question'"),
        ({"prompt": 7}, "prompt is a int: a list of token ids is needed"),
        ({"prompt": None}, "prompt is a NoneType"),
        ({"prompt": [1, "a"]}, "prompt holds 'a', which is no token id"),
        ({"prompt": ["a", 1]}, "prompt is a int"),
        ({"input_ids": [True]}, "holds True"),
        ({"input_ids": [2**31]}, "holds 2147483648"),
        ({"messages": "hi"}, "messages is no list of objects"),
        ({"messages": [{"content": 7}]}, "content is a int"),
        ({"messages": [], "tools": 7}, "tools is no list"),
        ({"text": "a", "namespace": 1.5}, "namespace holds a float"),
        ({"text": "a", "cache_salt": True}, "cache_salt holds a bool"),
    ],
)
def test_a_bad_line_is_named_and_the_others_are_read(line, reason):
    first, bad, last = read({"text": "a"}, line, {"text": "b"})
    assert isinstance(bad, BadLine)
    assert bad.line == 2
    assert reason in bad.reason
    assert (first.prompt, last.prompt) == ("a", "b")


def test_a_template_that_refuses_a_chat_makes_a_bad_line():
    (bad,) = read({"messages": [{"role": "user"}]}, tokenizer=Letters())
    assert str(bad) == "line 1: the chat template refuses these messages: no content"


def test_texts_and_ids_in_one_log_are_not_compared():
    reader = RequestReader()
    assert not reader.counts_text
    lines = ['{"text": "a"}', "", '{"input_ids": [1]}', '{"text": "b"}']
    first, bad, last = reader.read(lines)
    assert reader.counts_text
    assert str(bad).startswith("line 3: it has ids in a log of texts")
    assert (first.prompt, last.prompt) == ("a", "b")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "text", "prompt", "tool_calls"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


# Nested JSON takes a while to draw, too long for a health check if the machine has other work.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(
            ["prompt", "text", "input_ids", "messages", "body", "output", "namespace", "tools"]
        ),
        json_values,
        max_size=3,
    )
)
def test_any_json_gives_requests_or_a_bad_line(line):
    for request in read(line):
        if isinstance(request, LoggedRequest):
            assert type(request.prompt) is type(request.output)
            hash(request.namespace)
        else:
            assert request.line == 1
