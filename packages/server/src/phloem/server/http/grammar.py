"""`POST /v1/grammar/check`: can this server enforce a constraint, and if not, why?"""

from __future__ import annotations

from dataclasses import replace

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Scope, Send

from phloem.server.http.constraints import NAMES, asked_constraint
from phloem.server.http.describe import body_of
from phloem.server.http.errors import ApiError, json_response, refusing
from phloem.server.http.generation import Answer
from phloem.server.http.protocol import GrammarCheckRequest
from phloem.server.http.service import Service
from phloem.server.http.tenancy import caller_of, owner_of


def add_grammar_check(app: FastAPI, service: Service) -> None:
    """Add the route."""
    frontend = service.frontend

    @app.post("/v1/grammar/check", openapi_extra=body_of(GrammarCheckRequest))
    async def grammar_check(request: Request) -> Response:
        """Whether a backend enforces a constraint, or what it does not support in it."""
        given = await service.read(request, GrammarCheckRequest, {})
        asked = await asked_constraint(given, frontend.grammar.whitespace)
        if asked is None:
            raise ApiError(f"there is no constraint: give one of {', '.join(NAMES)}")
        asked = replace(asked, owner=owner_of(caller_of(request)))

        async def work(scope: Scope, send: Send) -> None:
            with refusing("backend"):
                report = await frontend.grammar.check(asked, given.backend)
            await json_response(report)(scope, request.receive, send)

        return Answer(work)
