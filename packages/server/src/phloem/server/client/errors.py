"""What the clients raise when a server does not answer as asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from phloem.server.openai_wire import error_message, quote

_STATUS_OF_CODES: Mapping[str, int] = {
    "aborted": 499,
    "timeout": 408,
    "rate_limit_exceeded": 429,
    "overloaded": 503,
    "service_unavailable": 503,
}
"""Of errors that come in a stream, which has the status of its beginning."""


class RequestFailed(Exception):
    """A request that was not served; the message is the server's own sentence where it gave one.

    Attributes:
        status: as HTTP has it, over gRPC too; None: no answer came.
        code: what the server calls it, such as "context_length_exceeded".
        param: the parameter that is wrong.
        retry_after: seconds after which trying again may help.
        unsent: the server has not seen the request.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        unsent: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.unsent = unsent


class _Body(msgspec.Struct):
    error: Any = None


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> RequestFailed:
    """The error of an HTTP answer that is no success."""
    try:
        error = msgspec.json.decode(body, type=_Body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = None
    message = error_message(error) or quote(body) or "the server gives no reason"
    return _failure(message, status, error, _seconds(headers.get("retry-after")))


def failure_in_stream(error: Any) -> RequestFailed:
    """The error that an event of a stream has."""
    code = error.get("code") if isinstance(error, dict) else None
    return _failure(error_message(error), _STATUS_OF_CODES.get(str(code), 500), error)


def _failure(
    message: str, status: int, error: Any, retry_after: float | None = None
) -> RequestFailed:
    fields = error if isinstance(error, dict) else {}
    code, param = (None if fields.get(k) is None else str(fields[k]) for k in ("code", "param"))
    return RequestFailed(message, status, code=code, param=param, retry_after=retry_after)


def _seconds(given: str | None) -> float | None:
    """A `Retry-After` in seconds; its other form, a date, is passed over."""
    try:
        return None if given is None else float(given)
    except ValueError:
        return None
