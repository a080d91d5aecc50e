"""The input of a batch: one request a line, in OpenAI's format.

Owns what a line must be. What its body may be is for the endpoint to say.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")

RESULT_ID = "batch_req_"
"""How the id of a result begins."""
_DIGITS = 32
"""Hexadecimal, of the rest of it."""

Key = str | int
"""What tells lines apart: the `custom_id`, or the number of a line that has none."""


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A line that asks for something."""

    number: int
    """From 1."""
    custom_id: str
    url: str
    body: bytes
    """JSON, as it was written."""

    @property
    def key(self) -> Key:
        """What tells it apart."""
        return self.custom_id

    @property
    def result_id(self) -> str:
        """The id of its result: one for each request, whatever run answers it."""
        return _result_id(self.custom_id.encode(errors="surrogatepass"), self.url, self.body)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no request; it has a result that says so."""

    number: int
    custom_id: str | None
    message: str

    @property
    def key(self) -> Key:
        """What tells it apart."""
        return self.number if self.custom_id is None else self.custom_id

    @property
    def result_id(self) -> str:
        """The id of its result."""
        named = f"{self.custom_id!r} {self.message}".encode()
        return _result_id(named, "", b"")


Line = RequestLine | BadLine


class _Fields(msgspec.Struct):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Stream(msgspec.Struct):
    stream: Any = None


def _result_id(name: bytes, url: str, body: bytes) -> str:
    parts = (name, b"POST", url.encode(), body)
    told = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return RESULT_ID + hashlib.sha256(told).hexdigest()[:_DIGITS]


def check_input(path: Path) -> Mapping[Key, str]:
    """The keys of all lines, and the ids of their results.

    Raises:
        ValueError: two lines have one `custom_id`, there is no line, or it is no file that can be
            read again; naming them.
        OSError: it cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path.name} is no regular file, and is read twice: give one")
    seen: dict[Key, int] = {}
    ids: dict[Key, str] = {}
    for line in read_lines(path):
        ids[line.key] = line.result_id
        if line.key in seen:
            raise ValueError(
                f"custom_id {line.custom_id!r} is in line {seen[line.key]} and in line "
                f"{line.number} of {path.name}: give each request its own"
            )
        seen[line.key] = line.number
    if not seen:
        raise ValueError(f"{path.name} has no line: give one request a line")
    return ids


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file that are not blank, read as they are asked for."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            text = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if text.strip():
                yield parse_line(number, text)


def parse_line(number: int, text: bytes) -> Line:
    """A line as what it asks for, or with what is wrong in it."""
    try:
        fields = msgspec.json.decode(text, type=_Fields)
    except (ValueError, RecursionError) as error:
        return BadLine(number, None, f"line {number} is no JSON object: {error}")
    named = isinstance(fields.custom_id, str) and fields.custom_id != ""
    custom_id = fields.custom_id if named else None
    problem = _problem(fields, named)
    if problem is None:
        return RequestLine(number, fields.custom_id, fields.url, bytes(fields.body))
    return BadLine(number, custom_id, f"line {number}: {problem}")


def _problem(fields: _Fields, named: bool) -> str | None:
    """What is wrong with a line, if anything."""
    if not named:
        return "custom_id is missing: give each request a text of its own"
    if fields.method != "POST":
        return f"method is {_shown(fields.method)}: give POST"
    if fields.url not in ENDPOINTS:
        return f"url is {_shown(fields.url)}: give one of {', '.join(ENDPOINTS)}"
    try:
        stream = msgspec.json.decode(fields.body, type=_Stream).stream
    except (ValueError, RecursionError) as error:
        return f"body is no JSON object: {error}"
    if stream:
        return "stream is set, and a result of a batch is whole: leave it out"
    return None


def _shown(value: Any) -> str:
    return "missing" if value is None else f"{value!r:.60}"
