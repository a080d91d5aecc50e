"""One run of a batch: every line that has no result yet gets one, so many at once.

Owns the sending and the results' form. A result is an answer: what a server is too busy for, or a
server that is gone, leaves its lines without one, for the next run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import httpx
import msgspec

from phloem.server.batch.lines import BadLine, Line, RequestLine
from phloem.server.batch.output import OutputFile
from phloem.server.client.errors import RequestFailed, refusal
from phloem.server.client.retry import Retries
from phloem.server.concurrency import all_of
from phloem.server.openai_wire import quote

_FOR_NOW = (429, 502, 503, 504)
"""Statuses that say nothing of the request itself."""
_NO_PATH = ("not_found", "method_not_allowed")
"""What Phloem calls it that it has no such path."""


class ServerGone(RuntimeError):
    """There is no server to go on with."""


class WrongServer(ValueError):
    """What is there does not serve this batch, whatever its lines ask: the key or URL is wrong."""


def again(error: RequestFailed) -> bool:
    """Whether to send a request of a batch again: it changes nothing that one more would harm."""
    return error.status is None or error.status in _FOR_NOW


PATIENT = Retries(attempts=8, longest_wait=60.0, safe=again)
"""A few minutes in all: a server may be busy, or start anew."""


class _Usage(msgspec.Struct):
    completion_tokens: Any = None
    output_tokens: Any = None
    """What the Responses API calls them."""


class _Body(msgspec.Struct):
    usage: Any = None
    error: Any = None


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
            WrongServer: it refuses the key, or has no such API.
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
        body = _parsed(response)
        _check_served(line, response, body)
        if body is not None:
            self.completion_tokens += _tokens(body)
        content = {
            "status_code": response.status_code,
            "request_id": response.headers.get("x-request-id"),
            "body": _as_json(response, body),
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

    async def _write(self, line: Line, response: Any, error: Any) -> None:
        record = {
            "id": line.result_id,
            "custom_id": line.custom_id,
            "response": response,
            "error": error,
        }
        ok = response is not None and 200 <= response["status_code"] < 300
        await self._output.append(line.key, record, ok)
        self._on_result()


def _parsed(response: httpx.Response) -> _Body | None:
    """The body, if it is a JSON object."""
    try:
        return msgspec.json.decode(response.content, type=_Body)
    except (ValueError, RecursionError):
        return None


def _check_served(line: RequestLine, response: httpx.Response, body: _Body | None) -> None:
    """Refuse an answer that says nothing of the line, and would be that of every line.

    Raises:
        WrongServer: naming what to give.
    """
    status = response.status_code
    error = None if body is None else body.error
    said = refusal(status, response.headers, response.content)
    if status in (401, 403, 407):
        raise WrongServer(f"the server refuses the key ({status}: {said}): give its --api-key")
    no_path = isinstance(error, dict) and error.get("code") in _NO_PATH
    if status in (404, 405) and (no_path or not isinstance(error, dict)):
        raise WrongServer(
            f"the server has no {line.url} ({status}: {said}): give the --server that has it"
        )
    if status < 400 and (status >= 300 or body is None):
        raise WrongServer(
            f"what is at --server answers {status} with no JSON object "
            f"({quote(response.content)[:100]!r}): give the address of the API"
        )


def _tokens(body: _Body) -> int:
    try:
        usage = msgspec.convert(body.usage or {}, _Usage)
    except msgspec.ValidationError:
        return 0
    counts = (usage.completion_tokens, usage.output_tokens)
    return next((count for count in counts if type(count) is int), 0)


def _as_json(response: httpx.Response, body: _Body | None) -> Any:
    """The body as JSON in one line; as a text where it is no object."""
    if body is None:
        return response.text
    if b"\n" in response.content:
        return msgspec.json.decode(response.content)
    return msgspec.Raw(response.content)


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
