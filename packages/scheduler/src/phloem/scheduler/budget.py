"""How much memory a request is counted for: the one formula of validation and admission.

A request that passes validation is admitted once the machine is otherwise empty, because both ask
`tokens_needed`; a request that does not pass could never run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from phloem.scheduler.request import Request

_INITIAL_RATIO = 0.7
_MIN_SHARE = 0.14
_DECAY_STEPS = 600
_LOOK_AHEAD = 20
"""Decode steps that a retraction makes room for, so that the next one does not follow at once."""


def tokens_needed(extend: int, new_tokens: int, page_size: int) -> int:
    """KV tokens that must be obtainable before a request is let in.

    Args:
        extend: tokens to compute before the first new one; rounded up to pages.
        new_tokens: output tokens to allow for.
        page_size: one page more is asked for, since a sequence's last page is rarely full.
    """
    return -(-extend // page_size) * page_size + new_tokens + page_size


def max_total_tokens(context_len: int, capacity: int, page_size: int) -> int:
    """Longest prompt and output together that can ever be served.

    The bound that `tokens_needed(prompt, new, page_size) <= capacity` puts on `prompt + new`
    whatever the split, and the model's context length.
    """
    return min(context_len, capacity - 2 * page_size + 1)


class NewTokenRatio:
    """The share of their allowed output that running requests are expected to use.

    Starts high, decays linearly with each decode step, and jumps up when the guess proved too low
    (a retraction), to what the running requests have used so far plus some steps more.
    """

    def __init__(self, conservativeness: float = 1.0) -> None:
        self._initial = min(_INITIAL_RATIO * conservativeness, 1.0)
        self._min = self._initial * _MIN_SHARE
        self._decay = (self._initial - self._min) / _DECAY_STEPS
        self.value = self._initial

    def step(self) -> None:
        """One decode step went well."""
        self.value = max(self.value - self._decay, self._min)

    def reset(self) -> None:
        """Nothing runs any more: what was learnt from the last load is forgotten."""
        self.value = self._initial

    def retracted(self, running: Iterable[Request]) -> None:
        """Memory ran out; `running` are those that stayed."""
        used = allowed = 0
        for request in running:
            used += request.num_output + request.pending + _LOOK_AHEAD
            allowed += request.max_new_tokens
        self.value = min(1.0, used / (allowed + 1))


@dataclass(slots=True)
class PrefillBudget:
    """What may still be added to the prefill of this step."""

    input_tokens: int
    """Prompt tokens over all requests."""
    chunk_tokens: int | None
    """The same within one chunk; None: chunking is off."""
    page_size: int

    def take(self, start: int, end: int) -> int:
        """How many of the tokens `[start, end)` fit now: all, a chunk that ends on a page, or 0."""
        wanted = end - start
        if self.chunk_tokens is None:
            # An uncut prompt longer than the cap must still be computed: alone, as the first of its
            # step.
            return wanted if wanted <= self.input_tokens or self._untouched else 0
        room = min(self.input_tokens, self.chunk_tokens)
        if wanted <= room:
            return wanted
        return max((start + room) // self.page_size * self.page_size - start, 0)

    def spend(self, tokens: int) -> None:
        """These tokens were added."""
        self.input_tokens -= tokens
        self._untouched = False
        if self.chunk_tokens is not None:
            self.chunk_tokens -= tokens

    _untouched: bool = True
