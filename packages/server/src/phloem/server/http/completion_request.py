"""`POST /v1/completions`: prompts to the sequences that they ask for."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from phloem.server.frontend import Frontend
from phloem.server.http.completions import BestOfForm, Choice, CompletionForm, prompt_ids
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
    given_ids,
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
from phloem.server.jobs import MAX_N, make_jobs


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
    n, sequences = _counts(request)
    chooses = sequences != n
    with_usage = include_usage(request)
    constraint = await asked_constraint(request, frontend.grammar.whitespace)
    prompts = given_ids(request, "prompt", request.prompt is not None)
    if prompts is None:
        text = request.prompt
        assert text is not None, "neither a prompt nor input_ids, which was checked above"
        check_count(len(texts_of(text)), sequences)
        with refusing("prompt"):
            prompts = await apart(text_size(text), _completion_ids, frontend, text)
    check_count(len(prompts), sequences)
    top = request.logprobs if request.logprobs is not None or not chooses else 0
    common = sampling_fields(request, request.max_tokens) | {"n": sequences, "top_logprobs": top}
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
    choices = [_choice(service, request, prompts, i, sequences) for i in range(len(jobs))]
    if chooses:
        form: CompletionForm = BestOfForm(id, service.model, n, choices, sequences)
    else:
        form = CompletionForm(id, service.model, n, with_usage, choices)
    field = "prompt" if request.input_ids is None else "input_ids"
    return prepared(requests_of(id, jobs, request), form, request, field, constraint)


def _counts(request: CompletionRequest) -> tuple[int, int]:
    """How many outputs of each prompt are returned, and how many are generated.

    Raises:
        ApiError: fewer are, or the best are wanted of a stream.
    """
    n = 1 if request.n is None else request.n
    best_of = n if request.best_of is None else request.best_of
    if best_of == n:
        return n, n
    if not max(n, 1) <= best_of <= MAX_N:
        raise ApiError(
            f"best_of is {best_of}: give an integer from n, which is {n}, to {MAX_N}",
            param="best_of",
        )
    if request.stream:
        raise ApiError(
            f"best_of is {best_of} and n is {n}, which cannot be streamed: which outputs are the "
            "best shows at their end; leave out best_of or stream",
            param="best_of",
        )
    return n, best_of


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
    choice = Choice(prompt_ids=ids if request.return_token_ids else None)
    if request.echo:
        given = ids if request.prompt is None else request.prompt
        text = given if isinstance(given, str) else given[index // n]
        choice.echo = (
            text if isinstance(text, str) else service.frontend.tokenizer.decode(ids, skip)
        )
    if request.logprobs is not None:
        names = service.names.by_ids(request.return_tokens_as_token_ids)
        echoed = ids if request.echo else ()
        choice.logprobs = CompletionLogprobs(names, echoed, skip, choice.echo)
    return choice
