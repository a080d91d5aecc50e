"""Answers as Anthropic's messages, streamed as its events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from phloem.server.http.answer_parts import ChatHead
from phloem.server.http.anthropic.errors import error_body
from phloem.server.http.blocks import Begun, Block, Blocks, Change, Grown
from phloem.server.http.errors import ApiError, raise_if_failed
from phloem.server.http.sse import named_event
from phloem.server.http.truth import truth_fields
from phloem.server.messages import Finish, TextNews

Event = dict[str, Any]

_TEXT_FIELDS = {"text": "text", "reasoning": "thinking"}
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


@dataclass
class Head:
    """What a message is whatever comes of it."""

    id: str
    model: str
    ttl: str | None = None
    """How long the marked beginning of the prompt is kept; None: none is marked."""
    marked_tokens: int = 0
    show_thinking: bool = True


class MessageForm:
    """The one sequence of a message; implements `phloem.server.http.generation.Form`."""

    def __init__(self, head: Head, chat: ChatHead) -> None:
        self._head = head
        self._parts = chat.new_parts()
        self._prompt = chat.prompts[0] if chat.token_ids else None
        """Where token ids are wanted."""
        self._ids: list[int] = []
        self._blocks = Blocks()
        self._begun = False

    def chunk(self, index: int, news: TextNews) -> bytes:
        """The events of what is new."""
        raise_if_failed(news.finish)
        events: list[Event] = []
        if not self._begun:
            self._begun = True
            message = self._message([], None, news)
            events = [{"type": "message_start", "message": message}, {"type": "ping"}]
        events += self._take(news)
        if news.finish is not None:
            end = {"delta": self._ending(news.finish), "usage": self._usage(news)}
            events += [
                {"type": "message_delta", **end, **self._truth(news)},
                {"type": "message_stop"},
            ]
        return b"".join(named_event(event["type"], event) for event in events)

    def tail(self) -> bytes:
        """Nothing: the last event was that of the end."""
        return b""

    def failure(self, error: ApiError) -> bytes:
        """An event for errors."""
        return named_event("error", error_body(error))

    def whole(self, outputs: Sequence[TextNews]) -> bytes:
        """The message."""
        (output,) = outputs
        raise_if_failed(output.finish)
        for _ in self._take(output):
            pass
        content = [self._full(block) for block in self._blocks.all]
        message = self._message(content, output.finish, output)
        return msgspec.json.encode(message | self._truth(output))

    def _take(self, news: TextNews) -> Iterator[Event]:
        """What news tell of the blocks. To be read to its end."""
        self._ids += news.token_ids
        for change in self._blocks.take(self._parts.take(news)):
            yield from self._tell(change)
        if news.finish is not None:
            for change in self._blocks.end():
                yield from self._tell(change)

    def _tell(self, change: Change) -> Iterator[Event]:
        block, index = change.block, {"index": change.block.index}
        if isinstance(change, Begun):
            yield {"type": "content_block_start", **index, "content_block": self._empty(block)}
        elif isinstance(change, Grown):
            if block.kind == "reasoning" and not self._head.show_thinking:
                return
            kind, field = _DELTAS[block.kind]
            delta = {"type": kind, field: change.text}
            yield {"type": "content_block_delta", **index, "delta": delta}
        else:
            yield {"type": "content_block_stop", **index}

    def _empty(self, block: Block) -> dict[str, Any]:
        if block.kind == "text":
            return {"type": "text", "text": ""}
        if block.kind == "reasoning":
            # Nobody here signs: what comes back is taken as it is.
            return {"type": "thinking", "thinking": "", "signature": ""}
        id = f"toolu_{self._head.id.removeprefix('msg_')[:20]}{block.index:04}"
        return {"type": "tool_use", "id": id, "name": block.name, "input": {}}

    def _full(self, block: Block) -> dict[str, Any]:
        made = self._empty(block)
        if block.kind == "call":
            # That of a call which was cut is no JSON.
            return made | {"input": msgspec.json.decode(block.text) if block.whole else {}}
        if block.kind == "reasoning" and not self._head.show_thinking:
            return made
        return made | {_TEXT_FIELDS[block.kind]: block.text}

    def _message(
        self, content: list[dict[str, Any]], finish: Finish | None, news: TextNews
    ) -> dict[str, Any]:
        return {
            "id": self._head.id,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": content,
            **self._ending(finish),
            "usage": self._usage(news),
        }

    def _ending(self, finish: Finish | None) -> dict[str, Any]:
        reason, sequence = None, None
        if finish is not None:
            if finish.type == "length":
                reason = "max_tokens"
            elif any(block.kind == "call" and block.whole for block in self._blocks.all):
                reason = "tool_use"
            elif isinstance(finish.matched, str):
                reason, sequence = "stop_sequence", finish.matched
            else:
                reason = "end_turn"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _truth(self, last: TextNews) -> dict[str, Any]:
        """What is told beyond Anthropic's API."""
        fields = truth_fields(last)
        if self._prompt is not None:
            fields |= {"prompt_token_ids": self._prompt, "token_ids": self._ids}
        return fields

    def _usage(self, news: TextNews) -> dict[str, Any]:
        """Anthropic's counts: what was read from the cache, what is marked and was not, and the
        rest of the prompt add up to all of it.
        """
        read = news.cached_tokens
        created = max(self._head.marked_tokens - read, 0)
        ttl = self._head.ttl
        usage: dict[str, Any] = {
            "input_tokens": news.prompt_tokens - read - created,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": created,
            "cache_creation": {
                f"ephemeral_{each}_input_tokens": created if each == ttl else 0
                for each in ("5m", "1h")
            },
            "output_tokens": news.completion_tokens,
        }
        if news.finish is not None:
            usage["output_tokens_details"] = {"thinking_tokens": self._parts.reasoning_tokens}
        return usage
