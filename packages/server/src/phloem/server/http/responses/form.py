"""Answers as OpenAI's response objects, streamed as its typed events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from phloem.scheduler import SamplingParams
from phloem.server.http.answer_parts import ChatHead
from phloem.server.http.blocks import Begun, Blocks, Change, Grown
from phloem.server.http.errors import ApiError, raise_if_failed
from phloem.server.http.responses.aligned import AlignedEntries, Entry
from phloem.server.http.responses.items import Event, OutputItem, item_of
from phloem.server.http.responses.protocol import ResponseRequest
from phloem.server.http.sse import named_event
from phloem.server.http.truth import truth_fields
from phloem.server.messages import Finish, TextNews

Keep = Callable[[dict[str, Any]], None]
"""Takes a response that has come to its end."""

_DEFAULTS = SamplingParams()


@dataclass(frozen=True)
class Head:
    """What a response is whatever comes of it."""

    id: str
    model: str
    asked: ResponseRequest
    created_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def summarized(self) -> bool:
        """Whether reasoning is told as its own summary."""
        reasoning = self.asked.reasoning
        return reasoning is not None and bool(reasoning.summary or reasoning.generate_summary)

    def fields(self, status: str) -> dict[str, Any]:
        """As JSON, without an output."""
        asked = self.asked
        reasoning, text = asked.reasoning, asked.text
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self.model,
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "reasoning": {
                "effort": reasoning and reasoning.effort,
                "summary": reasoning and (reasoning.summary or reasoning.generate_summary),
            },
            "store": asked.store is not False,
            "temperature": _or(asked.temperature, _DEFAULTS.temperature),
            "text": {"format": (text and text.format) or {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": asked.tools or [],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": _or(asked.top_p, _DEFAULTS.top_p),
            "truncation": "disabled",
            "usage": None,
            "user": asked.user,
        }


def _or(given: float | None, default: float) -> float:
    return default if given is None else given


class ResponseForm:
    """The one sequence of a response; implements `phloem.server.http.generation.Form`."""

    def __init__(self, head: Head, chat: ChatHead, keep: Keep) -> None:
        """`keep` is told of the response when it has ended, before its client is."""
        self._head = head
        self._aligned = None if chat.names is None else AlignedEntries(chat.names)
        self._parts = chat.new_parts()
        self._keep = keep
        self._prompt = chat.prompts[0] if chat.token_ids else None
        """Where token ids are wanted."""
        self._ids: list[int] = []
        self._blocks = Blocks()
        self._items: list[OutputItem] = []
        self._told = 0
        """Events."""

    def chunk(self, index: int, news: TextNews) -> bytes:
        """The events of what is new."""
        raise_if_failed(news.finish)
        events: list[Event] = []
        if not self._told:
            begun = {"response": self._head.fields("in_progress")}
            events = [("response.created", begun), ("response.in_progress", begun)]
        events += self._take(news)
        if news.finish is not None:
            response = self._response(news, news.finish)
            self._keep(response)
            events.append((f"response.{response['status']}", {"response": response}))
        return b"".join(map(self._event, events))

    def tail(self) -> bytes:
        """Nothing: the last event was that of the end."""
        return b""

    def failure(self, error: ApiError) -> bytes:
        """The response has failed."""
        told = error.body()["error"]
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        for item in self._items:
            item.status = "incomplete" if item.status == "in_progress" else item.status
        fields = self._head.fields("failed") | {
            "output": [item.fields() for item in self._items],
            "error": {"code": code, "message": told["message"]},
        }
        return self._event(("response.failed", {"response": fields}))

    def whole(self, outputs: Sequence[TextNews]) -> bytes:
        """The response."""
        (output,) = outputs
        raise_if_failed(output.finish)
        assert output.finish is not None, f"{output.rid} has not ended"
        for _ in self._take(output):
            pass
        response = self._response(output, output.finish)
        self._keep(response)
        return msgspec.json.encode(response)

    def _take(self, news: TextNews) -> Iterator[Event]:
        """What news tell of the items. To be read to its end."""
        self._ids += news.token_ids
        for piece in (news,) if self._aligned is None else self._aligned.pieces(news):
            for change in self._blocks.take(self._parts.take(piece)):
                yield from self._tell(change, cut=False)
        if news.finish is not None:
            for change in self._blocks.end():
                yield from self._tell(change, cut=news.finish.type == "length")

    def _tell(self, change: Change, cut: bool) -> Iterator[Event]:
        index = change.block.index
        if isinstance(change, Begun):
            item = item_of(change.block, self._head.summarized)
            self._items.append(item)
            yield "response.output_item.added", {"output_index": index, "item": item.fields()}
            yield from item.begun()
        elif isinstance(change, Grown):
            yield self._items[index].grown(change.text, self._entries_of(change))
        else:
            item = self._items[index]
            item.status = "completed" if change.block.whole and not cut else "incomplete"
            yield from item.ended()
            yield "response.output_item.done", {"output_index": index, "item": item.fields()}

    def _entries_of(self, change: Grown) -> list[Entry]:
        """What is told of the tokens of a text that is new."""
        block, aligned = change.block, self._aligned
        if aligned is None:
            return []
        if block.kind == "call":
            aligned.pass_over()
            return []
        entries = aligned.taken(change.text, goes_on=len(block.text) > len(change.text))
        return entries if block.kind == "text" else []

    def _response(self, last: TextNews, finish: Finish) -> dict[str, Any]:
        cut = finish.type == "length"
        status = "incomplete" if cut else "completed"
        fields = self._head.fields(status) | {
            "output": [item.fields() for item in self._items],
            "usage": self._usage(last),
        }
        if cut:
            fields["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            fields["completed_at"] = int(time.time())
        if self._prompt is not None:
            fields |= {"prompt_token_ids": self._prompt, "token_ids": self._ids}
        return fields | truth_fields(last)

    def _usage(self, last: TextNews) -> dict[str, Any]:
        return {
            "input_tokens": last.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": last.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": last.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._parts.reasoning_tokens},
            "total_tokens": last.prompt_tokens + last.completion_tokens,
        }

    def _event(self, event: Event) -> bytes:
        kind, fields = event
        number = self._told
        self._told += 1
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})
