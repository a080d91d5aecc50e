"""Finds a policy by the name that users give."""

from __future__ import annotations

from collections.abc import Callable

from phloem.scheduler.config import SchedulerConfig
from phloem.scheduler.policies.base import SchedulePolicy
from phloem.scheduler.policies.limited import Limited
from phloem.scheduler.policies.ranked import (
    DepthFirstByWeight,
    HighestResponseRatioNext,
    Patient,
)
from phloem.scheduler.policies.scored import (
    LongestOutputFirst,
    LongestPrefixMatch,
    ShortestPrefillFirst,
)
from phloem.scheduler.policies.simple import (
    FirstComeFirstServed,
    HighestPriorityFirst,
    RandomOrder,
)

Make = Callable[[SchedulerConfig], SchedulePolicy]


def _limited(make: Make) -> Make:
    return lambda config: Limited(make(config), config.lpm_fallback_above)


def _patient(inner: HighestResponseRatioNext | DepthFirstByWeight, c: SchedulerConfig) -> Patient:
    """Patient for as long as lpm lets a request be overtaken at most; without aging, for ever."""
    patience = -(-c.context_len // c.aging_tokens) if c.aging_tokens else 2**62
    return Patient(inner, patience)


_POLICIES: dict[str, Make] = {
    "fcfs": lambda config: FirstComeFirstServed(),
    "lpm": _limited(lambda config: LongestPrefixMatch(config.aging_tokens)),
    "dfs-weight": _limited(lambda config: _patient(DepthFirstByWeight(), config)),
    "lof": lambda config: LongestOutputFirst(config.aging_tokens),
    "random": lambda config: RandomOrder(config.default_seed),
    "priority": lambda config: HighestPriorityFirst(),
    "shortest-prefill-first": _limited(lambda config: ShortestPrefillFirst(config.aging_tokens)),
    "hrrn": _limited(lambda config: _patient(HighestResponseRatioNext(), config)),
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
