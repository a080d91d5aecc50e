"""OpenAI's chat objects for answers that are all content: these are made as quickly as can be."""

from __future__ import annotations

from typing import Any

from phloem.server.http.errors import raise_if_failed
from phloem.server.http.forms import Head, OpenAIForm, finish_fields
from phloem.server.http.logprobs import TokenNames, chat_logprobs
from phloem.server.http.sse import json_line
from phloem.server.messages import TextNews


class ChatForm(OpenAIForm):
    """Answers as `chat.completion` objects, streamed as `chat.completion.chunk`.

    The first chunk of a choice names the role, the last one how it ended.
    """

    def __init__(
        self, id: str, model: str, n: int, include_usage: bool, names: TokenNames | None
    ) -> None:
        """`names` where logprobs are wanted."""
        super().__init__(
            Head(id, "chat.completion", model), "chat.completion.chunk", n, include_usage
        )
        self._names = names
        self._before: dict[int, bytes] = {}
        """What stands before the text, for each choice that has begun."""
        self._after = b'},"logprobs":null,"finish_reason":null' + self._closing

    def chunk(self, index: int, news: TextNews) -> bytes:
        """What is new of a choice."""
        if news.finish is None and news.logprobs is None and index in self._before:
            if not news.text:
                return b""
            return b"".join((self._before[index], json_line(news.text), self._after))
        return self._rare_chunk(index, news)

    def _rare_chunk(self, index: int, news: TextNews) -> bytes:
        """With a choice's begin, its end, or logprobs."""
        raise_if_failed(news.finish)
        parts = []
        opening = self._opening + str(index).encode()
        if index not in self._before:
            self._before[index] = opening + b',"delta":{"content":'
            parts += [opening, b',"delta":{"role":"assistant","content":""', self._after]
        if news.logprobs is not None and self._names is not None:
            logprobs = json_line(chat_logprobs(self._names, news))
            parts += [self._before[index], json_line(news.text), b'},"logprobs":', logprobs]
            parts += [b',"finish_reason":null', self._closing]
        elif news.text:
            parts += [self._before[index], json_line(news.text), self._after]
        if news.finish is not None:
            end = json_line({"delta": {}, "logprobs": None} | finish_fields(news))
            parts += [opening, b",", end[1:-1], self._ending(index, news)]
        return b"".join(parts)

    def _choice(self, index: int, output: TextNews) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": None if self._names is None else chat_logprobs(self._names, output),
        } | finish_fields(output)
