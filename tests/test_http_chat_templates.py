"""What chats bring to the template over HTTP: earlier answers, and the fields that steer it."""

from __future__ import annotations

import pytest
from chat_notations import TOOLS, ask, maker_of_servers, refusal, thinking_server


@pytest.fixture(scope="module")
def server_of(serve, write_script, marked):
    return maker_of_servers(serve, write_script, marked)


@pytest.fixture(scope="module")
def thinking(server_of):
    return thinking_server(server_of)


def test_what_a_client_sends_back_of_an_answer_reaches_the_template(server_of):
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}"
        "{% for c in m.tool_calls %}<{{ c.function.name }}:{{ c.function.arguments.city }}>"
        "{% endfor %}{% endif %}{{ m.reasoning_content }}{{ m.name }}{% endfor %}"
        "{% if enable_thinking is defined %}({{ enable_thinking }}){% endif %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    outputs = {
        "[user]hi[assistant]<weather:B>So[tool]sunweather[assistant]": "Sunny",
        "[user]hi(False)[assistant]": "No",
        "[user]hi[assistant]It is ": "done",
        "[user]hi": "Bare",
    }
    server = server_of(outputs, template, tool_call_parser="hermes", reasoning_parser="none")

    def answer(messages, **fields):
        body = ask("") | {"messages": messages, **fields}
        made = server.post("/v1/chat/completions", **body)
        assert made.status_code == 200, made.text
        return made.json()["choices"][0]["message"]["content"]

    hi = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    function = {"name": "weather", "arguments": '{"city": "B"}'}
    call = {"id": "c1", "type": "function", "function": function}
    turn = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "So"}
    result = {"role": "tool", "tool_call_id": "c1", "content": "sun"}
    assert answer([hi, turn, result]) == "Sunny"
    assert answer([hi], chat_template_kwargs={"enable_thinking": False}) == "No"
    assert answer([hi], reasoning_effort="none") == "No"
    begun = {"role": "assistant", "content": "It is "}
    assert answer([hi, begun], continue_final_message=True) == "done"
    assert answer([hi], add_generation_prompt=False) == "Bare"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(thinking, fields, param):
    refused = thinking.post("/v1/chat/completions", **ask("call") | fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    if param == "messages" and "image" in str(fields):
        assert "'image_url'" in refused.json()["error"]["message"]


@pytest.mark.parametrize("said", ["none", "open", "call", "call cut", "empty", "list"])
def test_an_answer_may_be_sent_back_as_it_is(thinking, said):
    for fields in ({"tools": TOOLS}, {}, {"tools": TOOLS, "max_tokens": 65}):
        made = thinking.post("/v1/chat/completions", **ask(said, **fields)).json()
        message = made["choices"][0]["message"]
        assert message["content"] is not None or message["tool_calls"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "?"}
            for call in message.get("tool_calls", ())
        ]
        talk = [{"role": "user", "content": said}, message, *results]
        sent = fields | {"messages": talk, "max_tokens": 1}
        again = thinking.post("/v1/chat/completions", **sent)
        assert again.status_code == 200, again.text


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": "x"},
        {"chat_template_kwargs": {"a": 1}},
        {"reasoning_effort": "low"},
        {"continue_final_message": True},
        {"add_generation_prompt": False},
    ],
)
def test_what_steers_a_template_is_refused_beside_ids(thinking, fields):
    body = {"input_ids": [5, 6], "max_tokens": 1}
    assert refusal(thinking, body | fields)[0] == next(iter(fields))
    nothing = {
        "chat_template_kwargs": {},
        "add_generation_prompt": True,
        "continue_final_message": False,
    }
    assert thinking.post("/v1/chat/completions", **body | nothing).status_code == 200


def test_a_call_is_not_continued_and_efforts_are_known(server_of):
    server = server_of({"x": "y"}, "{{ reasoning_effort }}{{ messages[-1].content }}")
    function = {"name": "weather", "arguments": "{}"}
    call = {"id": "c1", "type": "function", "function": function}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    talk = [{"role": "user", "content": "x"}, turn]
    body = {"messages": talk, "continue_final_message": True, "max_tokens": 1}
    assert refusal(server, body)[0] == "continue_final_message"
    assert refusal(server, ask("x", reasoning_effort="bogus"))[0] == "reasoning_effort"
    for effort in ("none", "minimal", "low", "medium", "high"):
        made = server.post("/v1/chat/completions", **ask("x", reasoning_effort=effort))
        assert made.status_code == 200
