"""The contract of a policy: in which order waiting requests are considered for the next prefill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phloem.scheduler.request import Request


class Outlook(Protocol):
    """What a policy may know of a waiting request beside the request itself."""

    def cached(self, request: Request) -> int:
        """Tokens of it that the prefix cache holds right now."""
        ...

    def waited(self, request: Request) -> int:
        """Passes that it has waited. A pass is one look at the queue that let somebody in: where
        nobody is let in, nobody is overtaken.
        """
        ...


class SchedulePolicy(Protocol):
    """Orders the waiting requests; the scheduler admits from the front until something does not
    fit.

    The wait of a request is counted in passes. `m` in the bounds that policies state is the largest
    score that any request has, `W` is how many waited when the request came. Requests that had been
    let in before and had to give way go first under every policy, and count for `W` again.
    """

    def order(self, waiting: Sequence[Request], outlook: Outlook) -> Sequence[Request]:
        """The same requests, first to be admitted first. Must be deterministic.

        Args:
            waiting: in order of arrival.
            outlook: what is known of them.
        """
        ...
