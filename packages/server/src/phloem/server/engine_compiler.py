"""Constraints compiled for an engine in this process, while its callers wait for them.

Owns when the compile service is made: with the first constraint. Its workers are processes, so that
a constraint that takes long holds nobody up but its own caller.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from phloem.grammar import GrammarError
from phloem.grammar.service import CompileService, Limits
from phloem.model_runner.sources import default_cache_dir
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
        except GrammarError as error:
            raise BadConstraint(asked.field, str(error)) from error
        return CompiledConstraint(
            made.key, made.backend, made.data, asked.jump_forward, asked.steering
        )

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
        vocabulary, _ = grammars.prepare()
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine was shut down: make a new one")
            if self._service is None:
                args = self._args
                self._service = CompileService(
                    args.grammar_backend,
                    vocabulary.result(),
                    limits=Limits(seconds=args.grammar_compile_timeout),
                    folder=Path(args.cache_dir or default_cache_dir()) / "grammar",
                )
            return self._service
