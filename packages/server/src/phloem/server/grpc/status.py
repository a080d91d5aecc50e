"""What HTTP's statuses are called in gRPC, and how the rest of an error travels in metadata."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import grpc

from phloem.server.client.errors import RequestFailed

Metadata = tuple[tuple[str, str], ...]

_TOO_LARGE = 413

_CODES: Mapping[int, grpc.StatusCode] = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.ABORTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


def code_of(error: RequestFailed) -> grpc.StatusCode:
    """The status code of an error."""
    status = error.status or 500
    if status in _CODES:
        return _CODES[status]
    return grpc.StatusCode.INVALID_ARGUMENT if 400 <= status < 500 else grpc.StatusCode.INTERNAL


def metadata_of(error: RequestFailed) -> Metadata:
    """What a code and a sentence do not tell."""
    told = {"phloem-status": error.status, "phloem-code": error.code, "phloem-param": error.param}
    if error.retry_after is not None:
        told["retry-after"] = math.ceil(error.retry_after)
        # What gRPC's own libraries wait for, where they are told to try again.
        told["grpc-retry-pushback-ms"] = math.ceil(error.retry_after * 1000)
    return tuple((name, str(value)) for name, value in told.items() if value is not None)


def failure_of(error: grpc.aio.AioRpcError) -> RequestFailed:
    """The error of a call, as it was before it travelled."""
    told = dict(error.trailing_metadata() or ())
    status = told.get("phloem-status")
    after = told.get("retry-after")
    return RequestFailed(
        error.details() or error.code().name,
        int(status) if status else _status_of(error.code()),
        code=told.get("phloem-code"),
        param=told.get("phloem-param"),
        retry_after=None if after is None else float(after),
    )


def _status_of(code: grpc.StatusCode) -> int | None:
    """Of what the server did not say itself; where no server can be reached, there is none."""
    if code is grpc.StatusCode.UNAVAILABLE:
        return None
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # gRPC's own libraries say so of a message that is too large; again it would be no smaller.
        return _TOO_LARGE
    return next((status for status, each in _CODES.items() if each is code), 500)


def passed_on(metadata: Iterable[tuple[str, str]] | None) -> dict[str, str]:
    """The headers that an endpoint reads, of a call's metadata."""
    return {name: value for name, value in metadata or () if name in _PASSED_ON}


_PASSED_ON = ("authorization", "x-api-key", "traceparent", "tracestate", "x-request-id")
