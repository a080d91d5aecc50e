"""Sends requests of the load generator and takes their answers.

Owns the bodies that are sent, the connections, and that a request that fails is a result as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from phloem.server.bench.workloads import Conversation, Encode
from phloem.server.openai_wire import bearer, error_sentence
from phloem.server.streamed_answer import Answer, AnswerReader, Clock

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """The server under load, and how it is asked."""

    base_url: str
    """With its path, as `api_base` gives it."""
    model: str
    api_key: str | None = None
    chat: bool = False
    """Send every prompt as the one message of a chat."""
    ids: bool = False
    """Send prompts as token ids; chats stay text."""
    ignore_eos: bool = True
    min_tokens: bool = False
    """Ask for all tokens by `min_tokens` too, as some servers need."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are put into every request."""
    timeout_s: float = 900.0
    """Longest time for one request."""


class LoadClient:
    """Asks a server; any number of requests at once."""

    def __init__(
        self,
        target: Target,
        encode: Encode,
        session: aiohttp.ClientSession,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._target = target
        self._encode = encode
        self._session = session
        self._clock = clock

    @classmethod
    @asynccontextmanager
    async def open(cls, target: Target, encode: Encode) -> AsyncIterator[LoadClient]:
        """A client with connections of its own."""
        # A connection for each request: some servers close idle ones without a word, and all of
        # them are new to the server in the same way.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        headers = bearer(target.api_key)
        async with aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=target.timeout_s),
            read_bufsize=_READ_BYTES,
        ) as session:
            yield cls(target, encode, session)

    async def ask(self, prompt: str, conversation: Conversation) -> Answer:
        """Send a request for the next turn of a conversation, and wait for all of its answer."""
        path, body = request_body(self._target, self._encode, prompt, conversation)
        reader = AnswerReader(self._clock)
        try:
            async with self._session.post(self._target.base_url + path, json=body) as response:
                if response.status != 200:
                    return reader.end(error_sentence(response.status, await response.read()))
                async for data in response.content.iter_any():
                    reader.feed(data)
        except asyncio.TimeoutError:
            return reader.end(f"no end of the answer within {self._target.timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return reader.end(f"the connection failed: {error or type(error).__name__}")
        return self._checked(reader.end(), prompt)

    def _checked(self, answer: Answer, prompt: str) -> Answer:
        """With token counts of our own where the server gave none; without text it failed."""
        if answer.completion_tokens is None:
            answer = replace(answer, completion_tokens=len(self._encode(answer.text)))
        if answer.prompt_tokens is None:
            answer = replace(answer, prompt_tokens=len(self._encode(prompt)))
        if answer.error is None and not answer.text:
            answer = replace(answer, error="the answer has no text")
        return answer


def request_body(
    target: Target, encode: Encode, prompt: str, conversation: Conversation
) -> tuple[str, dict[str, Any]]:
    """The path and the JSON body of a request: greedy, streamed, with usage."""
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": conversation.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if conversation.schema is not None:
        schema = {"name": "answer", "schema": conversation.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif target.ignore_eos:
        body["ignore_eos"] = True
        if target.min_tokens:
            body["min_tokens"] = conversation.max_tokens
    if target.chat or conversation.schema is not None:
        path, body["messages"] = "/chat/completions", [{"role": "user", "content": prompt}]
    else:
        path, body["prompt"] = "/completions", list(encode(prompt)) if target.ids else prompt
    return path, {**body, **target.extra}
