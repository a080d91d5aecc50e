"""A worker process: compiles the constraints that come in on standard input, one after another.

It keeps to the limits of `limits`, and lives as long as its standard input stays open: however the
process of the service ends, the worker ends too.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, BinaryIO

from phloem.grammar.auto import ORDER, AutoBackend, BackendMaker
from phloem.grammar.base import GrammarBackend
from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import ConstraintTooComplex, GrammarError
from phloem.grammar.registry import create_backend
from phloem.grammar.service.frames import Frame, error_frame, read_frame, write_frame
from phloem.grammar.service.limits import (
    address_space,
    forbid_core_dumps,
    limited,
    lower_this_thread,
)
from phloem.grammar.service.support import check
from phloem.grammar.vocabulary import Vocabulary

_STACK_BYTES = 8 << 20
"""Of a thread that compiles, which may have to go deep."""


def main() -> None:
    """Serve until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends us
    forbid_core_dumps()
    replies = _take_standard_output()
    threading.stack_size(_STACK_BYTES)
    with suppress(EOFError):
        compiler = _prepare(read_frame(sys.stdin.buffer), replies)
        thread: threading.Thread | None = None
        while compiler is not None:
            request = read_frame(sys.stdin.buffer)
            if thread is not None:
                thread.join()  # it has answered; its stack is for the next
            thread = _serve(compiler, request, replies)
    os._exit(0)  # a thread may be in the middle of a constraint, which an orderly end waits for


def _take_standard_output() -> BinaryIO:
    """Standard output for our frames alone; what a library prints goes to standard error."""
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return frames


def _prepare(setup: Frame, replies: BinaryIO) -> _Compiler | None:
    try:
        compiler = _Compiler(setup)
    except Exception as error:
        write_frame(replies, Frame({"failed": f"{type(error).__name__}: {error}"}))
        return None
    write_frame(replies, Frame({}))
    return compiler


def _serve(compiler: _Compiler, request: Frame, replies: BinaryIO) -> threading.Thread | None:
    """Load a library here, or compile in a thread that yields to others: a priority that was
    lowered cannot be raised again, and a thread takes it along when it ends."""
    name: str | None = request.header.get("load")
    if name is not None:
        compiler.load(name)
        write_frame(replies, Frame({}))
        return None

    def compile_it() -> None:
        lower_this_thread(compiler.nice)
        write_frame(replies, compiler.answer(request))
        if compiler.worn:
            os._exit(0)

    thread = threading.Thread(target=compile_it, name="compile", daemon=True)
    thread.start()
    return thread


class _Compiler:
    def __init__(self, setup: Frame) -> None:
        header = setup.header
        self.nice: int = header["nice"]
        self._seconds: float = header["seconds"]
        self._memory_bytes: int = header["memory_bytes"]
        self._name: str = header["backend"]
        self._backends = _Backends(pickle.loads(setup.data))
        self._backends.load(self._name)
        self._backends.get(self._name)
        self._fresh: int | None = None
        """Address space before the first constraint."""
        self.worn = False
        """Whether a fresh process had better take the next constraint."""

    def load(self, name: str) -> None:
        """Make a backend that was missing, or find out that it cannot be made."""
        before = address_space() or 0
        self._backends.load(name)
        # A library takes space that no constraint is to blame for.
        if self._fresh is not None:
            self._fresh += (address_space() or 0) - before

    def answer(self, request: Frame) -> Frame:
        """What a request comes to: a compiled constraint, a report, or an error; or the name of a
        backend that must be loaded first, since that is not what the limits are for."""
        if self._fresh is None:
            self._fresh = address_space() or 0
        try:
            reply = self._answer(request.header)
        except _Missing as missing:
            return Frame({"missing": missing.name})
        except MemoryError:
            self.worn = True
            reply = error_frame(
                ConstraintTooComplex(
                    "compiling this constraint takes more memory than the "
                    f"{self._memory_bytes >> 20} MiB that it may: make it smaller"
                )
            )
        except RecursionError:
            reply = error_frame(
                ConstraintTooComplex("this constraint is nested too deeply: make it flatter")
            )
        except GrammarError as error:
            reply = error_frame(error)
        except BaseException as error:  # a panic of Rust's is no Exception
            self.worn = True
            traceback.print_exc()
            reply = error_frame(
                GrammarError(
                    f"this constraint made its compiler fail ({type(error).__name__}: {error}): "
                    "change it, or choose another backend"
                )
            )
        # What a backend keeps of past constraints must not eat up the memory of the next.
        self.worn |= (address_space() or 0) - self._fresh > self._memory_bytes // 2
        return Frame({**reply.header, "last": self.worn}, reply.data)

    def _answer(self, request: Mapping[str, Any]) -> Frame:
        constraint = Constraint(**request["constraint"])
        names: list[str] | None = request.get("check")
        with limited(self._seconds, self._memory_bytes):
            if names is None:
                return Frame({}, self._backends.get(self._name).compile(constraint).serialize())
            report = check(constraint, names, self._backends.get)
        return Frame({"report": [asdict(backend) for backend in report.backends]})


class _Missing(Exception):
    """A backend is needed that is not loaded yet."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _Backends:
    """The backends of this process, each made once, and only when it is told to be loaded."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._made: dict[str, GrammarBackend | Exception] = {}

    def load(self, name: str) -> None:
        """Make a backend; one that cannot be made raises that from `get`."""
        try:
            self._made[name] = self._make(name)
        except Exception as error:
            self._made[name] = error

    def get(self, name: str) -> GrammarBackend:
        """A backend that was loaded.

        Raises:
            _Missing: it was not.
            Exception: what came of making it; ImportError if a library is not installed.
        """
        made = self._made.get(name)
        if made is None:
            raise _Missing(name)
        if isinstance(made, Exception):
            raise made.with_traceback(None)
        return made

    def _make(self, name: str) -> GrammarBackend:
        if name == AutoBackend.name:
            return AutoBackend(self._vocabulary, {each: self._maker(each) for each in ORDER})
        return create_backend(name, self._vocabulary)

    def _maker(self, name: str) -> BackendMaker:
        return lambda _: self.get(name)
