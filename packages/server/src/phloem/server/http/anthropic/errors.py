"""Errors in Anthropic's shape."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from phloem.server.http.errors import ApiError

MESSAGES = "/v1/messages"
"""The first path of the API."""
REQUEST_ID = b"request-id"
"""The header that tells what a request is called, there."""
OVERLOADED = 529
"""Anthropic's 503."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def anthropic_answer(error: ApiError) -> Response:
    """An error as the answer to a request."""
    if error.status == 503:
        error = ApiError(str(error), OVERLOADED, retry_after=error.retry_after)
    return error.response(error_body(error))


def error_body(error: ApiError) -> dict[str, Any]:
    """Anthropic's error object."""
    status = OVERLOADED if error.status == 503 else error.status
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}
