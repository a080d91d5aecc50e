"""Requests to a Phloem server over HTTP: sent, sent again where that is safe, answered or failed.

Owns what happens between a body and an answer's bytes or events, and not what is in them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar

import httpx
import msgspec

from phloem.server.client.errors import RequestFailed, refusal
from phloem.server.client.retry import Retries
from phloem.server.openai_wire import BadStream, EventReader, quote

T = TypeVar("T")
Event = TypeVar("Event", bound=msgspec.Struct)

Headers = Mapping[str, str]

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class HttpCalls:
    """Sends requests through an `httpx.AsyncClient`, which has the address and the headers."""

    def __init__(self, http: httpx.AsyncClient, retries: Retries) -> None:
        self._http = http
        self._retries = retries

    async def get(self, path: str, shape: type[T], headers: Headers | None = None) -> T:
        """The answer to a GET, decoded.

        Raises:
            RequestFailed: there is none, or it is none of that shape.
        """
        return _decoded(await self._whole("GET", path, None, headers), shape)

    async def post(self, path: str, body: Any, shape: type[T], headers: Headers | None = None) -> T:
        """The answer to a POST of `body` as JSON, decoded, as of `get`."""
        return _decoded(await self._whole("POST", path, body, headers), shape)

    async def events(
        self, path: str, body: Any, shape: type[Event], headers: Headers | None = None
    ) -> AsyncGenerator[Event, None]:
        """The events of a streamed answer. Closing it closes the connection.

        Raises:
            RequestFailed: it was refused, breaks off, or is no stream of events.
        """
        response = await self.open("POST", path, body, headers)
        reader = EventReader(shape)
        try:
            async for data in response.aiter_bytes():
                for event in reader.feed(data):
                    yield event
        except httpx.HTTPError as error:
            raise _broken(error) from error
        except BadStream as error:
            raise RequestFailed(str(error)) from error
        finally:
            await response.aclose()
        if not reader.done:
            raise RequestFailed("the server's answer ended before it was complete")

    async def open(
        self, method: str, path: str, body: Any = None, headers: Headers | None = None
    ) -> httpx.Response:
        """An answer that has begun with a success; whoever gets it closes it.

        Raises:
            RequestFailed: there is none, after all attempts.
        """
        content = None if body is None else msgspec.json.encode(body)
        json = {} if content is None else {"Content-Type": "application/json"}
        return await self._retries.run(
            lambda: self._open_once(method, path, content, {**json, **(headers or {})})
        )

    async def _open_once(
        self, method: str, path: str, content: bytes | None, headers: Headers
    ) -> httpx.Response:
        request = self._http.build_request(method, path, content=content, headers=headers)
        try:
            response = await self._http.send(request, stream=True)
            if response.is_success:
                return response
            body = await response.aread()
        except httpx.HTTPError as error:
            raise _broken(error) from error
        raise refusal(response.status_code, response.headers, body)

    async def _whole(self, method: str, path: str, body: Any, headers: Headers | None) -> bytes:
        response = await self.open(method, path, body, headers)
        try:
            return await response.aread()
        except httpx.HTTPError as error:
            raise _broken(error) from error
        finally:
            await response.aclose()


def _broken(error: httpx.HTTPError) -> RequestFailed:
    what = str(error) or type(error).__name__
    return RequestFailed(f"the connection failed: {what}", unsent=isinstance(error, _UNSENT))


def _decoded(body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestFailed(f"the server sent {quote(body)}, no answer ({error})") from error
