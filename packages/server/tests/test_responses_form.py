"""Parts of an answer as OpenAI's response objects and events, with the client's own types."""

from __future__ import annotations

import json

import openai.types.responses as types
import pytest
from pydantic import TypeAdapter

from phloem.server.http.answer_parts import ChatHead
from phloem.server.http.errors import ApiError
from phloem.server.http.responses.form import Head, ResponseForm
from phloem.server.http.responses.protocol import ReasoningOptions, ResponseRequest
from phloem.server.messages import Finish, TextNews
from phloem.server.parsers import CallArguments, CallBegin, CallEnd, Content, Reasoning

EVENT = TypeAdapter(types.ResponseStreamEvent)
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


def form(steps=STEPS, kept=None, **asked):
    chat = ChatHead("c", "m", 1, False, None, [[1]], lambda: Scripted(steps), False, False)
    kept = [] if kept is None else kept
    return ResponseForm(
        Head("resp_1", "m", ResponseRequest(input="hi", **asked)), chat, kept.append
    )


def news(finish=None, text="x"):
    return TextNews("r", text, [1], finish, prompt_tokens=7, completion_tokens=5, cached_tokens=3)


def streamed(made, finish, steps=5):
    """The events, checked by the client's types."""
    data = b"".join(made.chunk(0, news()) for _ in range(steps - 1))
    data += made.chunk(0, news(finish)) + made.tail()
    events = [json.loads(e.split("data: ", 1)[1]) for e in data.decode().split("\n\n")[:-1]]
    names = [e.split("\n", 1)[0] for e in data.decode().split("\n\n")[:-1]]
    assert names == [f"event: {event['type']}" for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return [EVENT.validate_python(event) for event in events]


def unnamed(output):
    """Items without what differs by chance."""
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


def test_a_stream_has_the_official_events_in_their_order():
    events = streamed(form(), Finish("stop"))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    indices = [event.output_index for event in events if hasattr(event, "output_index")]
    assert indices == sorted(indices)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output


def test_a_whole_response_is_the_streamed_one():
    whole = json.loads(form().whole([news(Finish("stop"), "")]))
    types.Response.model_validate(whole)
    last = streamed(form(), Finish("stop"))[-1].response
    assert unnamed(whole["output"]) == unnamed(last.model_dump(exclude_unset=True)["output"])
    assert whole["status"] == "completed"
    assert whole["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }
    assert [item["status"] for item in whole["output"]] == ["completed"] * 3


def test_reasoning_is_told_as_its_own_summary_where_one_is_asked_for():
    events = streamed(form(reasoning=ReasoningOptions(summary="auto")), Finish("stop"))
    assert [event.type.removeprefix("response.") for event in events[2:9]] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert events[-1].response.output[0].summary[0].text == "I think"
    assert events[-1].response.output[0].content is None


@pytest.mark.parametrize("steps", [2, 4])
def test_what_was_cut_is_incomplete(steps):
    events = streamed(form(STEPS[:steps]), Finish("length"), steps)
    response = events[-1].response
    assert events[-1].type == "response.incomplete"
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    statuses = [item.status for item in response.output]
    assert statuses == ["completed"] * (len(statuses) - 1) + ["incomplete"]


def test_a_failure_in_mid_stream_is_the_last_event():
    kept = []
    made = form(kept=kept)
    made.chunk(0, news())
    name, data = made.failure(ApiError("the engine has ended", 503)).decode().split("\n", 1)
    event = EVENT.validate_json(data.removeprefix("data: "))
    assert name == "event: response.failed"
    assert event.response.status == "failed"
    assert event.response.error.message == "the engine has ended"
    assert event.response.output[0].status == "incomplete"
    assert kept == []


def test_a_response_is_kept_when_it_has_ended_and_before_that_is_told():
    kept = []
    made = form(STEPS[:1], kept)
    assert not kept
    made.chunk(0, news(Finish("stop")))
    assert [response["id"] for response in kept] == ["resp_1"]
    form(kept=kept).whole([news(Finish("stop"), "")])
    assert len(kept) == 2


def test_a_sequence_that_failed_is_an_error():
    with pytest.raises(ApiError, match="NaN"):
        form().chunk(0, news(Finish("error", message="NaN")))


def test_what_was_asked_is_told_back():
    asked = {"instructions": "be brief", "temperature": 0.5, "metadata": {"a": "b"}, "store": False}
    fields = json.loads(form(**asked).whole([news(Finish("stop"), "")]))
    assert fields | asked == fields
