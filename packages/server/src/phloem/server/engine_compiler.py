"""Constraints compiled for an engine in this process, while its callers wait for them.

Owns when the compile service is made: with the first constraint. Its workers are processes, so that
a constraint that takes long holds nobody up but its own caller.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from phloem.grammar import GrammarError
from phloem.grammar.service import CompileService
from phloem.server.compiling import compile_service, compiled_constraint
from phloem.server.config import ServerArgs
from phloem.server.constraints import BadConstraint, ConstraintRequest
from phloem.server.grammars import Grammars, Guidance
from phloem.server.messages import CompiledConstraint


class EngineCompiler:
    """Compiles constraints; any thread may use it."""

    def __init__(self, args: ServerArgs, grammars: Grammars | None) -> None:
        """`grammars` has the vocabulary; None: constraints are refused."""
        self._args = args
        self._grammars = grammars
        self._lock = threading.Lock()
        self._service: CompileService | None = None
        self._closed = False

    def compile(self, asked: ConstraintRequest) -> CompiledConstraint:
        """Compile a constraint and wait for it; one that is known takes no time.

        Raises:
            BadConstraint: it is malformed or unsupported, or not compiled within the limits.
            RuntimeError: no worker process can be had, or the engine was shut down.
        """
        if self._grammars is None:
            raise BadConstraint(
                asked.field,
                f"{asked.field} asks for a constraint, and the engine was made with "
                "grammar_backend none: leave it out, or choose a backend",
            )
        try:
            made = self._started(self._grammars).compile(asked.constraint)
            compiled = compiled_constraint(made, asked)
            self._grammars.load(compiled.load).result()  # here, for the loop not to wait for it
        except GrammarError as error:
            raise BadConstraint(asked.field, str(error)) from error
        return compiled

    def compile_all(
        self, asked: Iterable[ConstraintRequest | None]
    ) -> list[CompiledConstraint | None]:
        """`compile` those that there are."""
        return [None if each is None else self.compile(each) for each in asked]

    def guidance(self, compiled: CompiledConstraint | None) -> Guidance:
        """What a request's constraint means to the scheduler, in whose thread this is called."""
        return Guidance() if self._grammars is None else self._grammars.guidance(compiled)

    def close(self) -> None:
        """End the workers. May be called again."""
        with self._lock:
            self._closed = True
            if self._service is not None:
                self._service.close()

    def _started(self, grammars: Grammars) -> CompileService:
        vocabulary = grammars.prepare()
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine was shut down: make a new one")
            if self._service is None:
                self._service = compile_service(self._args, vocabulary.result())
            return self._service
