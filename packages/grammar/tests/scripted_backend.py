"""A backend that does what a constraint's pattern says, for tests of the compile service.

Workers import it by name, so its folder must be on the search path.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from phloem.grammar import Constraint, ConstraintTooComplex, GrammarError, UnsupportedConstraint

NAME = "scripted_backend:create"
ABSENT = "scripted_backend:create_absent"


@dataclass(frozen=True)
class ScriptedVocabulary:
    fingerprint: str = "scripted"


@dataclass(frozen=True)
class ScriptedGrammar:
    data: bytes

    def serialize(self) -> bytes:
        return self.data


def create(vocabulary):
    return ScriptedBackend(vocabulary)


def create_absent(vocabulary):
    raise ImportError("a library is not installed")


class ScriptedBackend:
    name = NAME

    def __init__(self, vocabulary: ScriptedVocabulary) -> None:
        self.vocabulary = vocabulary
        self.hoard = []

    def check(self, constraint: Constraint) -> None:
        self.compile(constraint)

    def deserialize(self, data: bytes) -> ScriptedGrammar:
        if data.startswith(b"damaged"):
            raise GrammarError("the compiled constraint is damaged: compile it again")
        return ScriptedGrammar(data)

    def compile(self, constraint: Constraint) -> ScriptedGrammar:
        action, _, argument = constraint.source.partition(" ")
        return getattr(self, f"_{action}")(argument)

    def _echo(self, text: str) -> ScriptedGrammar:
        return ScriptedGrammar(text.encode())

    def _big(self, size: str) -> ScriptedGrammar:
        return ScriptedGrammar(bytes(int(size)))

    def _fingerprint(self, _: str) -> ScriptedGrammar:
        return ScriptedGrammar(self.vocabulary.fingerprint.encode())

    def _count(self, path: str) -> ScriptedGrammar:
        with Path(path).open("a") as file:
            file.write("x")
        return ScriptedGrammar(b"counted")

    def _print(self, text: str) -> ScriptedGrammar:
        print(text, flush=True)
        os.write(1, text.encode())
        return ScriptedGrammar(b"printed")

    def _priority(self, nice: str) -> ScriptedGrammar:
        """Wait for a priority as low as that; gives ours, and that of our session if it has one."""
        while os.nice(0) < int(nice):
            pass
        autogroup = Path("/proc/self/autogroup")
        session = autogroup.read_text().split()[-1] if autogroup.exists() else os.nice(0)
        return ScriptedGrammar(f"{os.nice(0)} {session} {os.getpid()}".encode())

    def _meet(self, paths: str) -> ScriptedGrammar:
        """Say through one named pipe that we are here, and go on when the other says so."""
        here, proceed = paths.split()
        Path(here).write_text(str(os.getpid()))
        return ScriptedGrammar(Path(proceed).read_bytes())

    def _spin(self, here: str) -> ScriptedGrammar:
        if here:
            Path(here).write_text(str(os.getpid()))
        while True:
            pass

    def _allocate(self, _: str) -> ScriptedGrammar:
        kept = []
        while True:
            kept.append(bytes(1 << 20))

    def _hoard(self, size: str) -> ScriptedGrammar:
        self.hoard.append(bytearray(int(size)))
        return ScriptedGrammar(str(os.getpid()).encode())

    def _recurse(self, _: str) -> ScriptedGrammar:
        return self._recurse(_)

    def _die(self, way: str) -> ScriptedGrammar:
        os.kill(os.getpid(), signal.Signals[way])
        while True:  # another thread may be the one that it reaches
            signal.pause()

    def _second(self, path_and_action: str) -> ScriptedGrammar:
        """Do something the first time; gives our process the second."""
        path, _, action = path_and_action.partition(" ")
        if Path(path).exists():
            return ScriptedGrammar(str(os.getpid()).encode())
        Path(path).touch()
        return self.compile(Constraint.regex(action))

    def _exit(self, _: str) -> ScriptedGrammar:
        raise SystemExit(3)

    def _fail(self, message: str) -> ScriptedGrammar:
        raise ZeroDivisionError(message)

    def _malformed(self, message: str) -> ScriptedGrammar:
        raise GrammarError(message)

    def _complex(self, message: str) -> ScriptedGrammar:
        raise ConstraintTooComplex(message)

    def _unsupported(self, pointer: str) -> ScriptedGrammar:
        raise UnsupportedConstraint(pointer, "uniqueItems", "leave it out")
