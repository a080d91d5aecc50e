"""Chats over HTTP in every notation of calls and reasoning: streamed and whole say the same."""

from __future__ import annotations

import json

import pytest

BAR = "\uff5c"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|channel|>")
"""Special tokens of the test's tokenizer; other marks are spelled."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time-of")
]
CALLS = [("weather", {"city": "Z\u00fcrich }\u2028"}), ("time-of", {}), ("weather", {"city": "B"})]

OBJECTS = [json.dumps({"name": n, "arguments": a}, ensure_ascii=False) for n, a in CALLS]
NAMED = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in CALLS]
OUTPUTS = {
    "hermes": "Look. " + "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in OBJECTS),
    "llama3-json": "; ".join(o.replace("arguments", "parameters") for o in OBJECTS),
    "mistral": f"Look. [TOOL_CALLS] [{', '.join(OBJECTS)}]",
    "pythonic": '[weather(city="Z\u00fcrich }\u2028"), weather(city="B")]',
    "deepseek": f"Look. <{BAR}tool▁calls▁begin{BAR}>"
    + "\n".join(
        f"<{BAR}tool▁call▁begin{BAR}>function<{BAR}tool▁sep{BAR}>{n}\n```json\n{a}\n```"
        f"<{BAR}tool▁call▁end{BAR}>"
        for n, a in NAMED
    )
    + f"<{BAR}tool▁calls▁end{BAR}>",
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|>"
    + "".join(
        f"<|start|>assistant<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{a}"
        for n, a in NAMED
    ),
}
THOUGHT = "<think>\nA city, 'B'</think>\n\n" + OUTPUTS["hermes"]


@pytest.fixture(scope="module")
def server_of(serve, write_script, marked):
    """Serves outputs, each to the user who says its name, or to its prompt."""
    from phloem.server.http.chat_setup import ChatOptions

    tokenizer = marked(*MARKS, "<other>")

    def make(outputs, template=None, tokenizer=tokenizer, **options):
        script = write_script(
            [
                {"prompt": said if "]" in said else f"[user]{said}[assistant]", "output": output}
                for said, output in outputs.items()
            ],
            tokenizer=tokenizer,
        )
        return serve(script, {"chat": ChatOptions(chat_template=template, **options)})

    return make


@pytest.fixture(scope="module")
def thinking(server_of):
    """A server of a model that reasons and calls."""
    cut = THOUGHT.index('"arguments"')
    return server_of(
        {
            "call": THOUGHT,
            "answer": "<think>Well</think>Yes",
            "none": "Yes",
            "open": "<think>Well",
            "call cut": THOUGHT[:cut],
            "mark cut": "Well <tool_c",
            "other": '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
            "special": "<think>a<other>b</think>c<other>d",
            "json": '<think>{no}</think>{"city":"B"}',
            "number": '<tool_call>{"name": "weather", "arguments": {"city": 5}}</tool_call>',
            "no thought": '{"city":"B"}',
            "long": "An answer that is longer than its budget",
            "list": '<think>So</think>[{"name":"weather","arguments":{"city":"B"}}]',
        },
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
    )


def ask(said, **fields):
    message = {"role": "user", "content": said}
    return {"messages": [message], "temperature": 0, "max_tokens": 1000, **fields}


def both(server, said, **fields):
    """A choice that came whole; the same was streamed, as the official client reads it."""
    body = ask(said, **fields)
    whole = server.post("/v1/chat/completions", **body)
    assert whole.status_code == 200, whole.text
    (choice,) = whole.json()["choices"]
    message = choice["message"]
    extra = {k: body.pop(k) for k in list(body) if k not in OPENAI_FIELDS}
    stream = server.openai().chat.completions.create(
        model="tiny", stream=True, extra_body=extra, **body
    )
    said, thought, calls, finish, logprobs = "", "", [], None, []
    for chunk in stream:
        (part,) = chunk.choices
        said += part.delta.content or ""
        thought += getattr(part.delta, "reasoning_content", None) or ""
        for call in part.delta.tool_calls or ():
            if call.id is not None:
                assert (call.index, call.type) == (len(calls), "function")
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments
        logprobs += part.logprobs.content if part.logprobs else []
        finish = part.finish_reason or finish
    assert said == (message["content"] or "")
    assert thought == message.get("reasoning_content", "")
    told = [c["function"] for c in message.get("tool_calls", ())]
    assert calls == [[call["name"], call["arguments"]] for call in told]
    assert finish == choice["finish_reason"]
    if choice["logprobs"] is not None:
        assert [entry.model_dump() for entry in logprobs] == choice["logprobs"]["content"]
    return choice, whole.json()["usage"]


OPENAI_FIELDS = {
    "messages",
    "temperature",
    "max_tokens",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "logprobs",
    "response_format",
    "stop",
}


def calls_of(choice):
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in choice["message"].get("tool_calls", ())
    ]


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


def refusal(server, body):
    made = server.post("/v1/chat/completions", **body)
    assert made.status_code == 400, made.text
    return made.json()["error"]["param"], made.json()["error"]["message"]


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


def test_every_form_of_answer_begins_alike(thinking):
    for fields in ({}, {"tools": TOOLS}, {"return_token_ids": True}):
        first = thinking.events("/v1/chat/completions", **ask("none", **fields))[0]
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


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
