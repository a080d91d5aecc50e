"""From an OpenAI request to the sequences that it asks for, with every check that needs no engine.

Owns what the API's parameters are called in the engine, and their defaults. `/generate` speaks the
engine's own language: see `phloem.server.http.native`.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from phloem.server.constraints import ConstraintRequest, check_one
from phloem.server.frontend import Frontend, GenerationRequest
from phloem.server.http.chat import ChatForm, plain_messages
from phloem.server.http.completions import Choice, CompletionForm, prompt_ids
from phloem.server.http.constraints import asked_constraint
from phloem.server.http.errors import ApiError, refusing
from phloem.server.http.fitting import check_fits
from phloem.server.http.generation import Form
from phloem.server.http.logprobs import CompletionLogprobs, TokenNames
from phloem.server.http.protocol import (
    DEFAULT_COMPLETION_TOKENS,
    MAX_SEQUENCES,
    MAX_TENANT_CHARACTERS,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    OpenAIRequest,
)
from phloem.server.http.tool_form import ToolForm
from phloem.server.http.tools import ToolUse, tool_use
from phloem.server.jobs import Job, make_jobs

T = TypeVar("T")

_SAMPLING = (
    "n",
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "seed",
    "stop",
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "stop_token_ids",
)
"""What the API and the engine call by one name."""

_CHAT_ID, _COMPLETION_ID = ANSWER_IDS = ("chatcmpl-", "cmpl-")
"""How the ids of answers begin, by endpoint."""

_LONG_TEXT = 20_000
"""Characters from which tokenizing would hold up other streams for milliseconds."""


@dataclass(frozen=True)
class Prepared:
    """What to run, and how to answer."""

    requests: list[GenerationRequest]
    form: Form
    stream: bool
    prompt: str
    """The field that has the prompt, for errors."""
    constraints: Sequence[ConstraintRequest | None]
    """What each of the requests must keep to, to be compiled before they start."""


async def prepare_chat(
    frontend: Frontend, names: TokenNames, model: str, request: ChatRequest
) -> Prepared:
    """The sequences of a chat request.

    Raises:
        ApiError: it cannot be served.
    """
    top = _chat_logprobs(request)
    max_tokens = _chat_max_tokens(request)
    # In a thread: large schemas take long enough for streams to feel it.
    tools = await asyncio.to_thread(tool_use, request) if request.tools else tool_use(request)
    constraint = _chat_constraint(frontend, request, tools)
    with refusing("messages"):
        messages = plain_messages(request.messages)
        size = sum(len(message["content"]) for message in messages)
        prompt = await apart(size, _chat_ids, frontend, messages, tools.shown)
    fields = _sampling_fields(request, max_tokens) | {"top_logprobs": top}
    if max_tokens is None:
        fields["max_new_tokens"] = _room(frontend, prompt)
    with refusing(names=_ENGINE_NAMES):
        jobs, _ = make_jobs(
            frontend.tokenizer, None, fields, [prompt], namespace_of(request.cache_salt)
        )
    id = f"{_CHAT_ID}{uuid.uuid4().hex}"
    head = (id, model, request.n or 1, _include_usage(request), None if top is None else names)
    form = ChatForm(*head) if tools.constraint is None else ToolForm(*head, tools.named)
    return _prepared(_requests(id, jobs, request), form, request, "messages", constraint)


async def prepare_completion(
    frontend: Frontend, names: TokenNames, model: str, request: CompletionRequest
) -> Prepared:
    """The sequences of a completion request; those of a prompt are side by side.

    Raises:
        ApiError: it cannot be served.
    """
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
    common = _sampling_fields(request, request.max_tokens) | {"top_logprobs": request.logprobs}
    if request.echo and request.logprobs is not None:
        common["prompt_logprobs_from"] = 0
    fields = [common] * len(prompts)
    if request.max_tokens is None:
        least = max(DEFAULT_COMPLETION_TOKENS, request.min_tokens or 0)
        fields = [
            common | {"max_new_tokens": min(least, _room(frontend, prompt))} for prompt in prompts
        ]
    with refusing(names=_ENGINE_NAMES | {"top_logprobs": "logprobs"}):
        jobs, _ = make_jobs(
            frontend.tokenizer, None, fields, prompts, namespace_of(request.cache_salt)
        )
    id = f"{_COMPLETION_ID}{uuid.uuid4().hex}"
    choices = [_choice(frontend, names, request, prompts, i, n) for i in range(len(jobs))]
    form = CompletionForm(id, model, n, _include_usage(request), choices)
    return _prepared(_requests(id, jobs, request), form, request, "prompt", constraint)


def _prepared(
    requests: list[GenerationRequest],
    form: Form,
    asked: OpenAIRequest,
    prompt: str,
    constraint: ConstraintRequest | None,
) -> Prepared:
    return Prepared(requests, form, bool(asked.stream), prompt, [constraint] * len(requests))


def _chat_constraint(
    frontend: Frontend, request: ChatRequest, tools: ToolUse
) -> ConstraintRequest | None:
    constraint = asked_constraint(request, frontend.grammar.whitespace)
    if constraint is None or tools.constraint is None:
        return constraint or tools.constraint
    with refusing():
        check_one([constraint.field, "tool_choice"])
    return None


_ENGINE_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


def _chat_ids(
    frontend: Frontend,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None,
) -> list[int]:
    text = frontend.tokenizer.render_chat(messages, tools=tools)
    check_fits(frontend.tokenizer, frontend.limits, text, "messages", add_special_tokens=False)
    # The template writes all special tokens itself.
    return frontend.tokenizer.encode(text, add_special_tokens=False)


def _completion_ids(frontend: Frontend, prompt: str | Sequence[Any]) -> list[list[int]]:
    for text in texts_of(prompt):
        check_fits(frontend.tokenizer, frontend.limits, text, "prompt")
    return prompt_ids(frontend.tokenizer, prompt)


def _sampling_fields(request: OpenAIRequest, max_tokens: int | None) -> dict[str, Any]:
    """Fields of `SamplingParams`, and `n`; what was left out is left out."""
    given = {name: getattr(request, name) for name in _SAMPLING}
    given |= {"min_new_tokens": request.min_tokens, "max_new_tokens": max_tokens}
    return {name: value for name, value in given.items() if value is not None}


def _chat_logprobs(request: ChatRequest) -> int | None:
    """How many candidates to show for each token; None: no logprobs."""
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise ApiError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def _chat_max_tokens(request: ChatRequest) -> int | None:
    new, old = request.max_completion_tokens, request.max_tokens
    if None not in (new, old) and new != old:
        raise ApiError(
            f"max_completion_tokens is {new} and max_tokens, its old name, is {old}: give one",
            param="max_completion_tokens",
        )
    return old if new is None else new


def _room(frontend: Frontend, prompt: Sequence[int]) -> int:
    """New tokens that fit behind a prompt; 1 where none do, which the engine then refuses."""
    return max(1, frontend.limits.max_total_tokens - len(prompt))


def namespace_of(cache_salt: str | None) -> tuple[str | int | None, ...]:
    """Where a request's cached prefixes are; none is not the same as an empty salt."""
    return () if cache_salt is None else (cache_salt,)


def _include_usage(request: OpenAIRequest) -> bool:
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise ApiError("stream_options needs stream to be true", param="stream_options")
    return bool(options.include_usage)


def _requests(id: str, jobs: Sequence[Job], request: OpenAIRequest) -> list[GenerationRequest]:
    """One answer's sequences are named after it, so that its id aborts them."""
    rids = [id] if len(jobs) == 1 else [sequence_id(id, i) for i in range(len(jobs))]
    skip = request.skip_special_tokens is not False
    return [to_request(job, rid, skip, request) for job, rid in zip(jobs, rids)]


def sequence_id(answer: str, index: int) -> str:
    """What one of an answer's several sequences is called."""
    return f"{answer}-{index}"


def to_request(
    job: Job, rid: str, skip_special_tokens: bool, asked: OpenAIRequest | GenerateRequest
) -> GenerationRequest:
    """A job as the frontend takes it, with the time limits and priority that were asked for."""
    return GenerationRequest(
        rid,
        job.prompt_ids,
        job.params,
        job.namespace,  # type: ignore[arg-type]
        skip_special_tokens,
        asked.timeout,
        asked.queue_timeout,
        asked.priority or 0,
        asked.tenant,
    )


def tell_tenant(asked: OpenAIRequest | GenerateRequest, authorization: str | None) -> None:
    """Name the API key as the tenant, where there is one; what is kept is its hash.

    Raises:
        ApiError: the request names another, which would give one key many shares, or its name is
            too long.
    """
    tenant = asked.tenant
    if authorization:
        if tenant is not None:
            raise ApiError(
                "tenant is given beside an API key, which tells the tenant itself: leave it out",
                param="tenant",
            )
        asked.tenant = hashlib.sha256(authorization.encode()).hexdigest()[:16]
    elif tenant is not None and len(tenant) > MAX_TENANT_CHARACTERS:
        raise ApiError(
            f"tenant has {len(tenant)} characters and may have {MAX_TENANT_CHARACTERS}: shorten it",
            param="tenant",
        )


def _choice(
    frontend: Frontend,
    names: TokenNames,
    request: CompletionRequest,
    prompts: Sequence[list[int]],
    index: int,
    n: int,
) -> Choice:
    ids = prompts[index // n]
    skip = request.skip_special_tokens is not False
    choice = Choice()
    if request.logprobs is not None:
        choice.logprobs = CompletionLogprobs(names, ids if request.echo else (), skip)
    if request.echo:
        text = request.prompt if isinstance(request.prompt, str) else request.prompt[index // n]
        choice.echo = text if isinstance(text, str) else frontend.tokenizer.decode(ids, skip)
    return choice


def check_count(prompts: int, n: int) -> None:
    """Refuse what would be too many sequences for one request.

    Raises:
        ApiError: it would.
    """
    if prompts * max(n, 1) > MAX_SEQUENCES:
        raise ApiError(
            f"{prompts} prompts with n {n} are more than {MAX_SEQUENCES} sequences: send fewer "
            "at once",
            param="n",
        )


def text_size(prompt: str | Sequence[Any] | None) -> int:
    """Characters in all texts of a prompt."""
    return sum(map(len, texts_of(prompt)))


def texts_of(prompt: str | Sequence[Any] | None) -> list[str]:
    """The texts in a prompt of any form."""
    given = [prompt] if isinstance(prompt, str) else prompt or ()
    return [text for text in given if isinstance(text, str)]


async def apart(size: int, work: Callable[..., T], *args: Any) -> T:
    """`work(*args)`; in a thread where it would take long enough for streams to feel it.

    Of help for work that lets go of the interpreter lock, as `Tokenizer.encode` does.
    """
    return work(*args) if size < _LONG_TEXT else await asyncio.to_thread(work, *args)
