"""Errors as answers: each path's API has its own form for them.

Owns which form that is, and what becomes of the errors that no endpoint caught. What an error is,
and OpenAI's form, is `phloem.server.http.errors`'s affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from phloem.scheduler import QueueFullError
from phloem.server.frontend import ServiceUnavailable
from phloem.server.http.anthropic.errors import MESSAGES, anthropic_answer
from phloem.server.http.errors import ApiError, as_api_error

ErrorForm = Callable[[ApiError], Response]
"""From an error to the answer that tells it."""

_FORMS: Mapping[str, ErrorForm] = {MESSAGES: anthropic_answer}
"""By the first path that an API has; its other paths begin with it and a slash."""


def errors_of(path: str) -> ErrorForm:
    """The form of errors on `path`: OpenAI's, unless its API has one of its own."""
    for prefix, form in _FORMS.items():
        if path == prefix or path.startswith(f"{prefix}/"):
            return form
    return ApiError.response


def error_answer(error: Exception, path: str) -> Response:
    """The answer to a request on `path` that failed by `error`."""
    return errors_of(path)(as_api_error(error))


def install_handlers(app: FastAPI) -> None:
    """Give every error its path's form, those of the framework too.

    What nobody foresaw is left to `phloem.server.http.surround`.
    """
    for kind in (ApiError, ServiceUnavailable, QueueFullError):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _validation_error)


async def _answer(request: Request, error: Exception) -> Response:
    return error_answer(error, request.url.path)


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    told = ApiError(f"{request.method} {path}: {error.detail}", error.status_code, code=code)
    response = error_answer(told, path)
    response.headers.update(error.headers or {})
    return response


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:])
    return error_answer(ApiError(f"{name}: {first['msg']}", param=name or None), request.url.path)
