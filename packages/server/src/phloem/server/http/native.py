"""`POST /generate`: the engine's own results over HTTP, as `Engine.generate` gives them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response

from phloem.server.bodies.decoding import is_large
from phloem.server.frontend import Frontend
from phloem.server.http.describe import body_of
from phloem.server.http.errors import ApiError, raise_if_failed, refusing
from phloem.server.http.fitting import check_fits
from phloem.server.http.native_params import NativeParams, native_params
from phloem.server.http.prepare import (
    Prepared,
    apart,
    check_count,
    text_size,
    texts_of,
    to_request,
    token_lists,
)
from phloem.server.http.protocol import (
    IGNORED_IN_GENERATE,
    UNSUPPORTED_IN_GENERATE,
    GenerateRequest,
)
from phloem.server.http.request_id import checked_rids
from phloem.server.http.service import Service
from phloem.server.http.sse import DONE, event, failure_event
from phloem.server.http.tenancy import Caller, caller_of, namespace_of, tell_tenant
from phloem.server.jobs import Job, make_jobs, only
from phloem.server.messages import TextNews
from phloem.server.results import Result, ResultBuilder

_SGLANG_NAMES = {
    "prompt_logprobs_from": "logprob_start_len",
    "top_logprobs": "top_logprobs_num",
}
"""What the engine's parameters are called by who uses SGLang's names."""


class NativeForm:
    """Answers as the engine's result dicts.

    An aborted request has the result that it came to, whose `finish_reason` says so; one that
    failed, or was out of time before it came to anything, is an error, unless it is one of several
    or the news of it is streamed.
    """

    def __init__(self, builders: Sequence[ResultBuilder], single: bool) -> None:
        self._builders = builders
        self._single = single

    def chunk(self, index: int, news: TextNews) -> bytes:
        """What is new, as a result."""
        return event(self._builders[index].delta(news))

    def tail(self) -> bytes:
        """The mark alone: the last result has the counts."""
        return DONE

    def failure(self, error: ApiError) -> bytes:
        """As OpenAI's."""
        return failure_event(error)

    def whole(self, outputs: Sequence[TextNews]) -> bytes:
        """A result, or the list of them."""
        first, finish = outputs[0], outputs[0].finish
        if self._single and finish is not None:
            nothing = finish.status_code is not None and not first.completion_tokens
            if finish.type == "error" or nothing:
                raise_if_failed(finish)
        results: list[Result] = [b.delta(news) for b, news in zip(self._builders, outputs)]
        content: Any = results[0] if self._single else results
        return msgspec.json.encode(content)


def add_native(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @app.post("/generate", openapi_extra=body_of(GenerateRequest))
    async def generate(request: Request) -> Response:
        """The engine's own results."""
        given = await service.read(
            request, GenerateRequest, UNSUPPORTED_IN_GENERATE, IGNORED_IN_GENERATE
        )
        caller = caller_of(request)
        tell_tenant(given, caller)
        return service.answer(await prepare_native(service, given, caller))


async def prepare_native(service: Service, request: GenerateRequest, caller: Caller) -> Prepared:
    """The sequences of a native request.

    Raises:
        ApiError: it cannot be served.
    """
    params = native_params(request)
    jobs, single = await _jobs(service.frontend, request, params, caller)
    if request.stream:
        with refusing():
            only(jobs)
    rids = _rids(request, jobs)
    request.no_stop_trim = params.keep_stop
    skip = params.skip_special_tokens
    requests = [to_request(job, rid, skip, request) for job, rid in zip(jobs, rids)]
    prompt = "text" if request.input_ids is None else "input_ids"
    constraints = [job.constraint for job in jobs]
    builders = [_builder(service, request, job, params.logprobs_as_sglang) for job in jobs]
    form = NativeForm(builders, single)
    return Prepared(requests, form, bool(request.stream), prompt, constraints)


def _builder(service: Service, request: GenerateRequest, job: Job, triples: bool) -> ResultBuilder:
    return ResultBuilder(
        job.prompt_ids,
        job.params,
        triples=triples,
        text_of=service.names.shown if request.return_text_in_logprobs else None,
        prompt_ids_too=bool(request.return_token_ids or request.return_prompt_token_ids),
    )


async def _jobs(
    frontend: Frontend, request: GenerateRequest, params: NativeParams, caller: Caller
) -> tuple[list[Job], bool]:
    text, ids = request.text, request.input_ids
    if isinstance(text, list):
        check_count(len(text), 1)
    if ids is not None:
        check_count(len(token_lists(ids, "input_ids")), 1)
    namespace = namespace_of(caller, request.cache_salt)
    arguments = (frontend, text, params.sampling, ids, namespace)
    with refusing(names=_SGLANG_NAMES if params.logprobs_as_sglang else None):
        size = sys.maxsize if is_large(params.sampling) else text_size(text)
        jobs, single = await apart(size, _make_jobs, *arguments)
    if not jobs:
        raise ApiError("text is empty: give at least one", param="text")
    check_count(len(jobs), 1)
    return jobs, single


def _make_jobs(
    frontend: Frontend, text: str | list[str] | None, *others: Any
) -> tuple[list[Job], bool]:
    for each in texts_of(text):
        check_fits(frontend.tokenizer, frontend.limits, each, "text")
    jobs, single = make_jobs(
        frontend.tokenizer, text, *others, whitespace=frontend.grammar.whitespace
    )
    for job in jobs:
        first, length = job.params.prompt_logprobs_from, len(job.prompt_ids)
        if first is not None and 0 < length <= first:
            raise ValueError(
                f"prompt_logprobs_from is {first}, but the prompt has {length} tokens: give a "
                f"position from 0 to {length - 1}"
            )
    return jobs, single


def _rids(request: GenerateRequest, jobs: Sequence[Job]) -> list[str]:
    if request.rid is None:
        return [job.rid for job in jobs]
    return checked_rids(request.rid, len(jobs), "sequences")
