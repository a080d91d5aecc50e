"""What every endpoint that generates works with: the engine, the answers' parts, the limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
from fastapi import Request
from starlette.types import Scope, Send

from phloem.server.bodies.reader import BodyReader
from phloem.server.bodies.worker import Task
from phloem.server.frontend import Frontend
from phloem.server.http.body import MOST_ENTRIES, checked, content_of, read_body
from phloem.server.http.chat_setup import NO_NOTATION, ChatSetup
from phloem.server.http.constraints import with_constraints
from phloem.server.http.generation import Answer, Generation
from phloem.server.http.limits import Limiter
from phloem.server.http.logprobs import TokenNames
from phloem.server.http.metrics import Metrics
from phloem.server.http.prepare import Prepared
from phloem.server.http.protocol import ConstraintFields, GenerateRequest
from phloem.server.http.responses.store import ResponseStore
from phloem.server.http.sse import EventStream
from phloem.server.http.tenancy import caller_in, owner_of
from phloem.server.http.unknown_fields import UnknownFields

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Service:
    """The server behind the endpoints."""

    frontend: Frontend
    metrics: Metrics
    model: str
    """What clients call it."""
    names: TokenNames
    generation: Generation
    max_body_bytes: int
    limiter: Limiter
    unknown_fields: UnknownFields | None = None
    """Tells of those that are passed over; None: they are refused."""
    chat: ChatSetup = NO_NOTATION
    responses: ResponseStore = field(default_factory=ResponseStore)
    """Those that clients may come back to."""
    bodies: BodyReader | None = None
    """Reads large bodies apart; None: all are read here."""

    async def read(
        self,
        request: Request,
        shape: type[T],
        unsupported: Mapping[str, Collection[Any]],
        ignored: Collection[str] = (),
        most_entries: int = MOST_ENTRIES,
    ) -> T:
        """The body of a request; see `phloem.server.http.body`. From here on it counts among its
        caller's.

        Args:
            request: has it.
            shape, unsupported, ignored: as `checked` takes them.
            most_entries: in one field, where the context is not longer.

        Raises:
            ApiError: it is too large or malformed.
        """
        parts = await read_body(request, self.max_body_bytes)
        self.limiter.begin(request.scope)
        task = Task(
            max(most_entries, self.frontend.limits.context_len),
            _constraints_in(shape),
            self.frontend.grammar.whitespace,
        )
        content = await content_of(request, parts, self.bodies, task)
        unknown: list[str] | None = None if self.unknown_fields is None else []
        given = checked(content, shape, unsupported, ignored, unknown)
        if unknown and self.unknown_fields is not None:
            self.unknown_fields.tell(request.scope, unknown)
        return given

    def answer(self, prepared: Prepared) -> Answer:
        """The answer to a request.

        Compiling its constraints is a part of the answer's work: it ends when the client leaves.
        """
        return Answer(partial(self._work, prepared))

    async def _work(self, prepared: Prepared, scope: Scope, send: Send) -> None:
        with self.limiter.admitted(scope, prepared.requests) as admission:
            constrained = await with_constraints(
                self.frontend.grammar,
                self.metrics,
                prepared.requests,
                prepared.constraints,
                owner_of(caller_in(scope)),
            )
            what = (constrained, prepared.form, prepared.prompt, admission.spend)
            if prepared.stream:
                await self.generation.send_stream(*what, EventStream(scope, send))
            else:
                await self.generation.send_whole(*what, send)


def _constraints_in(shape: type[msgspec.Struct]) -> Literal["request", "sampling_params"] | None:
    """Where a body of that shape has its constraints."""
    if issubclass(shape, ConstraintFields):
        return "request"
    return "sampling_params" if issubclass(shape, GenerateRequest) else None
