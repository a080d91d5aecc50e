"""From OpenAI's parameters to the sequences that a request asks for; what its endpoints share.

Owns what the API's parameters are called in the engine, and their defaults. `/generate` speaks the
engine's own language: see `phloem.server.http.native`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from phloem.server.constraints import ConstraintRequest
from phloem.server.frontend import Frontend, GenerationRequest
from phloem.server.http.errors import ApiError
from phloem.server.http.generation import Form
from phloem.server.http.protocol import (
    MAX_SEQUENCES,
    GenerateRequest,
    OpenAIRequest,
)
from phloem.server.jobs import Job
from phloem.server.observability.watch import stage

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

CHAT_ID, COMPLETION_ID = ANSWER_IDS = ("chatcmpl-", "cmpl-")
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


def prepared(
    requests: list[GenerationRequest],
    form: Form,
    asked: OpenAIRequest,
    prompt: str,
    constraint: ConstraintRequest | None,
) -> Prepared:
    """An OpenAI request's sequences, which all keep to one constraint if to any."""
    return Prepared(requests, form, bool(asked.stream), prompt, [constraint] * len(requests))


ENGINE_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
"""What the engine's parameters are called here."""


def sampling_fields(request: OpenAIRequest, max_tokens: int | None) -> dict[str, Any]:
    """Fields of `SamplingParams`, and `n`; what was left out is left out."""
    given = {name: getattr(request, name) for name in _SAMPLING}
    given |= {"min_new_tokens": request.min_tokens, "max_new_tokens": max_tokens}
    return {name: value for name, value in given.items() if value is not None}


def room(frontend: Frontend, prompt: Sequence[int]) -> int:
    """New tokens that fit behind a prompt; 1 where none do, which the engine then refuses."""
    return max(1, frontend.limits.max_total_tokens - len(prompt))


def include_usage(request: OpenAIRequest) -> bool:
    """Whether a stream ends with the usage.

    Raises:
        ApiError: there is no stream that could, or something else is wanted of it.
    """
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise ApiError("stream_options needs stream to be true", param="stream_options")
    if options.include_obfuscation:
        raise ApiError(
            "include_obfuscation is true, but chunks are not padded here: give false, or leave it "
            "out",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )
    return bool(options.include_usage)


def requests_of(id: str, jobs: Sequence[Job], request: OpenAIRequest) -> list[GenerationRequest]:
    """One answer's sequences are named after it, so that its id aborts them."""
    rids = [id] if len(jobs) == 1 else [sequence_id(id, i) for i in range(len(jobs))]
    skip = request.skip_special_tokens is not False
    if request.include_stop_str_in_output:
        request.no_stop_trim = True
    return [to_request(job, rid, skip, request) for job, rid in zip(jobs, rids)]


def given_ids(request: OpenAIRequest, prompt: str, given: bool) -> list[list[int]] | None:
    """The prompts that a request has as `input_ids`; None: it has another, in the field `prompt`,
    if it is `given`.

    Raises:
        ApiError: there are both or neither, or they are no lists of ids.
    """
    if (request.input_ids is not None) == given:
        both, neither = f"both {prompt} and input_ids are", f"neither {prompt} nor input_ids is"
        raise ApiError(
            f"{both if given else neither} given: give one of them",
            param="input_ids" if given else prompt,
        )
    return None if request.input_ids is None else token_lists(request.input_ids, "input_ids")


def token_lists(given: Sequence[Any], param: str) -> list[list[int]]:
    """One list of token ids, or several, as several.

    Raises:
        ApiError: it is neither.
    """
    lists = given if given and set(map(type, given)) == {list} else [given]
    for ids in lists:
        if not ids or set(map(type, ids)) != {int}:
            raise ApiError(
                f"{param} is of no form that is known: give texts, or lists of token ids, and "
                "nothing empty",
                param=param,
            )
    return list(lists)


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
        keep_stop=bool(asked.no_stop_trim),
        explain_cache=bool(asked.return_cache_miss_reason),
    )


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
    with stage("tokenize"):
        return work(*args) if size < _LONG_TEXT else await asyncio.to_thread(work, *args)
