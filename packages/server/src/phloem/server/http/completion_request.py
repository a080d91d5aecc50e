"""`POST /v1/completions`: prompts to the sequences that they ask for."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from phloem.server.frontend import Frontend
from phloem.server.http.completions import Choice, CompletionForm, prompt_ids
from phloem.server.http.constraints import asked_constraint
from phloem.server.http.describe import body_of
from phloem.server.http.errors import ApiError, refusing
from phloem.server.http.fitting import check_fits
from phloem.server.http.logprobs import CompletionLogprobs
from phloem.server.http.operation import check_model
from phloem.server.http.prepare import (
    COMPLETION_ID,
    ENGINE_NAMES,
    Prepared,
    apart,
    check_count,
    include_usage,
    prepared,
    requests_of,
    room,
    sampling_fields,
    text_size,
    texts_of,
)
from phloem.server.http.protocol import (
    DEFAULT_COMPLETION_TOKENS,
    IGNORED,
    UNSUPPORTED_IN_COMPLETIONS,
    CompletionRequest,
)
from phloem.server.http.service import Service
from phloem.server.http.tenancy import Caller, caller_of, namespace_of, tell_tenant
from phloem.server.jobs import make_jobs


def add_completions(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @app.post("/v1/completions", openapi_extra=body_of(CompletionRequest))
    async def completions(request: Request) -> Response:
        """OpenAI's text completions."""
        given = await service.read(request, CompletionRequest, UNSUPPORTED_IN_COMPLETIONS, IGNORED)
        caller = caller_of(request)
        tell_tenant(given, caller)
        check_model(given.model, service.model)
        return service.answer(await prepare_completion(service, given, caller))


async def prepare_completion(
    service: Service, request: CompletionRequest, caller: Caller
) -> Prepared:
    """The sequences of a completion request; those of a prompt are side by side.

    Raises:
        ApiError: it cannot be served.
    """
    frontend = service.frontend
    n = 1 if request.n is None else request.n
    if request.best_of not in (None, n):
        raise ApiError(
            f"best_of is {request.best_of} and n is {n}: choosing among more outputs than are "
            "returned is not supported",
            param="best_of",
        )
    constraint = asked_constraint(request, frontend.grammar.whitespace)
    with refusing("prompt"):
        prompts = await apart(text_size(request.prompt), _completion_ids, frontend, request.prompt)
    check_count(len(prompts), n)
    common = sampling_fields(request, request.max_tokens) | {"top_logprobs": request.logprobs}
    if request.echo and request.logprobs is not None:
        common["prompt_logprobs_from"] = 0
    fields = [common] * len(prompts)
    if request.max_tokens is None:
        least = max(DEFAULT_COMPLETION_TOKENS, request.min_tokens or 0)
        fields = [
            common | {"max_new_tokens": min(least, room(frontend, prompt))} for prompt in prompts
        ]
    with refusing(names=ENGINE_NAMES | {"top_logprobs": "logprobs"}):
        jobs, _ = make_jobs(
            frontend.tokenizer, None, fields, prompts, namespace_of(caller, request.cache_salt)
        )
    id = f"{COMPLETION_ID}{uuid.uuid4().hex}"
    choices = [_choice(service, request, prompts, i, n) for i in range(len(jobs))]
    form = CompletionForm(id, service.model, n, include_usage(request), choices)
    return prepared(requests_of(id, jobs, request), form, request, "prompt", constraint)


def _completion_ids(frontend: Frontend, prompt: str | Sequence[Any]) -> list[list[int]]:
    for text in texts_of(prompt):
        check_fits(frontend.tokenizer, frontend.limits, text, "prompt")
    return prompt_ids(frontend.tokenizer, prompt)


def _choice(
    service: Service,
    request: CompletionRequest,
    prompts: Sequence[list[int]],
    index: int,
    n: int,
) -> Choice:
    ids = prompts[index // n]
    skip = request.skip_special_tokens is not False
    choice = Choice()
    if request.logprobs is not None:
        choice.logprobs = CompletionLogprobs(service.names, ids if request.echo else (), skip)
    if request.echo:
        text = request.prompt if isinstance(request.prompt, str) else request.prompt[index // n]
        choice.echo = (
            text if isinstance(text, str) else service.frontend.tokenizer.decode(ids, skip)
        )
    return choice
