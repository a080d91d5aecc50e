"""Request bodies: read within a limit, and checked against what an endpoint takes.

A field that is known but cannot be honoured is refused by its name, and so is one that the endpoint
does not know, or it is told of: nothing that a client asks for is silently left out.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from phloem.server.bodies.decoding import BadBody
from phloem.server.bodies.reader import SMALL, BodyReader, read_here
from phloem.server.bodies.worker import Task
from phloem.server.http.errors import ApiError
from phloem.server.http.leaving import ClientLeft, until_left

T = TypeVar("T", bound=msgspec.Struct)

_LONGEST_NAME = 64
"""Characters that are quoted of a parameter's name, and compared with those that are known."""
_WHERE = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")

_PART = 64 << 10
"""Bytes from which a part of a body stays as it is."""
MOST_ENTRIES = 8192
"""In a field, unless the context is longer or the endpoint says otherwise."""


async def read_body(request: Request, max_bytes: int) -> list[bytearray]:
    """The bytes that a request carries, in parts of no great number: to let one grow to all of them
    copies it several times.

    Raises:
        ApiError: there are too many (413), or not all came.
    """
    parts: list[bytearray] = []
    size = 0
    try:
        async for part in request.stream():
            if parts and len(parts[-1]) < _PART:
                parts[-1] += part
            else:
                parts.append(bytearray(part))
            size += len(part)
            if size > max_bytes:
                raise ApiError(
                    f"the body has more than {max_bytes} bytes, which is the limit here",
                    413,
                    code="request_too_large",
                )
    except ClientDisconnect as error:
        raise ApiError("the client left before its request was complete", 499) from error
    return parts


async def content_of(
    request: Request,
    parts: Sequence[bytes | bytearray],
    bodies: BodyReader | None,
    task: Task,
) -> dict[str, Any]:
    """What a request's body holds, given what `read_body` made of it; read here where there are
    no `bodies`.

    Raises:
        ApiError: it cannot be taken, or nobody waits for it any more.
        ServiceUnavailable: see `BodyReader.read`.
    """
    try:
        if bodies is None or sum(map(len, parts)) <= SMALL:
            return read_here(b"".join(parts), task)
        return await until_left(request.receive, bodies.read(parts, task))
    except BadBody as error:
        raise ApiError(str(error), param=error.param, code=error.code) from error
    except ClientLeft as error:
        raise ApiError("the client left before its request was read", 499) from error


async def read_json(
    request: Request, max_bytes: int, bodies: BodyReader | None = None
) -> dict[str, Any]:
    """The JSON object that a request carries, which asks for no generation.

    Raises:
        ApiError: it is too large (413) or no JSON object (400).
    """
    parts = await read_body(request, max_bytes)
    return await content_of(request, parts, bodies, Task(MOST_ENTRIES))


def checked(
    content: Mapping[str, Any],
    shape: type[T],
    unsupported: Mapping[str, Collection[Any]],
    ignored: Collection[str],
    unknown: list[str] | None = None,
) -> T:
    """`content` as a `shape`, whose fields have the right types then.

    Args:
        content: the request's fields.
        shape: what the endpoint takes.
        unsupported: fields that are known but not served, each with the values that ask for
            nothing beyond what is served; null always does.
        ignored: fields that are taken and change nothing.
        unknown: takes the names of fields that the endpoint does not know; None: they are refused.

    Raises:
        ApiError: naming the field.
    """
    known = shape.__struct_fields__
    for name, value in content.items():
        if name in unsupported:
            if value is not None and not _harmless(value, unsupported[name]):
                raise _unsupported(name, value, unsupported[name])
        elif name not in known and name not in ignored:
            if unknown is None:
                raise _unknown(name, known)
            unknown.append(name)
    try:
        return msgspec.convert(content, shape)
    except msgspec.ValidationError as error:
        raise _malformed(str(error)) from error


def _malformed(told: str) -> ApiError:
    """The client's version of what the decoder told of a value that is not of its type."""
    where, missing = _WHERE.search(told), _MISSING.search(told)
    what = _WHERE.sub("", told)
    what = what[0].lower() + what[1:]
    name = where[1] if where else ""
    if missing:
        name = f"{name}.{missing[1]}" if name else missing[1]
        return ApiError(f"{name} is missing: give it", param=name, code="missing_parameter")
    return ApiError(
        f"{name} is not of the right type: {what}" if name else f"the request is wrong: {what}",
        param=name or None,
        code="invalid_type",
    )


def _harmless(value: Any, harmless: Collection[Any]) -> bool:
    # True equals 1, which it does not mean; 1.0 does.
    is_bool = isinstance(value, bool)
    return any(value == each and is_bool == isinstance(each, bool) for each in harmless)


def _unsupported(name: str, value: Any, supported: Collection[Any]) -> ApiError:
    given = f"{reprlib.repr(value):.100}"
    cure = " or ".join([*(f"give {each!r}" for each in supported), "leave it out"])
    return ApiError(
        f"{name} is {given}, which this server does not support: {cure}",
        param=name,
        code="unsupported_parameter",
    )


def _unknown(name: str, known: Collection[str]) -> ApiError:
    name = name[:_LONGEST_NAME]
    near = difflib.get_close_matches(name, known, 1)
    cure = f"did you mean {near[0]}?" if near else "leave it out"
    return ApiError(
        f"{name!r} is no parameter of this endpoint: {cure}",
        param=name,
        code="unknown_parameter",
    )
