"""What clients are told when something is wrong: one error type, in OpenAI's shape.

Owns the mapping from errors to HTTP statuses. Nothing of the server's inside (traces, paths) ever
reaches a client.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import msgspec
from starlette.responses import Response

from phloem.scheduler import ContextLengthError, QueueFullError, SamplingParams
from phloem.server.constraints import BadConstraint
from phloem.server.frontend import ServiceUnavailable
from phloem.server.messages import Finish

logger = logging.getLogger(__name__)

ABORTED = 499
"""Somebody ended the request; not a 5xx, which clients would answer by trying again."""

_CODES = {ABORTED: "aborted", 408: "timeout", 429: "rate_limit_exceeded", 503: "overloaded"}
"""What ends a generation early, by status."""
_TYPES = {
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
"""What OpenAI calls the error of a status; others are the request's or the server's."""
_LONGEST_MESSAGE = 1000
"""Characters; a sentence may quote what a client sent, which may be long."""
_FIRST_WORD = re.compile(r"[a-z_]+")
_PARAMETERS = frozenset(field.name for field in fields(SamplingParams)) | {
    "n",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "top_logprobs_num",
    "logprob_start_len",
    "priority",
    "queue_timeout",
    "timeout",
}


class ApiError(Exception):
    """An answer other than a success; `message` is a sentence for the client.

    `retry_after` is in seconds, for the header of that name.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message[:_LONGEST_MESSAGE])
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, kind)
        return {
            "error": {
                "message": str(self),
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self, body: Mapping[str, Any] | None = None) -> Response:
        """The whole answer; `body`, where it is given, is in another API's form."""
        response = json_response(self.body() if body is None else body, self.status)
        if self.retry_after is not None:
            # Whole seconds, as the header wants it; never 0, which would be at once.
            response.headers["Retry-After"] = str(max(math.ceil(self.retry_after), 1))
        if self.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response


def json_response(content: Any, status: int = 200) -> Response:
    """`content` as JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


@contextmanager
def refusing(
    param: str | None = None,
    names: Mapping[str, str] | None = None,
    *,
    prompt: str | None = None,
) -> Iterator[None]:
    """Within it, what the engine refuses is the client's mistake: a 400 with the same sentence.

    `names` says what the API calls the engine's parameters. The error's `param` is the sentence's
    first word, where the engine's checks put the name of what is wrong, or else `param`; that of a
    prompt that is wrong is `prompt`, where it is given.
    """
    try:
        yield
    except ContextLengthError as error:
        raise ApiError(str(error), param=prompt or param, code="context_length_exceeded") from error
    except BadConstraint as error:
        raise ApiError(str(error), param=error.field, code="invalid_constraint") from error
    except (ValueError, OverflowError) as error:
        message = str(error)
        for engine_name, api_name in (names or {}).items():
            message = re.sub(rf"\b{engine_name}\b", api_name, message)
        word = _FIRST_WORD.match(message)
        named = word[0] if word and word[0] in _PARAMETERS else param
        if named is None and message.startswith("the prompt "):
            named = prompt
        if named is None and message.startswith("request id "):
            named = "rid"
        raise ApiError(message, param=named) from error


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of any error; what nobody foresaw is logged and kept from it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ServiceUnavailable):
        return ApiError(str(error), 503, code="service_unavailable", retry_after=error.retry_after)
    if isinstance(error, QueueFullError):
        status = error.status_code
        return ApiError(str(error), status, code=_CODES[status], retry_after=error.retry_after)
    logger.error("a request failed", exc_info=error)
    return ApiError("the server failed on this request: its log says why", 500, code="internal")


def raise_if_failed(finish: Finish | None) -> None:
    """Raise the error that a request ended with, if it did."""
    if finish is None or finish.type in ("stop", "length"):
        return
    status = finish.status_code or (ABORTED if finish.type == "abort" else 500)
    raise ApiError(
        finish.message or f"the request ended by {finish.type}",
        status,
        code=_CODES.get(status, "generation_failed"),
        retry_after=finish.retry_after,
    )
