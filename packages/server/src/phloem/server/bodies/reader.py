"""Bodies of requests to what they hold, without holding up who waits for tokens meanwhile.

Owns which bodies are read in a process apart, and that process. What it gives back is put together
piece by piece, and the event loop has its turn in between.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from phloem.grammar.constraint import Constraint
from phloem.server.bodies.decoding import BadBody, check_sizes, decoded
from phloem.server.bodies.worker import END, FAILURE, LENGTH_BYTES, REFUSAL, Refusal, Task
from phloem.server.children import main_of
from phloem.server.closing import AsyncClosing
from phloem.server.constraints import ConstraintRequest
from phloem.server.frontend import ServiceUnavailable

SMALL = 32 << 10
"""Bytes of a body that take a few milliseconds at most, whatever they are."""
_PLAIN = 1 << 20
"""The same of one that is little but text."""
_MOST_MARKS = 10_000
"""In such a body, of what may begin another value."""
_SENT = 64 << 10
"""Bytes that are sent at once."""
_MOST_HELD = 64 << 20
"""Bytes of bodies that are read apart or wait for that, if there is more than one."""
_MOST_SECONDS = 60.0
"""For one of them, at a low priority on a busy machine."""
_SECONDS_TO_END = 2.0

log = logging.getLogger(__name__)


def read_here(body: bytes, task: Task) -> dict[str, Any]:
    """What a body holds, now.

    Raises:
        BadBody: it cannot be taken.
    """
    content = decoded(body)
    check_sizes(content, task.most_entries)
    return content


def takes_long(body: bytes) -> bool:
    """Whether streams would feel it, were a body read here."""
    if len(body) <= SMALL:
        return False
    return len(body) > _PLAIN or sum(map(body.count, b",[{")) > _MOST_MARKS


class BodyReader(AsyncClosing):
    """Reads large bodies in a process, which starts with the first one. One event loop uses it."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._held = 0

    @property
    def pid(self) -> int | None:
        """Of the process; None: there is none."""
        return None if self._process is None else self._process.pid

    async def read(self, parts: Sequence[bytes | bytearray], task: Task) -> dict[str, Any]:
        """What a body holds, which came in parts; large constraints in it are made already.

        Raises:
            BadBody: it cannot be taken.
            ServiceUnavailable: many wait already, or it took too long, or the process died.
        """
        size = sum(map(len, parts))
        if size <= _PLAIN:
            body = b"".join(parts)
            if not takes_long(body):
                return read_here(body, task)
        if self._held and self._held + size > _MOST_HELD:
            raise ServiceUnavailable("other large bodies wait to be read: try again soon", 1.0)
        self._held += size
        try:
            async with self._turn:
                return await self._read_apart(parts, task)
        finally:
            self._held -= size

    async def _read_apart(self, parts: Sequence[bytes | bytearray], task: Task) -> dict[str, Any]:
        try:
            process = await self._running()
            return await asyncio.wait_for(_asked(process, parts, task), _MOST_SECONDS)
        except BadBody:
            raise
        except asyncio.TimeoutError as error:
            self._kill()
            raise ServiceUnavailable(
                f"the body was not read within {_MOST_SECONDS:g} s: send less at once"
            ) from error
        except (OSError, asyncio.IncompleteReadError) as error:
            self._kill()
            log.error("the process that reads large bodies cannot be had, or died: %s", error)
            raise ServiceUnavailable("the server could not read the body", 1.0) from error
        except BaseException:
            # What it says next is for nobody.
            self._kill()
            raise

    async def aclose(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _SECONDS_TO_END)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *main_of("phloem.server.bodies.worker"),
                stdin=PIPE,
                stdout=PIPE,
                # The terminal's Ctrl-C is for the server, which ends it.
                start_new_session=True,
            )
        return self._process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()


async def _asked(
    process: Process, parts: Sequence[bytes | bytearray], task: Task
) -> dict[str, Any]:
    source, sink = process.stdout, process.stdin
    assert source is not None, "it was made as a pipe"
    assert sink is not None, "it was made as a pipe"
    head = msgspec.json.encode(task)
    sink.write(_length(len(head)) + head + _length(sum(map(len, parts))))
    for part in parts:
        view = memoryview(part)
        for begin in range(0, len(part), _SENT):
            sink.write(view[begin : begin + _SENT])
            await sink.drain()
    whole = Whole()
    while (piece := await _received(source)) != END:
        if piece[:1] == REFUSAL:
            refusal = msgspec.json.decode(piece[1:], type=Refusal)
            raise BadBody(refusal.message, refusal.param, refusal.code)
        if piece == FAILURE:
            raise RuntimeError("reading a large body failed: see the traceback above")
        whole.add(piece)
        # A stream whose bytes are here does not wait.
        await asyncio.sleep(0)
    return whole.content


def _length(size: int) -> bytes:
    return size.to_bytes(LENGTH_BYTES, "big")


async def _received(source: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await source.readexactly(LENGTH_BYTES), "big")
    return await source.readexactly(size)


class Whole:
    """What the pieces so far come to; see `phloem.server.bodies.pieces`."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}
        self._open: list[tuple[bytes, str | None, Any]] = [(b"{", None, self.content)]
        """What each is, its key, and what it has."""

    def add(self, piece: bytes) -> None:
        """Take the next one."""
        kind, within = piece[:1], self._open[-1][2]
        given: Any = None if kind == b"]" else msgspec.json.decode(memoryview(piece)[1:])
        if kind == b"]":
            self._close()
        elif kind == b"+":
            within.append(given)
        elif kind != b"e":
            self._open.append((kind, given, {} if kind in (b"{", b"c") else []))
        elif isinstance(within, dict):
            within.update(given)
        else:
            within.extend(given)

    def _close(self) -> None:
        kind, key, made = self._open.pop()
        if kind == b"t":
            made = "".join(made)
        elif kind == b"c":
            made = ConstraintRequest(**made | {"constraint": Constraint(**made["constraint"])})
        within = self._open[-1][2]
        if isinstance(within, dict):
            within[key] = made
        else:
            within.append(made)
