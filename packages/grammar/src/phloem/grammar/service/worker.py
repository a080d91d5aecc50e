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
from importlib import import_module
from queue import SimpleQueue
from typing import Any, BinaryIO

from phloem.grammar.base import GrammarBackend
from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import ConstraintTooComplex, GrammarError
from phloem.grammar.registry import create_backend
from phloem.grammar.service.frames import Frame, error_frame, read_frame, write_frame
from phloem.grammar.service.limits import (
    address_space,
    forbid_core_dumps,
    limited,
)
from phloem.grammar.service.support import check
from phloem.grammar.vocabulary import Vocabulary


def main() -> None:
    """Serve until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends us
    forbid_core_dumps()
    replies = _take_standard_output()
    requests: SimpleQueue[Frame] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), name="listen", daemon=True).start()
    setup = requests.get()
    try:
        compiler = _Compiler(setup)
    except Exception as error:
        write_frame(replies, Frame({"failed": f"{type(error).__name__}: {error}"}))
    else:
        write_frame(replies, Frame({}))
        while not compiler.worn:
            write_frame(replies, compiler.answer(requests.get()))
    os._exit(0)  # the other thread may be in the middle of a read, which an orderly end trips over


def _take_standard_output() -> BinaryIO:
    """Standard output for our frames alone; what a library prints goes to standard error."""
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return frames


def _listen(requests: SimpleQueue[Frame]) -> None:
    try:
        while True:
            requests.put(read_frame(sys.stdin.buffer))
    except EOFError:
        os._exit(0)  # the main thread may be in the middle of a constraint


class _Compiler:
    def __init__(self, setup: Frame) -> None:
        self._vocabulary: Vocabulary = pickle.loads(setup.data)
        self._seconds: float = setup.header["seconds"]
        self._memory_bytes: int = setup.header["memory_bytes"]
        self._backends: dict[str, GrammarBackend] = {}
        self._name: str = setup.header["backend"]
        self._backend(self._name)
        self._fresh = address_space() or 0
        self.worn = False
        """Whether a fresh process had better take the next constraint."""

    def answer(self, request: Frame) -> Frame:
        """What a request comes to: a compiled constraint, a report, or an error."""
        try:
            reply = self._answer(request.header)
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
        if names is None:
            backend = self._backend(self._name)
            with limited(self._seconds, self._memory_bytes):
                return Frame({}, backend.compile(constraint).serialize())
        for name in names:  # here, because loading a library is not what the limits are for
            with suppress(ImportError, ValueError):
                self._backend(name)
        with limited(self._seconds, self._memory_bytes):
            report = check(constraint, names, self._backend)
        return Frame({"report": [asdict(backend) for backend in report.backends]})

    def _backend(self, name: str) -> GrammarBackend:
        if name not in self._backends:
            self._backends[name] = _create(name, self._vocabulary)
        return self._backends[name]


def _create(name: str, vocabulary: Vocabulary) -> GrammarBackend:
    module, colon, function = name.partition(":")
    if colon:
        backend: GrammarBackend = getattr(import_module(module), function)(vocabulary)
        return backend
    return create_backend(name, vocabulary)
