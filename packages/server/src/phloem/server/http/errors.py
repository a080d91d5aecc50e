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
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
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
_LONGEST_MESSAGE = 1000
"""Characters; a sentence may quote what a client sent, which may be long."""
_FIRST_WORD = re.compile(r"[a-z_]+")
_PARAMETERS = frozenset(field.name for field in fields(SamplingParams)) | {
    "n",
    "max_tokens",
    "min_tokens",
    "logprobs",
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
        kind = {429: "rate_limit_error", 503: "service_unavailable_error"}.get(self.status, kind)
        return {
            "error": {
                "message": str(self),
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        """The whole answer."""
        response = json_response(self.body(), self.status)
        if self.retry_after is not None:
            # Whole seconds, as the header wants it; never 0, which would be at once.
            response.headers["Retry-After"] = str(max(math.ceil(self.retry_after), 1))
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
    prompt that is too long is `prompt`, where it is given.
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


def install_handlers(app: FastAPI) -> None:
    """Give every error this shape, those of the framework too.

    What nobody foresaw is left to `phloem.server.http.surround`.
    """
    for kind in (ApiError, ServiceUnavailable, QueueFullError):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _validation_error)


async def _answer(request: Request, error: Exception) -> Response:
    return as_api_error(error).response()


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    response = ApiError(message, error.status_code, code=code).response()
    response.headers.update(error.headers or {})
    return response


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:])
    return ApiError(f"{name}: {first['msg']}", param=name or None).response()
