"""Chats over HTTP in every notation of calls and reasoning: streamed and whole say the same."""

from __future__ import annotations

import pytest
from chat_notations import (
    CALLS,
    OUTPUTS,
    TOOLS,
    ask,
    both,
    calls_of,
    maker_of_servers,
    thinking_server,
)


@pytest.fixture(scope="module")
def server_of(serve, write_script, marked):
    return maker_of_servers(serve, write_script, marked)


@pytest.fixture(scope="module")
def thinking(server_of):
    return thinking_server(server_of)


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_notation_is_read_streamed_and_whole(server_of, name):
    """Cases TO-01, TO-03 and AP-09: auto with a call ends with tool_calls."""
    server = server_of(
        {"go": OUTPUTS[name]},
        tool_call_parser=name,
        reasoning_parser=name if name == "gpt-oss" else "none",
    )
    choice, _ = both(server, "go", tools=TOOLS)
    expected = [CALLS[0], CALLS[2]] if name == "pythonic" else CALLS
    assert calls_of(choice) == expected
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == ("Look. " if "Look" in OUTPUTS[name] else None)
    first, _ = both(server, "go", tools=TOOLS, parallel_tool_calls=False)
    assert calls_of(first) == expected[:1]


def test_reasoning_and_calls_come_apart(thinking):
    choice, usage = both(thinking, "call", tools=TOOLS)
    assert choice["message"]["reasoning_content"] == "A city, 'B'"
    assert choice["message"]["content"] == "Look. "
    assert calls_of(choice) == CALLS
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("\nA city, 'B'") - 1


def test_marks_are_read_though_special_tokens_are_skipped(thinking):
    """Case ST-07: the marks are special tokens; another one is skipped on both sides of them."""
    message = both(thinking, "special")[0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("ab", "cd")
    message = both(thinking, "special", stop=["never</think>", "<othe!"])[0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("ab", "cd")


def test_an_answer_need_not_begin_with_reasoning(thinking):
    message = both(thinking, "none")[0]["message"]
    assert message["content"] == "Yes"
    assert "reasoning_content" not in message
    message = both(thinking, "open")[0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Well", "")


def test_reasoning_may_stay_in_the_content_or_come_at_once(thinking):
    message = both(thinking, "answer", separate_reasoning=False)[0]["message"]
    assert message["content"] == "<think>Well</think>Yes"
    events = thinking.events("/v1/chat/completions", **ask("answer", stream_reasoning=False))
    deltas = [event["choices"][0]["delta"] for event in events]
    assert [d["reasoning_content"] for d in deltas if "reasoning_content" in d] == ["Well"]
    both(thinking, "answer", stream_reasoning=False)


def test_what_is_cut_is_content_and_no_call(thinking):
    """Case TO-04."""
    for said in ("call cut", "mark cut"):
        choice, _ = both(thinking, said, tools=TOOLS)
        assert choice["finish_reason"] == "stop"
        assert calls_of(choice) == []
        assert choice["message"]["content"].endswith(("<tool_c", '"weather", '))
    choice, _ = both(thinking, "mark cut", tools=TOOLS, max_tokens=len("Well <tool_c"))
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Well <tool_c", "length")
    choice, _ = both(thinking, "number", tools=TOOLS)
    assert calls_of(choice) == [("weather", {"city": 5})], "as the model wrote it"
    within = len("<think>") + 60
    choice, _ = both(thinking, "call", tools=TOOLS, max_tokens=within)
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"].startswith('{"')


def test_calls_of_what_is_no_tool_are_content(thinking):
    for fields in ({"tools": TOOLS}, {}, {"tools": TOOLS, "tool_choice": "none"}):
        choice, _ = both(thinking, "other", **fields)
        assert choice["message"]["content"].startswith('<tool_call>{"name": "other"')
        assert choice["finish_reason"] == "stop"
    assert both(thinking, "call")[0]["message"]["content"].count("<tool_call>") == 3


def test_each_logprob_comes_once(thinking):
    choice, usage = both(thinking, "call", tools=TOOLS, logprobs=True)
    assert len(choice["logprobs"]["content"]) == usage["completion_tokens"]


def test_each_choice_has_a_parser_of_its_own(thinking):
    """Case ST-12."""
    body = ask("call", tools=TOOLS, n=3)
    whole = thinking.post("/v1/chat/completions", **body).json()["choices"]
    thoughts = dict.fromkeys(range(3), "")
    for event in thinking.events("/v1/chat/completions", **body):
        (choice,) = event["choices"]
        thoughts[choice["index"]] += choice["delta"].get("reasoning_content", "")
    for choice in whole:
        assert calls_of(choice) == CALLS
        assert choice["message"]["reasoning_content"] == thoughts[choice["index"]] == "A city, 'B'"


def test_every_form_of_answer_begins_alike(thinking):
    for fields in ({}, {"tools": TOOLS}, {"return_token_ids": True}):
        first = thinking.events("/v1/chat/completions", **ask("none", **fields))[0]
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
