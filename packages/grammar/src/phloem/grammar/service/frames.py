"""What passes between the service and its workers: frames on pipes, and errors as plain data.

Only the vocabulary, which goes to a worker, is pickled; nothing that comes from one is, because a
worker reads what strangers wrote.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint

_LENGTHS = struct.Struct("<IQ")


class Frame(NamedTuple):
    """One message."""

    header: Mapping[str, Any]
    """What JSON can say."""
    data: bytes = b""


def write_frame(stream: IO[bytes], frame: Frame) -> None:
    """Write one frame and flush."""
    header = json.dumps(frame.header).encode("ascii")
    stream.write(_LENGTHS.pack(len(header), len(frame.data)) + header)
    stream.write(frame.data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Frame:
    """Wait for one frame.

    Raises:
        EOFError: if the other side has ended, in the middle of a frame or before it.
    """
    header_length, data_length = _LENGTHS.unpack(_read(stream, _LENGTHS.size))
    return Frame(json.loads(_read(stream, header_length)), _read(stream, data_length))


def _read(stream: IO[bytes], length: int) -> bytes:
    found = stream.read(length)
    if len(found) < length:
        raise EOFError("the other side has ended")
    return found


def error_frame(error: GrammarError) -> Frame:
    """An error as a reply."""
    if isinstance(error, UnsupportedConstraint):
        place = [error.pointer, error.keyword, error.reason]
        return Frame({"error": "unsupported", "place": place})
    kind = "complex" if isinstance(error, ConstraintTooComplex) else "malformed"
    return Frame({"error": kind, "message": str(error)})


def error_of(reply: Frame) -> GrammarError | None:
    """The error that a reply carries, if it carries one."""
    kind = reply.header.get("error")
    if kind is None:
        return None
    if kind == "unsupported":
        return UnsupportedConstraint(*reply.header["place"])
    message = reply.header["message"]
    return ConstraintTooComplex(message) if kind == "complex" else GrammarError(message)
