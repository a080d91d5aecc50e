"""In which order waiting requests are considered for the next prefill.

A policy is one small class with one method; `create_policy` finds it by the name that users give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from phloem.scheduler.config import SchedulerConfig
from phloem.scheduler.request import Request

CachedLength = Callable[[Request], int]
"""How many of a request's tokens the prefix cache holds right now."""


class SchedulePolicy(Protocol):
    """Orders the waiting requests; the scheduler admits from the front until something does not
    fit.
    """

    def order(self, waiting: Sequence[Request], cached: CachedLength) -> Sequence[Request]:
        """The same requests, first to be admitted first. Must be deterministic."""
        ...


class FirstComeFirstServed:
    """fcfs: in order of arrival. Fair, and the cache is used as luck has it."""

    def order(self, waiting: Sequence[Request], cached: CachedLength) -> Sequence[Request]:
        """The queue as it stands."""
        return waiting


class LongestPrefixMatch:
    """lpm: the longest cached prefix first, so that a prefix is used while it is still there.

    Each scheduling pass that a request has waited counts as `aging_tokens` matched tokens more. So
    a request is overtaken, by a newer one that matches m tokens, in at most ceil(m / aging_tokens)
    passes.
    """

    def __init__(self, fallback_above: int, aging_tokens: int) -> None:
        self._fallback_above = fallback_above
        self._aging_tokens = aging_tokens

    def order(self, waiting: Sequence[Request], cached: CachedLength) -> Sequence[Request]:
        """By cached length plus aging, ties as they came; above the limit, all as they came."""
        if len(waiting) > self._fallback_above:
            return waiting
        return sorted(waiting, key=lambda r: -(cached(r) + self._aging_tokens * r.passes_waited))


_POLICIES: dict[str, Callable[[SchedulerConfig], SchedulePolicy]] = {
    "fcfs": lambda config: FirstComeFirstServed(),
    "lpm": lambda config: LongestPrefixMatch(config.lpm_fallback_above, config.aging_tokens),
}


def policy_names() -> tuple[str, ...]:
    """The names that `create_policy` knows."""
    return tuple(_POLICIES)


def create_policy(config: SchedulerConfig) -> SchedulePolicy:
    """The policy that `config.schedule_policy` names.

    Raises:
        ValueError: for an unknown name, listing the known ones.
    """
    try:
        return _POLICIES[config.schedule_policy](config)
    except KeyError:
        raise ValueError(
            f"schedule_policy {config.schedule_policy!r} is unknown: "
            f"use one of {', '.join(_POLICIES)}"
        ) from None
