"""The API process's side of `phloem.grammar.service`: constraints compiled while clients wait.

Owns how and when the compile service is made, which needs the vocabulary, and what its errors mean
to a client. It implements `phloem.server.frontend.ConstraintCompiler`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast

from phloem.grammar import GrammarError
from phloem.grammar.auto import ORDER
from phloem.grammar.constraint import Whitespace
from phloem.grammar.service import (
    BackendSupport,
    CompileService,
    Limits,
    Overloaded,
    SupportReport,
)
from phloem.grammar.service import CompiledConstraint as Compiled
from phloem.grammar.vocabulary import Vocabulary
from phloem.model_runner.sources import default_cache_dir
from phloem.server.config import ServerArgs
from phloem.server.constraints import BadConstraint, ConstraintRequest
from phloem.server.frontend import ServiceUnavailable
from phloem.server.messages import CompiledConstraint, Load

BACKENDS = tuple(ORDER)
"""In the order in which `auto` asks them."""

RETRY_SECONDS = 5.0
"""What a client is told to wait when too many constraints wait to be compiled."""

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class ServiceCompiler:
    """Compiles in the worker processes of a `CompileService`. One asyncio loop uses it."""

    def __init__(
        self, make: Callable[[], CompileService], backend: str, whitespace: Whitespace
    ) -> None:
        """`make` is called at once, in a thread: making a vocabulary takes a while."""
        self.whitespace = whitespace
        self._backend = backend
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-start")
        self._service: Future[CompileService] = self._thread.submit(make)
        self._service.add_done_callback(_log_failure)

    async def compile(self, asked: ConstraintRequest) -> CompiledConstraint:
        """Compile a constraint, as `ConstraintCompiler` says."""
        made = await self._result(
            lambda service: service.submit(asked.constraint, asked.owner), asked.field
        )
        return compiled_constraint(made, asked)

    async def check(self, asked: ConstraintRequest, backend: str | None) -> dict[str, Any]:
        """What backends say of a constraint, as `ConstraintCompiler` says."""
        said: list[BackendSupport] = []
        names = asked_backends(backend) if backend else self._own_backends()
        for name in names:
            report = await self._ask(name, asked)
            said += report.backends
            if report.supported or any(each.final for each in report.backends):
                break  # as `auto` does; to ask the others would load their libraries for nothing
        supported = any(each.supported for each in said)
        return {"supported": supported, "backends": [asdict(each) for each in said]}

    def _own_backends(self) -> tuple[str, ...]:
        return BACKENDS if self._backend == "auto" else (self._backend,)

    async def _ask(self, name: str, asked: ConstraintRequest) -> SupportReport:
        return await self._result(
            lambda service: service.check(asked.constraint, [name], asked.owner), asked.field
        )

    def stats(self) -> dict[str, int]:
        """Counts since the start, as `ConstraintCompiler` says."""
        if not self._service.done() or self._service.exception():
            return {}
        return dict(self._service.result().stats._asdict())

    def close(self) -> None:
        """End the workers; what is compiled still fails with `ServiceUnavailable`."""
        self._thread.shutdown()
        if not self._service.exception():
            self._service.result().close()

    async def _result(self, ask: Callable[[CompileService], Future[_T]], field: str) -> _T:
        """What the service gives; leaving cancels the work, unless others wait for it too."""
        try:
            # Shielded: who leaves does not end what all others wait for.
            service = await asyncio.shield(asyncio.wrap_future(self._service))
            return await asyncio.wrap_future(ask(service))
        except GrammarError as error:
            raise BadConstraint(field, str(error)) from error
        except Overloaded as error:
            raise ServiceUnavailable(
                "the server has too many constraints to compile now: try again later", RETRY_SECONDS
            ) from error
        except RuntimeError as error:
            log.error("a constraint could not be compiled: %s", error)
            raise ServiceUnavailable("the server cannot compile constraints now") from error


class NoCompiler:
    """Refuses every constraint: `grammar_backend` is none."""

    whitespace: Whitespace = "bounded"

    async def compile(self, asked: ConstraintRequest) -> CompiledConstraint:
        """Refuse it."""
        raise BadConstraint(
            asked.field,
            f"{asked.field} asks for a constraint, which this server does not enforce "
            "(--grammar-backend none): leave it out",
        )

    async def check(self, asked: ConstraintRequest, backend: str | None) -> dict[str, Any]:
        """Refuse that too."""
        raise BadConstraint(asked.field, "this server enforces no constraints")

    def stats(self) -> dict[str, int]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing is to be ended."""


def asked_backends(name: str | None) -> tuple[str, ...]:
    """The backends that a name means: itself, or with `auto` or None all of them.

    Raises:
        ValueError: there is none of that name.
    """
    if name in (None, "auto"):
        return BACKENDS
    if name not in BACKENDS:
        known = ", ".join(("auto", *BACKENDS))
        raise ValueError(f"there is no backend {str(name)[:100]!r}: known are {known}")
    return (name,)


def make_compiler(
    args: ServerArgs, vocabulary: Callable[[], Vocabulary]
) -> ServiceCompiler | NoCompiler:
    """The compiler that the options ask for; `vocabulary` is called in a thread."""
    if args.grammar_backend == "none":
        return NoCompiler()
    whitespace = cast(Whitespace, args.grammar_whitespace)
    return ServiceCompiler(
        lambda: compile_service(args, vocabulary()), args.grammar_backend, whitespace
    )


def compile_service(args: ServerArgs, vocabulary: Vocabulary) -> CompileService:
    """The service that the options ask for."""
    return CompileService(
        args.grammar_backend,
        vocabulary,
        limits=Limits(seconds=args.grammar_compile_timeout),
        folder=Path(args.cache_dir or default_cache_dir()) / "grammar",
    )


def compiled_constraint(made: Compiled, asked: ConstraintRequest) -> CompiledConstraint:
    """What the service made, with how it was asked to be followed."""
    return CompiledConstraint.of(
        Load(made.key, made.backend, made.data), asked.jump_forward, asked.steering
    )


def _log_failure(service: Future[CompileService]) -> None:
    if service.exception():
        log.error("constraints cannot be compiled", exc_info=service.exception())
