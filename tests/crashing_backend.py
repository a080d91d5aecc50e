"""A grammar backend that does to its process what a regex says, for tests of who compiles.

The processes of a server import it by name, so its folder must be on the search path.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading

from phloem.grammar.fsm_backend import FsmBackend


class CrashingBackend(FsmBackend):
    """`fsm`, but for a few regexes."""

    name = "crashing_backend:create"

    def compile(self, constraint):
        """Compile a constraint, or crash, or never come back."""
        way, _, what = constraint.source.partition(" ")
        if way == "exit":
            os._exit(7)
        if way == "abort":
            os.abort()
        if way == "segfault":
            ctypes.string_at(0)
        if way == "hold":
            with open(what, "w") as pipe:
                print("held", file=pipe, flush=True)
                threading.Event().wait()
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        if way == "raise":
            raise KeyError("a bug of the compiler")
        return Damaged() if way == "lie" else super().compile(constraint)


class Damaged:
    """What cannot be read."""

    def serialize(self):
        """Bytes that mean nothing."""
        return b"\0 lie"


def create(vocabulary):
    """The backend."""
    return CrashingBackend(vocabulary)
