"""Policies that ask for nothing but the requests themselves."""

from __future__ import annotations

import random
from collections.abc import Sequence

from phloem.scheduler.policies.base import Outlook
from phloem.scheduler.request import Request


class FirstComeFirstServed:
    """fcfs: in order of arrival.

    Fair, and free of cost; the cache is used as luck has it. Use it where prompts share little, or
    where an order that nobody has to explain matters more than hits. Wait: at most W passes.
    """

    def order(self, waiting: Sequence[Request], outlook: Outlook) -> Sequence[Request]:
        """The queue as it stands."""
        return waiting


class HighestPriorityFirst:
    """priority: the most urgent first, equal ones in order of arrival.

    Use it where callers say what matters. Unfair on purpose: a request waits for as long as more
    urgent ones come. Running requests give way too where preemption is on.
    """

    def order(self, waiting: Sequence[Request], outlook: Outlook) -> Sequence[Request]:
        """By priority, ties as they came."""
        return sorted(waiting, key=lambda request: -request.priority)


class RandomOrder:
    """random: in an order drawn anew for each look at the queue, from a seed.

    Use it to see what an order is worth, and against a load that has found out how to be first.
    Equal seeds and arrivals give equal orders. Wait: of n waiting requests each goes first with
    chance 1/n, so after k passes with chance (1 - 1/n)^k it still waits.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def order(self, waiting: Sequence[Request], outlook: Outlook) -> Sequence[Request]:
        """Shuffled."""
        return self._random.sample(waiting, len(waiting))
