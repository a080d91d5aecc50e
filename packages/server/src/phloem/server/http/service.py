"""What every endpoint that generates works with: the engine, the answers' parts, the limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.types import Send

from phloem.server.frontend import Frontend
from phloem.server.http.body import checked, read_json
from phloem.server.http.chat_setup import ChatSetup
from phloem.server.http.constraints import with_constraints
from phloem.server.http.generation import Answer, Generation
from phloem.server.http.logprobs import TokenNames
from phloem.server.http.metrics import Metrics
from phloem.server.http.prepare import Prepared

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
    chat: ChatSetup = ChatSetup()

    async def read(
        self,
        request: Request,
        shape: type[T],
        unsupported: Mapping[str, Collection[Any]],
        ignored: Collection[str] = (),
    ) -> T:
        """The body of a request; see `phloem.server.http.body`.

        Raises:
            ApiError: it is too large or malformed.
        """
        content = await read_json(request, self.max_body_bytes)
        return checked(content, shape, unsupported, ignored)

    def answer(self, prepared: Prepared) -> Answer:
        """The answer to a request.

        Compiling its constraints is a part of the answer's work: it ends when the client leaves.
        """
        return Answer(partial(self._work, prepared))

    async def _work(self, prepared: Prepared, send: Send) -> None:
        constrained = await with_constraints(
            self.frontend.grammar, self.metrics, prepared.requests, prepared.constraints
        )
        run = self.generation.send_stream if prepared.stream else self.generation.send_whole
        await run(constrained, prepared.form, prepared.prompt, send)
