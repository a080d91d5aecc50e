"""Chat answers whose text is made sure to be calls of tools: OpenAI's `tool_calls`."""

from __future__ import annotations

import uuid
from typing import Any

from phloem.server.http.chat import ChatForm
from phloem.server.http.errors import raise_if_failed
from phloem.server.http.forms import finish_fields
from phloem.server.http.logprobs import TokenNames, chat_logprobs
from phloem.server.http.sse import event
from phloem.server.http.tools import CallPart, CallReader, call_reader
from phloem.server.messages import TextNews


class ToolForm(ChatForm):
    """As `ChatForm`, with calls instead of content; `arguments` are JSON text.

    An answer that was cut before its first call's name was known has no calls, and one that was cut
    later has its last call as far as it came; its reason is then what cut it.
    """

    def __init__(
        self,
        id: str,
        model: str,
        n: int,
        include_usage: bool,
        names: TokenNames | None,
        named: str | None,
    ) -> None:
        """`named` is the function that must be called, or None where it is any of several."""
        super().__init__(id, model, n, include_usage, names)
        self._named = named
        self._readers: dict[int, CallReader] = {}
        """Of the choices that have begun."""

    def chunk(self, index: int, news: TextNews) -> bytes:
        """What is new of a choice."""
        raise_if_failed(news.finish)
        first = index not in self._readers
        reader = self._readers.setdefault(index, call_reader(self._named))
        parts = reader.feed(news.text)
        events = [self._event(index, {"role": "assistant", "content": None})] if first else []
        logprobs = self._logprobs(news)
        if parts or logprobs:
            calls = {"tool_calls": [_delta(part) for part in parts]} if parts else {}
            events.append(self._event(index, calls, logprobs=logprobs))
        if news.finish is not None:
            self._usage.add(index, news)
            events.append(self._event(index, {}, **_finish_fields(news, reader)))
        return b"".join(events)

    def _event(self, index: int, delta: dict[str, Any], **fields: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        usage = {"usage": None} if self._include_usage else {}
        return event(self._chunk_head.fields() | {"choices": [choice | fields]} | usage)

    def _choice(self, index: int, output: TextNews) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        reader = call_reader(self._named)
        calls = _joined(reader.feed(output.text))
        if calls:
            message["tool_calls"] = calls
        choice = {"index": index, "message": message, "logprobs": self._logprobs(output)}
        return choice | _finish_fields(output, reader)

    def _logprobs(self, news: TextNews) -> dict[str, Any] | None:
        if self._names is None or news.logprobs is None:
            return None
        return chat_logprobs(self._names, news)


def _finish_fields(news: TextNews, reader: CallReader) -> dict[str, Any]:
    """As `finish_fields`, of an answer that a reader has read to its end."""
    fields = finish_fields(news)
    return fields | {"finish_reason": reader.finish_reason(fields["finish_reason"])}


def _delta(part: CallPart) -> dict[str, Any]:
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    return {"index": part.index, **_call(part)}


def _call(part: CallPart) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": part.name, "arguments": part.arguments},
    }


def _joined(parts: list[CallPart]) -> list[dict[str, Any]]:
    """The calls that the parts make up."""
    calls: list[dict[str, Any]] = []
    for part in parts:
        if part.name is not None:
            calls.append(_call(part))
        else:
            calls[-1]["function"]["arguments"] += part.arguments
    return calls
