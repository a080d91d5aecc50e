"""Outputs in every notation of calls and reasoning, servers that say them, and how they are asked,
for the tests of chats.
"""

from __future__ import annotations

import json

from phloem.server.http.chat_setup import ChatOptions

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


def maker_of_servers(serve, write_script, marked):
    """A function that serves outputs, each to the user who says its name, or to its prompt."""
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


def thinking_server(server_of):
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


def refusal(server, body):
    made = server.post("/v1/chat/completions", **body)
    assert made.status_code == 400, made.text
    return made.json()["error"]["param"], made.json()["error"]["message"]
