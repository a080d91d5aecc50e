"""Between gRPC's messages and what they mean: bodies of `/generate`, and results.

What a value may be is for the endpoint to say: what a message cannot hold is refused here only on
the client's side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from phloem.server.client.results import Finish, Generated, TokenLogprob
from phloem.server.client.wire import embedding_body, generate_body
from phloem.server.grpc import phloem_pb2 as pb

_FROM_MESSAGE: Mapping[str, Callable[[Any], Any]] = {
    "logit_bias": lambda bias: {str(token): value for token, value in bias.items()},
    "stop": list,
    "stop_token_ids": list,
    "choices": lambda choices: list(choices.texts),
    "grammar_options": lambda options: _fields(options),
}
"""Of the sampling parameters, those that JSON writes otherwise."""

_TO_MESSAGE: Mapping[str, Callable[[Any], Any]] = {
    "logit_bias": lambda bias: {int(token): value for token, value in bias.items()},
    "stop": lambda stop: [stop] if isinstance(stop, str) else list(stop),
    "choices": lambda texts: pb.Texts(texts=texts),
    "json_schema": lambda schema: schema if isinstance(schema, str) else json.dumps(schema),
    "structural_tag": lambda tag: tag if isinstance(tag, str) else json.dumps(tag),
}


def body_of(request: pb.GenerateRequest) -> dict[str, Any]:
    """The body of `/generate` that asks for the same."""
    body = _fields(request)
    if "input_ids" in body:
        body["input_ids"] = list(request.input_ids.ids)
    if "sampling_params" in body:
        given = _fields(request.sampling_params)
        body["sampling_params"] = {
            name: _FROM_MESSAGE[name](value) if name in _FROM_MESSAGE else value
            for name, value in given.items()
        }
    return body


def request_of(
    prompt: str | None,
    sampling_params: Mapping[str, Any] | None,
    input_ids: Sequence[int] | None,
    options: Mapping[str, Any],
) -> pb.GenerateRequest:
    """The message that asks for what a client's method was given.

    Raises:
        ValueError: there is not one prompt, or a field that no message can hold.
    """
    body = generate_body(prompt, sampling_params, input_ids, options)
    try:
        if "input_ids" in body:
            body["input_ids"] = pb.TokenIds(ids=body["input_ids"])
        if "sampling_params" in body:
            body["sampling_params"] = _params(body["sampling_params"])
        return pb.GenerateRequest(**body)
    except TypeError as error:
        raise ValueError(f"the request has a value of a wrong type: {error}") from error


def _params(given: Mapping[str, Any]) -> pb.SamplingParams:
    known = {name: value for name, value in given.items() if value is not None}
    for name in known:
        if name not in pb.SamplingParams.DESCRIPTOR.fields_by_name:
            raise ValueError(f"{name} is no sampling parameter over gRPC: leave it out")
    return pb.SamplingParams(
        **{
            name: _TO_MESSAGE[name](value) if name in _TO_MESSAGE else value
            for name, value in known.items()
        }
    )


def embed_body_of(request: pb.EmbedRequest) -> dict[str, Any]:
    """The body of `/v1/embeddings` that asks for the same."""
    options = _fields(request)
    texts, lists = options.pop("texts", None), options.pop("token_lists", None)
    given = (
        [list(each.ids) for each in lists.lists] if lists else list(texts.texts if texts else ())
    )
    return embedding_body(given, options)


def embed_request_of(
    inputs: str | Sequence[str] | Sequence[Sequence[int]], options: Mapping[str, Any]
) -> pb.EmbedRequest:
    """The message that asks for what a client's method was given.

    Raises:
        ValueError: a field that no message can hold.
    """
    given: Sequence[Any] = [inputs] if isinstance(inputs, str) else inputs
    try:
        if all(isinstance(each, str) for each in given):
            return pb.EmbedRequest(texts=pb.Texts(texts=given), **options)
        lists = [pb.TokenIds(ids=each) for each in given]
        return pb.EmbedRequest(token_lists=pb.TokenLists(lists=lists), **options)
    except TypeError as error:
        raise ValueError(f"the request has a value of a wrong type: {error}") from error


def response_of(result: Generated) -> pb.GenerateResponse:
    """A result as a message."""
    return pb.GenerateResponse(
        rid=result.request_id,
        text=result.text,
        output_ids=result.token_ids,
        finish=None if result.finish is None else _finish(result.finish),
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        cached_tokens=result.cached_tokens,
        retractions=result.retractions,
        timings=result.timings,
        logprobs=map(_logprob, result.logprobs),
        prompt_logprobs=map(_logprob, result.prompt_logprobs),
    )


def result_of(response: pb.GenerateResponse) -> Generated:
    """A message as a result; the inverse of `response_of`."""
    return Generated(
        request_id=response.rid,
        text=response.text,
        token_ids=list(response.output_ids),
        finish=_finish_of(response.finish) if response.HasField("finish") else None,
        prompt_tokens=response.prompt_tokens,
        completion_tokens=response.completion_tokens,
        cached_tokens=response.cached_tokens,
        retractions=response.retractions,
        timings=dict(response.timings),
        logprobs=_logprobs_of(response.logprobs),
        prompt_logprobs=_logprobs_of(response.prompt_logprobs),
    )


def _finish(finish: Finish) -> pb.Finish:
    matched = finish.matched
    return pb.Finish(
        type=finish.type,
        stop=matched if isinstance(matched, str) else None,
        token_id=matched if isinstance(matched, int) else None,
        message=finish.message,
        status=finish.status,
    )


def _finish_of(finish: pb.Finish) -> Finish:
    matched = finish.WhichOneof("matched")
    return Finish(
        finish.type,
        None if matched is None else getattr(finish, matched),
        finish.message if finish.HasField("message") else None,
        finish.status if finish.HasField("status") else None,
    )


def _logprob(entry: TokenLogprob) -> pb.TokenLogprob:
    top = [pb.TopLogprob(token_id=token, logprob=value) for token, value in entry.top]
    return pb.TokenLogprob(token_id=entry.token_id, logprob=entry.logprob, top=top)


def _logprobs_of(entries: Iterable[pb.TokenLogprob]) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            entry.token_id,
            entry.logprob if entry.HasField("logprob") else None,
            [(top.token_id, top.logprob) for top in entry.top],
        )
        for entry in entries
    ]


def _fields(message: Any) -> dict[str, Any]:
    """The fields of a message that are set, of whatever value."""
    return {field.name: value for field, value in message.ListFields()}
