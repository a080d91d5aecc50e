"""A running server in place of an engine of our own: any that has the OpenAI API.

Owns the translation of sampling parameters and answers. A request that the server refuses is a
`ValueError`, as with an engine of our own; one that fails on the way ends with an error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

from phloem.server.cli.session import Generation
from phloem.server.openai_wire import api_base, bearer, error_sentence
from phloem.server.streamed_answer import Answer, AnswerReader, Clock

_CONNECT_SECONDS = 10.0
_SAMPLING_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
"""What the API calls differently."""
_NOT_IN_THE_API = ("top_logprobs", "prompt_logprobs_from")


class RemoteEngine:
    """Answers through a server; any thread may use it.

    Results have no `output_ids`, and their `meta_info` only what the API tells: `finish_reason`,
    `prompt_tokens`, `completion_tokens`, `cached_tokens` (None where the server does not say), and
    `timings` (seconds: `ttft`, `decode`, `total`) as they were seen here.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Reach the server; without `model` it is asked for the first that it serves.

        Raises:
            ValueError: when it does not answer, or serves no model; or the key cannot be sent.
        """
        self._base_url = api_base(base_url)
        self._clock = clock
        self._http = httpx.Client(
            headers=bearer(api_key),
            # An answer may take its time; only the way to the server may not.
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )
        try:
            self.model = model or self._first_model()
        except BaseException:
            self._http.close()
            raise

    def __enter__(self) -> RemoteEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def generate(
        self,
        prompts: str | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        input_ids: Sequence[int] | None = None,
        stream: bool = False,
    ) -> Any:
        """Continue a prompt, given as text or as token ids; as `Engine.generate`."""
        prompt = prompts if input_ids is None else list(input_ids)
        return self._ask("/completions", {"prompt": prompt}, sampling_params, stream)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Mapping[str, Any] | None = None,
        *,
        stream: bool = False,
    ) -> Any:
        """Answer a conversation; as `Engine.chat`."""
        given = {"messages": list(messages)}
        return self._ask("/chat/completions", given, sampling_params, stream)

    def _ask(
        self, path: str, given: Mapping[str, Any], params: Mapping[str, Any] | None, stream: bool
    ) -> Any:
        body = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **given,
            **_in_the_api(params or {}),
        }
        news = self._news(path, body)
        if stream:
            return news
        *parts, last = news
        return {**last, "text": "".join(part["text"] for part in parts) + last["text"]}

    def _news(self, path: str, body: Mapping[str, Any]) -> Iterator[Generation]:
        """The answer as it comes; the last news has no text, and says how it ended.

        Raises:
            ValueError: for a request that the server refuses.
        """
        reader = AnswerReader(self._clock)
        error = None
        try:
            with self._http.stream("POST", self._base_url + path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    error = error_sentence(response.status_code, response.read())
                    if response.is_client_error:
                        raise ValueError(error)
                else:
                    for data in response.iter_bytes():
                        text = reader.feed(data)
                        if text:
                            yield {"text": text, "meta_info": {"finish_reason": None}}
        except httpx.HTTPError as failed:
            error = f"the connection failed: {failed or type(failed).__name__}"
        yield {"text": "", "meta_info": _meta_info(reader.end(error))}

    def _first_model(self) -> str:
        url = self._base_url + "/models"
        try:
            response = self._http.get(url, timeout=_CONNECT_SECONDS)
            if response.status_code != httpx.codes.OK:
                raise ValueError(f"{url}: {error_sentence(response.status_code, response.content)}")
            name: str = response.json()["data"][0]["id"]
        except httpx.HTTPError as error:
            raise ValueError(
                f"no server answers at {self._base_url} ({error}): check the address, or start one "
                "with `phloem serve`"
            ) from error
        except (LookupError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{url} names no model: give one with --model") from error
        return name


def _in_the_api(params: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters under the names that the API gives them.

    Raises:
        ValueError: for those that have no like there.
    """
    for name in _NOT_IN_THE_API:
        if params.get(name) is not None:
            raise ValueError(
                f"{name} is {params[name]!r}, which an engine of our own can do and a server "
                "cannot: leave it out, or leave out --base-url"
            )
    given = {_SAMPLING_NAMES.get(name, name): value for name, value in params.items()}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in given.items()
    }


def _meta_info(answer: Answer) -> dict[str, Any]:
    timings = {"total": answer.ended}
    if answer.arrivals:
        timings["ttft"] = answer.arrivals[0]
        timings["decode"] = answer.arrivals[-1] - answer.arrivals[0]
    reason = {"type": answer.finish_reason or "stop"}
    return {
        "finish_reason": (
            reason if answer.error is None else {"type": "error", "message": answer.error}
        ),
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "cached_tokens": answer.cached_tokens,
        "timings": timings,
    }
