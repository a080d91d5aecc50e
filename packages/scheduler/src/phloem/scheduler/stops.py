"""When a request has ended by what it produced."""

from __future__ import annotations

from collections.abc import Collection

from phloem.scheduler.request import FinishReason, Request


def finish_after_token(
    request: Request, token: int, eos_token_ids: Collection[int]
) -> FinishReason | None:
    """Whether the token just appended ends the request, and why.

    Stop ids come before stop strings, then the end of a constrained text, then the length. Neither
    stop ids nor strings count below `min_new_tokens` (the sampler cannot produce stop ids there,
    unless a constraint allows nothing else, but a stop string can come about).

    Raises:
        ConstraintBroken: the constraint's matcher failed.
    """
    params = request.params
    enough = request.num_output >= params.min_new_tokens
    if (token in eos_token_ids and not params.ignore_eos) or token in params.stop_token_ids:
        return FinishReason("stop", matched=token)
    if request.stop_matcher is not None:
        matched = request.stop_matcher.push(token)
        if matched is not None and enough:
            return FinishReason("stop", matched=matched)
    if request.guide is not None and request.guide.ended:
        return FinishReason("stop", matched=token if token in eos_token_ids else None)
    if request.num_output >= request.max_new_tokens:
        return FinishReason("length")
    return None
