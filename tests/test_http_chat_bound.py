"""Constraints, calls that are made sure of and budgets beside reasoning: where they bind."""

from __future__ import annotations

import pytest
from chat_notations import (
    OUTPUTS,
    TOOLS,
    ask,
    both,
    calls_of,
    maker_of_servers,
    refusal,
    thinking_server,
)


@pytest.fixture(scope="module")
def server_of(serve, write_script, marked):
    return maker_of_servers(serve, write_script, marked)


@pytest.fixture(scope="module")
def thinking(server_of):
    return thinking_server(server_of)


def test_a_constraint_binds_behind_the_reasoning(thinking):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": schema}}
    message = both(thinking, "json", response_format=form)[0]["message"]
    assert message["reasoning_content"] == "{no}"
    assert message["content"] == '{"city":"B"}'


def test_without_reasoning_a_constraint_binds_from_the_beginning(thinking):
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": {"type": "object"}}}
    message = both(thinking, "no thought", response_format=form)[0]["message"]
    assert message["content"] == '{"city":"B"}'
    assert "reasoning_content" not in message
    message = both(thinking, "answer", response_format=form, max_tokens=20)[0]["message"]
    assert message["reasoning_content"] == "Well"
    assert message["content"].startswith("{")
    answer, _ = both(thinking, "long", max_thinking_tokens=2)
    assert answer["message"]["content"] == "An answer that is longer than its budget"


@pytest.mark.parametrize(
    ("choice", "finish"),
    [
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "weather"}}, "stop"),
    ],
)
def test_a_call_is_made_sure_of_behind_the_reasoning(thinking, choice, finish):
    """Case AP-09."""
    said = "list" if choice == "required" else "json"
    answer, _ = both(thinking, said, tools=TOOLS, tool_choice=choice)
    assert answer["message"]["reasoning_content"] in ("So", "{no}")
    assert calls_of(answer) == [("weather", {"city": "B"})]
    assert answer["finish_reason"] == finish


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "json_object"}}])
def test_reasoning_ends_within_its_budget(thinking, fields):
    choice, usage = both(thinking, "json", max_thinking_tokens=3, **fields)
    assert choice["message"]["reasoning_content"] == "{n"
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2
    refused = thinking.post("/v1/chat/completions", **ask("json", max_thinking_tokens=-1))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_thinking_tokens")


FORM = {"type": "json_object"}
NAMED = {"type": "function", "function": {"name": "weather"}}
BOUND = [
    ({"response_format": FORM}, "response_format"),
    ({"regex": "a"}, "regex"),
    ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": NAMED}, "tool_choice"),
    ({"max_thinking_tokens": 2}, "max_thinking_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), BOUND)
def test_what_cannot_be_made_sure_of_on_channels_is_refused(channels, fields, param):
    body = ask("native") | fields
    for stream in (False, True):
        named, why = refusal(channels, body | {"stream": stream})
        assert named == param
        assert "gpt-oss" in why


@pytest.fixture(scope="module")
def channels(server_of):
    native = OUTPUTS["gpt-oss"]
    return server_of({"native": native}, tool_call_parser="gpt-oss", reasoning_parser="gpt-oss")


@pytest.fixture(scope="module")
def spelled(server_of, chat_llama):
    """A model that may reason, whose tokenizer has no tokens for the marks."""
    outputs = {
        "json": '{"city":"B"}',
        "free": "An answer, and no object",
        "[user]json[assistant]<think>": 'x</think>{"city":"B"}',
    }
    return server_of(
        outputs,
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
        "{% if thinking %}<think>{% endif %}",
        tokenizer=str(chat_llama),
        reasoning_parser="qwen3",
    )


def test_without_tokens_for_the_marks_a_constraint_binds_from_the_beginning(spelled):
    message = both(spelled, "json", response_format=FORM)[0]["message"]
    assert message["content"] == '{"city":"B"}'
    message = both(spelled, "free", response_format=FORM, max_tokens=30)[0]["message"]
    assert message["content"].startswith("{")
    assert refusal(spelled, ask("free", max_thinking_tokens=2))[0] == "max_thinking_tokens"
    opened = {"chat_template_kwargs": {"thinking": True}}
    message = both(spelled, "json", **opened)[0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("x", '{"city":"B"}')
    assert refusal(spelled, ask("json", response_format=FORM, **opened))[0] == "response_format"
    assert refusal(spelled, ask("json", max_thinking_tokens=2, **opened))[0] == (
        "max_thinking_tokens"
    )


def test_what_a_constraint_makes_is_no_call_whatever_it_looks_like(server_of):
    call = '{"name": "weather", "parameters": {"x": 1}}'
    server = server_of({"go": call}, tool_call_parser="llama3-json")
    assert calls_of(both(server, "go", tools=TOOLS)[0]) == [("weather", {"x": 1})]
    for fields in ({"response_format": FORM}, {"choices": [call]}, {"json_schema": {}}):
        choice, _ = both(server, "go", tools=TOOLS, **fields)
        assert (choice["message"]["content"], calls_of(choice)) == (call, [])
        assert choice["finish_reason"] == "stop"
    # Tags are parts of a text that is free.
    tags = {"structures": [{"begin": "<c>", "schema": {}, "end": "</c>"}], "triggers": ["<c>"]}
    choice, _ = both(server, "go", tools=TOOLS, structural_tag={"type": "structural_tag", **tags})
    assert calls_of(choice) == [("weather", {"x": 1})]
