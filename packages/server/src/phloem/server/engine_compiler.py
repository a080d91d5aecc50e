"""Constraints compiled for an engine in this process, while its callers wait for them.

Owns when the compile service is made: with the first constraint. Its workers are processes, so that
a constraint that takes long holds nobody up but its own caller.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from phloem.grammar import GrammarError
from phloem.grammar.service import CompileService
from phloem.grammar.vocabulary import Vocabulary
from phloem.server.compiling import compiled_constraint
from phloem.server.concurrency import all_of
from phloem.server.constraints import BadConstraint, ConstraintRequest
from phloem.server.grammars import Grammars, Guidance
from phloem.server.messages import CompiledConstraint

Asked = Sequence[ConstraintRequest | None]
Compiled = list[CompiledConstraint | None]


class EngineCompiler:
    """Compiles constraints; any thread may use it."""

    def __init__(
        self, grammars: Grammars | None, make_service: Callable[[Vocabulary], CompileService]
    ) -> None:
        """`grammars` has the vocabulary; None: constraints are refused."""
        self._grammars = grammars
        self._make_service = make_service
        self._lock = threading.Lock()
        self._service: CompileService | None = None
        self._closed = False

    def compile_all(self, asked: Asked) -> Compiled:
        """Compile those constraints that there are, side by side, and wait for them; what is known
        takes no time.

        Raises:
            BadConstraint: one is malformed or unsupported, or not compiled within the limits; the
                others are given up then.
            RuntimeError: no worker process can be had, or the engine was shut down.
        """
        distinct = _distinct(asked)
        if not distinct:
            return [None] * len(asked)
        grammars = self._enforcing(distinct[0])
        service = self._started(grammars.prepare().result())
        made = [service.submit(each.constraint) for each in distinct]
        compiled: dict[ConstraintRequest, CompiledConstraint] = {}
        try:
            for each, future in zip(distinct, made, strict=True):
                with _refusing(each):
                    one = compiled[each] = compiled_constraint(future.result(), each)
                    assert one.load is not None, "it was compiled"
                    grammars.load(one.load).result()  # here, for the loop not to wait for it
        finally:
            for future in made:
                future.cancel()  # also when the wait was interrupted
        return _spread(asked, compiled)

    async def compile_all_async(self, asked: Asked) -> Compiled:
        """As `compile_all`; cancelling it cancels what is being compiled."""
        distinct = _distinct(asked)
        if not distinct:
            return [None] * len(asked)
        grammars = self._enforcing(distinct[0])
        # Shielded, as loading is: who leaves does not end what others wait for too.
        vocabulary = await asyncio.shield(asyncio.wrap_future(grammars.prepare()))
        service = self._started(vocabulary)

        async def compile(each: ConstraintRequest) -> CompiledConstraint:
            with _refusing(each):
                made = await asyncio.wrap_future(service.submit(each.constraint))
                one = compiled_constraint(made, each)
                assert one.load is not None, "it was compiled"
                await asyncio.shield(asyncio.wrap_future(grammars.load(one.load)))
            return one

        made = await all_of([compile(each) for each in distinct])
        return _spread(asked, dict(zip(distinct, made, strict=True)))

    def guidance(self, compiled: CompiledConstraint | None) -> Guidance:
        """What a request's constraint means to the scheduler, in whose thread this is called."""
        return Guidance() if self._grammars is None else self._grammars.guidance(compiled)

    def close(self) -> None:
        """End the workers. May be called again."""
        with self._lock:
            self._closed = True
            if self._service is not None:
                self._service.close()

    def _enforcing(self, asked: ConstraintRequest) -> Grammars:
        if self._grammars is None:
            raise BadConstraint(
                asked.field,
                f"{asked.field} asks for a constraint, and the engine was made with "
                "grammar_backend none: leave it out, or choose a backend",
            )
        return self._grammars

    def _started(self, vocabulary: Vocabulary) -> CompileService:
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine was shut down: make a new one")
            if self._service is None:
                self._service = self._make_service(vocabulary)
            return self._service


@contextmanager
def _refusing(asked: ConstraintRequest) -> Iterator[None]:
    """Within it, what is wrong with a constraint is told with its field."""
    try:
        yield
    except GrammarError as error:
        raise BadConstraint(asked.field, str(error)) from error


def _distinct(asked: Asked) -> list[ConstraintRequest]:
    return list(dict.fromkeys(each for each in asked if each is not None))


def _spread(asked: Asked, compiled: Mapping[ConstraintRequest, CompiledConstraint]) -> Compiled:
    return [None if each is None else compiled[each] for each in asked]
