"""Policies that give each request a number of tokens and take the largest first, with aging."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from phloem.scheduler.policies.base import Outlook
from phloem.scheduler.request import Request


class AgedScore(ABC):
    """The highest score first, ties as they came; each pass of waiting counts as `aging_tokens`.

    Wait: whoever comes ceil(m / aging_tokens) passes after a request never overtakes it. So it runs
    within ceil(m / aging_tokens) + W + A + 1 passes, where A requests come in the first of these,
    and no later than after ceil(m / aging_tokens) + W + F passes where the order of arrival counts
    above F waiting (see `Limited`). A lone request that is overtaken by one newcomer a pass runs
    within ceil(m / aging_tokens) + 1. With `aging_tokens` 0 it is unfair: a request waits for as
    long as better ones come.
    """

    def __init__(self, aging_tokens: int) -> None:
        self._aging_tokens = aging_tokens

    @abstractmethod
    def score(self, request: Request, outlook: Outlook) -> int:
        """In tokens; the differences count."""

    def order(self, waiting: Sequence[Request], outlook: Outlook) -> Sequence[Request]:
        """By score and age."""
        aging, waited, score = self._aging_tokens, outlook.waited, self.score
        return sorted(waiting, key=lambda r: -(score(r, outlook) + aging * waited(r)))


class LongestPrefixMatch(AgedScore):
    """lpm: the longest cached prefix first, so that a prefix is used while it is still there.

    Use it where prompts share prefixes, as chats and few-shot prompts do: of all policies it gets
    the most out of a cache that does not hold everything. m is the longest prefix that is cached.
    """

    def score(self, request: Request, outlook: Outlook) -> int:
        """Tokens that are cached."""
        return outlook.cached(request)


class LongestOutputFirst(AgedScore):
    """lof: the largest `max_new_tokens` first.

    Use it for batches of known work whose end is what matters: the longest outputs, begun last,
    would run alone at the end. Not cache-aware. m is the largest `max_new_tokens`.
    """

    def score(self, request: Request, outlook: Outlook) -> int:
        """Tokens that it may produce."""
        return request.max_new_tokens


class ShortestPrefillFirst(AgedScore):
    """shortest-prefill-first: the fewest tokens to compute first.

    Use it where the time to the first token is to be short on average and prompts differ much in
    length: long ones pay for it. m is the longest prompt.
    """

    def score(self, request: Request, outlook: Outlook) -> int:
        """Minus the tokens that are not cached."""
        return outlook.cached(request) - request.num_tokens
