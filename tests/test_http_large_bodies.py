"""Large bodies over HTTP: the answers are those that there would be without a process for them."""

from __future__ import annotations

import json

import pytest

PAD = "x" * (1 << 20)
"""So much text makes a body one that is read apart."""
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"enum": ["yes", "no, never"], "description": "y" * 50_000}
GREEDY = {"temperature": 0, "max_tokens": 40}
NATIVE = {"temperature": 0, "max_new_tokens": 40}
CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"

SERVED = {
    "chat": (CHAT, {"messages": HELLO, **GREEDY}),
    "completion": (COMPLETIONS, {"prompt": [[5, 6, 7], [8]], **GREEDY}),
    "schema": (COMPLETIONS, {"prompt": "x", "json_schema": SCHEMA, **GREEDY}),
    "native schema": (
        GENERATE,
        {"text": ["x", "y"], "sampling_params": [NATIVE, {"json_schema": SCHEMA, **NATIVE}]},
    ),
    "check": ("/v1/grammar/check", {"json_schema": SCHEMA}),
    "tokenize": ("/tokenize", {"prompt": "hello"}),
}
REFUSED = {
    "unknown field": ("/abort_request", {"rid": PAD}),
    "entries": (COMPLETIONS, {"prompt": [[]] * 100_000}),
    "values": (COMPLETIONS, {"prompt": "x", "choices": [PAD, 1]}),
    "two constraints": (CHAT, {"messages": HELLO, "json_schema": SCHEMA, "regex": PAD}),
    "options": (CHAT, {"messages": HELLO, "json_schema": SCHEMA, "grammar_options": 1}),
    "type": (GENERATE, {"text": PAD, "sampling_params": 1}),
    "long prompt": (CHAT, {"messages": [{"role": "user", "content": PAD}]}),
    "long message": (MESSAGES, {"messages": [{"role": "user", "content": PAD}], "max_tokens": 4}),
    "long response": (RESPONSES, {"input": PAD}),
}


@pytest.fixture(scope="module")
def servers(serve, phloem_serve, chat_llama):
    """One that reads all bodies in place, and one that does not."""
    return serve(chat_llama), phloem_serve(chat_llama)


def answers(servers, path, fields):
    """What both say to a body that `PAD` makes large."""
    body = json.dumps({"user": PAD} | fields)
    headers = {"Content-Type": "application/json"}
    return [each.http.post(path, content=body, headers=headers) for each in servers]


def said(response):
    """A response without what differs between equal ones: ids and times."""
    content = response.json()
    for each in content if isinstance(content, list) else [content]:
        for part in (each, *each.get("choices", ())):
            for name in ("id", "created", "timings"):
                part.pop(name, None)
        if "meta_info" in each:
            each["meta_info"] = {"finish_reason": each["meta_info"]["finish_reason"]}
    return response.status_code, content


@pytest.mark.parametrize("case", SERVED)
def test_what_is_served_is_the_same(servers, case):
    here, apart = map(said, answers(servers, *SERVED[case]))
    assert apart == here
    assert here[0] == 200


def test_a_schema_from_a_large_body_is_enforced(servers):
    for response in answers(servers, *SERVED["schema"]):
        assert json.loads(response.json()["choices"][0]["text"]) in SCHEMA["enum"]
    for response in answers(servers, *SERVED["native schema"]):
        assert json.loads(response.json()[1]["text"]) in SCHEMA["enum"]


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_so_in_the_same_words(servers, case):
    here, apart = map(said, answers(servers, *REFUSED[case]))
    assert apart == here
    assert here[0] == 400
    assert here[1]["error"]["message"]
