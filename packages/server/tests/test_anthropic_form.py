"""Parts of an answer as Anthropic's messages and events, with the client's own types."""

from __future__ import annotations

import json

import anthropic.types as types
import pytest
from pydantic import TypeAdapter

from phloem.server.http.answer_parts import ChatHead
from phloem.server.http.anthropic.errors import error_body
from phloem.server.http.anthropic.form import Head, MessageForm
from phloem.server.http.errors import ApiError
from phloem.server.messages import Finish, TextNews
from phloem.server.parsers import CallArguments, CallBegin, CallEnd, Content, Reasoning

EVENT = TypeAdapter(types.RawMessageStreamEvent)
STEPS = [
    [Reasoning("I "), Reasoning("think")],
    [Content("so:")],
    [Content(" yes")],
    [CallBegin(0, "add"), CallArguments(0, '{"a":')],
    [CallArguments(0, "1}"), CallEnd(0)],
]


class Scripted:
    """Gives out parts, those of a step for each news."""

    reasoning_tokens = 2

    def __init__(self, steps):
        self.steps = list(steps)

    def take(self, news):
        count = len(self.steps) if news.finish and not news.text else 1
        taken, self.steps = self.steps[:count], self.steps[count:]
        return [part for step in taken for part in step]


def form(steps=STEPS, **head):
    chat = ChatHead("c", "m", 1, False, None, [[1]], lambda: Scripted(steps), False, False)
    return MessageForm(Head("msg_1", "m", **head), chat)


def news(finish=None, text="x", cached=3):
    return TextNews("r", text, [1], finish, 7, 5, cached)


def whole(made, finish):
    message = json.loads(made.whole([news(finish, "")]))
    types.Message.model_validate(message)
    return message


STOP = Finish("stop")


def streamed(made, finish=STOP, steps=5):
    """The events, checked by the client's types."""
    data = b"".join(made.chunk(0, news()) for _ in range(steps - 1))
    data += made.chunk(0, news(finish)) + made.tail()
    blocks = [block.split("\n") for block in data.decode().split("\n\n")[:-1]]
    events = [json.loads(line.removeprefix("data: ")) for _, line in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in events]
    for event in events:
        if event["type"] != "ping":
            EVENT.validate_python(event)
    return events


def joined(events):
    """The content that a client puts together."""
    content, texts = [], []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(content)
            content.append(event["content_block"])
            texts.append("")
        elif event["type"] == "content_block_delta":
            kind, text = event["delta"].values()
            texts[event["index"]] += text
            assert kind == {"text": "text_delta", "thinking": "thinking_delta"}.get(
                content[event["index"]]["type"], "input_json_delta"
            )
    for block, text in zip(content, texts):
        kind = block["type"]
        block |= {"input": json.loads(text)} if kind == "tool_use" else {kind: text}
    return content


def test_a_stream_has_the_official_events_in_their_order():
    kinds = [event["type"] for event in streamed(form())]
    block = ["content_block_start", *["content_block_delta"] * 2, "content_block_stop"]
    assert kinds == ["message_start", "ping", *block * 3, "message_delta", "message_stop"]


def test_a_whole_message_is_the_streamed_one():
    message = whole(form(), Finish("stop"))
    assert message["content"] == joined(streamed(form()))
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["content"][2]["input"] == {"a": 1}
    assert message["role"] == "assistant"
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 2}


@pytest.mark.parametrize(
    ("steps", "finish", "reason", "sequence"),
    [
        (STEPS[:2], Finish("stop"), "end_turn", None),
        (STEPS[:2], Finish("stop", 5), "end_turn", None),
        (STEPS[:2], Finish("stop", "END"), "stop_sequence", "END"),
        (STEPS[:2], Finish("length"), "max_tokens", None),
        (STEPS, Finish("stop"), "tool_use", None),
        (STEPS[:4], Finish("length"), "max_tokens", None),
    ],
)
def test_how_a_message_ended_has_anthropics_names(steps, finish, reason, sequence):
    message = whole(form(steps), finish)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    (delta,) = [e["delta"] for e in streamed(form(steps), finish, len(steps)) if "delta" in e][-1:]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_call_that_was_cut_has_no_input():
    assert whole(form(STEPS[:4]), Finish("length"))["content"][-1]["input"] == {}


def test_thinking_that_is_not_to_be_shown_is_an_empty_block():
    message = whole(form(show_thinking=False), Finish("stop"))
    assert message["content"][0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert joined(streamed(form(show_thinking=False)))[0]["thinking"] == ""


@pytest.mark.parametrize(
    ("marked", "cached", "counts"),
    [
        (0, 3, (4, 3, 0)),
        (5, 3, (2, 3, 2)),
        (5, 0, (2, 0, 5)),
        (5, 6, (1, 6, 0)),
    ],
)
def test_read_created_and_other_input_tokens_add_up_to_the_prompt(marked, cached, counts):
    made = form(ttl="1h", marked_tokens=marked)
    usage = json.loads(made.whole([news(Finish("stop"), "", cached)]))["usage"]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert tuple(usage[name] for name in names) == counts
    assert sum(counts) == 7
    assert usage["cache_creation"]["ephemeral_1h_input_tokens"] == counts[2]


def test_a_failure_in_mid_stream_is_an_event_of_its_own():
    made = form()
    made.chunk(0, news())
    name, data = made.failure(ApiError("the engine has ended", 503)).decode().split("\n", 1)
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "the engine has ended"},
    }


def test_a_sequence_that_failed_is_an_error():
    with pytest.raises(ApiError, match="NaN"):
        form().chunk(0, news(Finish("error", message="NaN")))


def test_what_took_too_long_is_a_timeout():
    assert error_body(ApiError("it took too long", 408))["error"]["type"] == "timeout_error"
