"""Whether a request can be served at all, as pure functions of it and of the limits.

The scheduler asks before it queues a request; a front end in another process asks the same before
it sends one, so that both refuse with the same sentence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phloem.mem_pool import Retention
from phloem.scheduler.errors import ContextLengthError
from phloem.scheduler.ports import PoolingMode
from phloem.scheduler.sampling import DEFAULT_MAX_NEW_TOKENS, SamplingParams

MOST_URGENT = 2**31 - 1
"""The highest priority, and minus this the lowest."""


def checked_prompt(prompt_ids: npt.ArrayLike, vocab_size: int) -> npt.NDArray[np.int32]:
    """The prompt as `[tokens]` int32.

    Raises:
        ValueError: it is empty, not flat, not of integers, or has an id outside `[0, vocab_size)`.
    """
    try:
        given = np.asarray(prompt_ids)
    except ValueError as error:  # lists of unequal depth
        raise ValueError(f"the prompt is no flat list of token ids ({error})") from error
    if given.ndim == 1 and not len(given):
        raise ValueError("the prompt is empty: give at least one token")
    if given.ndim != 1:
        raise ValueError(f"the prompt has shape {list(given.shape)}: give a flat list of token ids")
    if given.dtype.kind not in "iu" or _has_bool(prompt_ids):
        raise ValueError(f"the prompt has {given.dtype} values: give integer token ids")
    bad = given[(given < 0) | (given >= vocab_size)]
    if len(bad):
        raise ValueError(
            f"the prompt has token id {bad[0]}, but the vocabulary has ids 0 to {vocab_size - 1}"
        )
    # A copy: the caller may reuse its array, and the tokens name what is cached.
    return np.array(given, np.int32)


def _has_bool(prompt_ids: npt.ArrayLike) -> bool:
    """Whether a list has booleans among its integers, which numpy would take for 0 and 1."""
    return isinstance(prompt_ids, (list, tuple)) and bool in set(map(type, prompt_ids))


def checked_new_tokens(
    prompt: int, params: SamplingParams, context_len: int, capacity: int, max_total_tokens: int
) -> int:
    """How many tokens a request may produce after a prompt of `prompt` tokens.

    `max_total_tokens` is the longest prompt and output together, which the context length and the
    capacity of the KV cache allow.

    Raises:
        ContextLengthError: it is longer than that; the message names `context_len` and `capacity`.
    """
    wanted = params.max_new_tokens
    least = max(1, params.min_new_tokens) if wanted is None else wanted
    if prompt + least > max_total_tokens:
        raise ContextLengthError(prompt, least, context_len, capacity)
    if wanted is not None:
        return wanted
    return min(max(DEFAULT_MAX_NEW_TOKENS, least), max_total_tokens - prompt)


LONGEST_SECONDS = 10_000_000
"""Some months; clocks cannot wait for any time at all."""


def checked_seconds(seconds: float | None, name: str) -> float | None:
    """A time limit that a user gave; None: no limit.

    Raises:
        ValueError: it is no positive number.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ValueError(f"{name} is {seconds!r}: give a number of seconds")
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError(
            f"{name} is {seconds:g}: give more than 0 seconds and at most {LONGEST_SECONDS}, or "
            "leave it out"
        )
    return float(seconds)


def checked_retention(given: Retention, prompt_tokens: int) -> Retention:
    """How long, and how much of its prompt, a request wants to be retained; no more than that is.

    Raises:
        ValueError: the time is no positive number, or the length is negative or no integer.
    """
    seconds = checked_seconds(given.seconds, "retain_seconds")
    assert seconds is not None, "a retention has a time"
    tokens = prompt_tokens if given.tokens is None else given.tokens
    if type(tokens) is not int or tokens < 0:
        raise ValueError(f"retain_tokens is {tokens!r}: give a number of tokens, or leave it out")
    return Retention(seconds, min(tokens, prompt_tokens))


def checked_priority(given: int, uses_priorities: bool) -> int:
    """A request's priority.

    Raises:
        ValueError: it is no integer in the range, or would be ignored because `uses_priorities` is
            not set.
    """
    if type(given) is not int or abs(given) > MOST_URGENT:
        raise ValueError(
            f"priority is {given!r}: give an integer from {-MOST_URGENT} to {MOST_URGENT}"
        )
    if given and not uses_priorities:
        raise ValueError(
            f"priority is {given}, but requests are not scheduled by priority here: leave it "
            "out, or set enable_priority_scheduling"
        )
    return given


def checked_pooling(given: PoolingMode | None, params: SamplingParams) -> PoolingMode | None:
    """How a prompt is pooled; None: it is not.

    Raises:
        ValueError: there is no such way, or the request would make tokens too.
    """
    if given is None:
        return None
    if given not in ("mean", "last"):
        raise ValueError(f'pooling is {given!r}: give "mean" or "last"')
    if params.max_new_tokens != 0:
        raise ValueError(
            f"max_new_tokens is {params.max_new_tokens}, but a pooled request makes no tokens: "
            "give 0"
        )
    return given
