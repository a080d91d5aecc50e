"""The process that reads large bodies: decodes and checks them, and gives them back in pieces.

It reads one body after the other from its standard input, at a low priority, and ends with that.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Literal

import msgspec

from phloem.grammar.service.limits import lower_this_thread, set_session_priority
from phloem.server.bodies.decoding import BadBody, check_containers, check_sizes, decoded, is_large
from phloem.server.bodies.pieces import MadeConstraint, taken_apart
from phloem.server.constraints import ALIASES, BUNDLE, FIELDS, BadConstraint, constraint_of

LENGTH_BYTES = 8
"""In front of everything that goes to this process or comes from it, as a big-endian integer."""
END = b"."
"""Behind the last piece."""
REFUSAL = b"!"
"""How what comes instead of pieces begins; a `Refusal` as JSON follows."""
FAILURE = b"?"
"""What comes instead where this process is at fault."""
_NICE = 10
_DEEPEST = 900
"""Frames, and levels of JSON: fewer than in the server, which reads what it is given back in the
midst of a request.
"""


class Task(msgspec.Struct, frozen=True):
    """What is said in front of a body."""

    most_entries: int
    """In one field."""
    constraints_in: Literal["request", "sampling_params"] | None = None
    """Whose fields may have a constraint, which is made here if it is large."""
    whitespace: Literal["bounded", "compact"] = "bounded"
    """Of constraints that do not say."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a body cannot be taken."""

    message: str
    param: str | None = None
    code: str | None = None


def read_apart(body: bytes, task: Task) -> Iterator[bytes]:
    """What is answered to a body: its pieces and the `END`, or a refusal."""
    try:
        content = decoded(body)
        check_sizes(content, task.most_entries)
        check_containers(content)
        _make_constraints(content, task)
    except BadBody as error:
        yield REFUSAL + msgspec.json.encode(Refusal(str(error), error.param, error.code))
        return
    yield from taken_apart(content)
    yield END


def _make_constraints(content: dict[str, Any], task: Task) -> None:
    """Put a large constraint of a request in place of the fields that have it."""
    if task.constraints_in == "request":
        _make_constraint(content, (*FIELDS, *ALIASES, BUNDLE), task)
    elif task.constraints_in == "sampling_params":
        sampling = content.get("sampling_params")
        for fields in sampling if isinstance(sampling, list) else [sampling]:
            if isinstance(fields, dict):
                _make_constraint(fields, FIELDS, task)


def _make_constraint(fields: dict[str, Any], names: Sequence[str], task: Task) -> None:
    given = {name: fields[name] for name in names if name in fields}
    options = fields.get("grammar_options")
    if not is_large(given) or not isinstance(options, dict | None):
        return
    try:
        asked = constraint_of(given, options, task.whitespace)
    except BadConstraint as error:
        raise BadBody(str(error), error.field, "invalid_constraint") from error
    if asked is not None:
        for name in given:
            del fields[name]
        fields[asked.field] = MadeConstraint(msgspec.to_builtins(asked))


def _or_failure(parts: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from parts
    except Exception:
        traceback.print_exc()
        yield FAILURE


def _received(source: BinaryIO) -> bytes:
    """The next message; nothing follows an empty one."""
    size = int.from_bytes(source.read(LENGTH_BYTES), "big")
    return source.read(size)


def main() -> None:
    """Run in a process of its own."""
    faulthandler.enable()
    # Ctrl-C is the parent's affair; so is an answer that it does not wait for.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not before: a client waits for the start.
    lower_this_thread(_NICE)
    set_session_priority(os.getpid(), _NICE)
    # What is decoded has no cycles, and looking for them takes most of the time: it is done in
    # between, among what an error may have left.
    gc.disable()
    gc.freeze()
    sys.setrecursionlimit(_DEEPEST)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while head := _received(source):
        body = _received(source)
        for part in _or_failure(read_apart(body, msgspec.json.decode(head, type=Task))):
            sink.write(len(part).to_bytes(LENGTH_BYTES, "big") + part)
        sink.flush()
        del body
        gc.collect()
