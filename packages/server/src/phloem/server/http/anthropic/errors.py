"""Errors in Anthropic's shape."""

from __future__ import annotations

from typing import Any

from phloem.server.http.errors import ApiError

OVERLOADED = 529
"""What Anthropic's 503 is."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """Anthropic's error object."""
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _TYPES.get(error.status, kind)
    return {"type": "error", "error": {"type": kind, "message": str(error)}}
