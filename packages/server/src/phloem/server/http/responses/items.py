"""The items of a response's output: what each kind is, and the events that tell of it."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from typing import Any

from phloem.server.http.blocks import Block

Event = tuple[str, dict[str, Any]]
"""A type, and the fields beside it."""


def new_id(prefix: str) -> str:
    """An id that nobody else has."""
    return f"{prefix}_{uuid.uuid4().hex}"


class OutputItem(ABC):
    """One block of the answer as an item of the output."""

    prefix: str
    """How its id begins."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.id = new_id(self.prefix)
        self.status = "in_progress"
        self._in_output = {"item_id": self.id, "output_index": block.index}

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """The item as JSON."""

    @abstractmethod
    def begun(self) -> list[Event]:
        """What follows on the news that it was added."""

    @abstractmethod
    def grown(self, text: str, logprobs: list[Any]) -> Event:
        """More of its text."""

    @abstractmethod
    def ended(self) -> list[Event]:
        """What comes before the news that it is done."""


class Message(OutputItem):
    """A text."""

    prefix = "msg"

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self._logprobs: list[Any] = []
        self._in_part = self._in_output | {"content_index": 0}

    def fields(self) -> dict[str, Any]:
        """An assistant's message; it has no content yet while it is told that it was added."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": self.status,
            "content": [self._part()] if self.block.text else [],
        }

    def begun(self) -> list[Event]:
        """Its one part was added."""
        return [("response.content_part.added", self._in_part | {"part": self._part()})]

    def grown(self, text: str, logprobs: list[Any]) -> Event:
        """More of the text, with the logprobs of its tokens."""
        self._logprobs += logprobs
        fields = self._in_part | {"delta": text, "logprobs": logprobs}
        return "response.output_text.delta", fields

    def ended(self) -> list[Event]:
        """The text and the part are done."""
        text = {"text": self.block.text, "logprobs": self._logprobs}
        return [
            ("response.output_text.done", self._in_part | text),
            ("response.content_part.done", self._in_part | {"part": self._part()}),
        ]

    def _part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": self.block.text,
            "annotations": [],
            "logprobs": list(self._logprobs),
        }


class Thought(OutputItem):
    """Reasoning, as it is."""

    prefix = "rs"
    _index = "content_index"
    _part_type = "reasoning_text"
    _part_events = "response.content_part"
    _text_events = "response.reasoning_text"

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self._in_part = self._in_output | {self._index: 0}

    def fields(self) -> dict[str, Any]:
        """An item without a summary."""
        return self._with(summary=[], content=self._parts())

    def begun(self) -> list[Event]:
        """Its one part was added."""
        return [(f"{self._part_events}.added", self._in_part | {"part": self._part()})]

    def grown(self, text: str, logprobs: list[Any]) -> Event:
        """More of it."""
        return f"{self._text_events}.delta", self._in_part | {"delta": text}

    def ended(self) -> list[Event]:
        """The text and the part are done."""
        return [
            (f"{self._text_events}.done", self._in_part | {"text": self.block.text}),
            (f"{self._part_events}.done", self._in_part | {"part": self._part()}),
        ]

    def _with(self, **fields: Any) -> dict[str, Any]:
        head = {"id": self.id, "type": "reasoning"}
        return head | fields | {"encrypted_content": None, "status": self.status}

    def _parts(self) -> list[dict[str, Any]]:
        return [self._part()] if self.block.text else []

    def _part(self) -> dict[str, Any]:
        return {"type": self._part_type, "text": self.block.text}


class Summary(Thought):
    """Reasoning, told as its own summary."""

    _index = "summary_index"
    _part_type = "summary_text"
    _part_events = "response.reasoning_summary_part"
    _text_events = "response.reasoning_summary_text"

    def fields(self) -> dict[str, Any]:
        """An item with a summary alone."""
        return self._with(summary=self._parts())


class Call(OutputItem):
    """A call of a function."""

    prefix = "fc"

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self._call_id = new_id("call")

    def fields(self) -> dict[str, Any]:
        """The call, with its arguments so far as JSON text."""
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self.block.name,
            "arguments": self.block.text,
            "status": self.status,
        }

    def begun(self) -> list[Event]:
        """Nothing more."""
        return []

    def grown(self, text: str, logprobs: list[Any]) -> Event:
        """More of its arguments."""
        return "response.function_call_arguments.delta", self._in_output | {"delta": text}

    def ended(self) -> list[Event]:
        """All of its arguments."""
        fields = {"name": self.block.name, "arguments": self.block.text}
        return [("response.function_call_arguments.done", self._in_output | fields)]


def item_of(block: Block, summarized: bool) -> OutputItem:
    """A block that begins as an item; `summarized` is how reasoning is told."""
    if block.kind == "text":
        return Message(block)
    if block.kind == "call":
        return Call(block)
    return Summary(block) if summarized else Thought(block)
