"""One run of a batch: every line that has no result yet gets one, so many at once.

Owns the sending and the results' form. A result is an answer: what a server is too busy for, or a
server that is gone, leaves its lines without one, for the next run.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import httpx
import msgspec

from phloem.server.batch.lines import BadLine, Line, RequestLine
from phloem.server.batch.output import OutputFile
from phloem.server.client.errors import RequestFailed, refusal
from phloem.server.client.retry import Retries
from phloem.server.concurrency import all_of

_FOR_NOW = (429, 502, 503, 504)
"""Statuses that say nothing of the request itself."""


class ServerGone(RuntimeError):
    """There is no server to go on with."""


def again(error: RequestFailed) -> bool:
    """Whether to send a request of a batch again: it changes nothing that one more would harm."""
    return error.status is None or error.status in _FOR_NOW


PATIENT = Retries(attempts=8, longest_wait=60.0, safe=again)
"""A few minutes in all: a server may be busy, or start anew."""


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class BatchRun:
    """Sends the lines of a batch through `http`, whose base URL ends where `/v1` does."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        output: OutputFile,
        *,
        concurrency: int,
        retries: Retries = PATIENT,
        on_result: Callable[[], None] = lambda: None,
    ) -> None:
        self._http = http
        self._output = output
        self._concurrency = concurrency
        self._retries = retries
        self._on_result = on_result
        self.completion_tokens = 0
        """Of all answers."""
        self.unanswered: list[str] = []
        """Why lines have no result yet, a sentence for each."""

    async def run(self, lines: Iterable[Line]) -> None:
        """Answer the lines; they are read as fast as results come, and no further ahead.

        Raises:
            ServerGone: it does not answer any more.
            OSError: results cannot be written.
        """
        left = (line for line in lines if line.key not in self._output.done)
        await all_of([self._work(left) for _ in range(self._concurrency)])

    async def _work(self, lines: Iterator[Line]) -> None:
        for line in lines:
            if isinstance(line, BadLine):
                error = {"code": "invalid_line", "message": line.message, "line": line.number}
                await self._write(line, None, error)
            else:
                await self._ask(line)

    async def _ask(self, line: RequestLine) -> None:
        try:
            response = await self._retries.run(lambda: self._post(line))
        except RequestFailed as error:
            if error.status is None:
                raise ServerGone(str(error)) from error
            self.unanswered.append(f"line {line.number}: {error}")
            return
        content = {
            "status_code": response.status_code,
            "request_id": response.headers.get("x-request-id"),
            "body": self._read(response),
        }
        await self._write(line, content, None)

    async def _post(self, line: RequestLine) -> httpx.Response:
        try:
            response = await self._http.post(
                line.url.removeprefix("/v1"),
                content=line.body,
                headers={"Content-Type": "application/json"},
            )
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise RequestFailed(f"the connection failed: {what}") from error
        if response.status_code in _FOR_NOW:
            raise refusal(response.status_code, response.headers, response.content)
        return response

    def _read(self, response: httpx.Response) -> Any:
        """The body as JSON in one line; as a text where it is none."""
        try:
            usage = msgspec.json.decode(response.content, type=_Body).usage
            self.completion_tokens += (usage and usage.completion_tokens) or 0
            if b"\n" not in response.content:
                return msgspec.Raw(response.content)
            return msgspec.json.decode(response.content)
        except ValueError:
            return response.text

    async def _write(self, line: Line, response: Any, error: Any) -> None:
        record = {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": line.custom_id,
            "response": response,
            "error": error,
        }
        ok = response is not None and 200 <= response["status_code"] < 300
        await self._output.append(line.key, record, ok)
        self._on_result()


async def unless(died: asyncio.Future[str] | None, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, which ends with the engine.

    Raises:
        ServerGone: the engine died; with the sentence that says so.
    """
    task = asyncio.ensure_future(work)
    either: list[asyncio.Future[Any]] = [task] if died is None else [task, died]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if died is not None and died.done():
            raise ServerGone(died.result())
    finally:
        task.cancel()
        await asyncio.wait([task])
    task.result()
