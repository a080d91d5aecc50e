"""A typed client of a Phloem server over HTTP, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import httpx

from phloem.server.client.calls import HttpCalls
from phloem.server.client.errors import RequestFailed, failure_in_stream
from phloem.server.client.results import ChatAnswer, Embedded, Generated, Health, ServerInfo, Stream
from phloem.server.client.retry import NO_RETRIES, Retries
from phloem.server.client.wire import (
    Aborted,
    ChatBody,
    EmbeddingBody,
    Models,
    Result,
    chat_answer,
    chat_part,
    check_one,
    embedded,
    embedding_body,
    generate_body,
    generated,
)
from phloem.server.closing import AsyncClosing
from phloem.server.openai_wire import Event, bearer

_CONNECT_SECONDS = 10.0
_CHAT = "/v1/chat/completions"


class AsyncClient(AsyncClosing):
    """Asks a Phloem server, over as many connections as there are requests at once.

    A request that its task no longer waits for, since it is cancelled or its stream is closed, ends
    on the server too. Leave `async with`, or call `aclose`, when all is done.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            url: of the server, as `http://127.0.0.1:30000`.
            api_key: sent as `Authorization: Bearer`.
            retries: of what is refused for now (429, 503) or has not reached the server; by
                default four attempts. `NO_RETRIES` sends everything once.
            transport: in place of the network.

        Raises:
            ValueError: `api_key` cannot be sent.
        """
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=bearer(api_key),
            # An answer may take its time; only the way to the server may not.
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )
        self._calls = HttpCalls(self._http, retries or Retries())
        self._once = HttpCalls(self._http, NO_RETRIES)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def generate(
        self,
        prompt: str | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        input_ids: Sequence[int] | None = None,
        **options: Any,
    ) -> Generated:
        """Continue a prompt, given as text or as token ids.

        Args:
            prompt: the text.
            sampling_params: as `Engine.generate` takes them, with a constraint if any; `n` is 1.
            input_ids: the prompt's tokens, in its place.
            **options: further fields of `/generate`: `rid`, `cache_salt`, `priority`, `tenant`,
                `timeout`, `queue_timeout`, `skip_special_tokens`.

        Raises:
            RequestFailed: it was refused, or failed.
            ValueError: there is not one prompt, or `n` is another.
        """
        body = generate_body(prompt, sampling_params, input_ids, options)
        return generated(await self._calls.post("/generate", body, Result))

    def stream(
        self,
        prompt: str | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        input_ids: Sequence[int] | None = None,
        **options: Any,
    ) -> Stream[Generated]:
        """The same as it comes; what an output ended with is in its last part."""
        body = generate_body(prompt, sampling_params, input_ids, options)
        return Stream(self._news({**body, "stream": True}))

    async def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatAnswer:
        """Answer a conversation.

        Args:
            messages: as OpenAI has them.
            **options: further fields of `/v1/chat/completions`; `n` is 1.

        Raises:
            RequestFailed: it was refused, or failed.
            ValueError: `n` is another.
        """
        check_one(options.get("n"))
        body = {"messages": list(messages), **options}
        return chat_answer(await self._calls.post(_CHAT, body, ChatBody))

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> Stream[ChatAnswer]:
        """The same as it comes; the counts are in the last part, which has nothing else."""
        check_one(options.get("n"))
        extras = {"stream": True, "stream_options": {"include_usage": True}}
        return Stream(self._chat_news({"messages": list(messages), **extras, **options}))

    async def embed(
        self, inputs: str | Sequence[str] | Sequence[Sequence[int]], **options: Any
    ) -> Embedded:
        """A vector for each input.

        Args:
            inputs: a text, texts, or the token ids of each.
            **options: further fields of `/v1/embeddings`, such as `dimensions` and `pooling`.

        Raises:
            RequestFailed: it was refused, or failed.
        """
        body = embedding_body(inputs, options)
        return embedded(await self._calls.post("/v1/embeddings", body, EmbeddingBody))

    async def abort(self, request_id: str) -> int:
        """End a request by its id; how many sequences of it were running.

        Raises:
            RequestFailed: this client may not, or there is no answer.
        """
        return (await self._calls.post("/abort_request", {"rid": request_id}, Aborted)).aborted

    async def health(self) -> Health:
        """Whether the server takes requests now; nothing is tried again."""
        try:
            await self._once.get("/ready", dict)
        except RequestFailed as error:
            return Health(False, str(error))
        return Health(True)

    async def info(self) -> ServerInfo:
        """What it serves.

        Raises:
            RequestFailed: there is no answer.
        """
        model = (await self._calls.get("/v1/models", Models)).data[0]
        return ServerInfo(model.id, model.max_model_len)

    async def _news(self, body: Mapping[str, Any]) -> AsyncGenerator[Generated, None]:
        async with aclosing(self._calls.events("/generate", body, Result)) as results:
            async for result in results:
                if result.error is not None:
                    raise failure_in_stream(result.error)
                yield generated(result)

    async def _chat_news(self, body: Mapping[str, Any]) -> AsyncGenerator[ChatAnswer, None]:
        async with aclosing(self._calls.events(_CHAT, body, Event)) as events:
            async for event in events:
                if event.error is not None:
                    raise failure_in_stream(event.error)
                yield chat_part(event)
