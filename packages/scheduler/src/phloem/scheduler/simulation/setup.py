"""What is simulated: one configuration of engines behind a router.

Owns the configuration and its names in reports; the trace is not part of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from phloem.scheduler.config import SchedulerConfig
from phloem.scheduler.simulation.cost import CostModel
from phloem.scheduler.simulation.routers import router_names


@dataclass(frozen=True, slots=True)
class Setup:
    """A configuration; all replicas are alike.

    Raises:
        ValueError: for a value that it cannot have, naming it.
    """

    cost_model: CostModel
    policy: str = "fcfs"
    pool_tokens: int = 65_536
    """Tokens that the KV cache of each replica holds."""
    chunk: int | None = 2048
    """Tokens of a prompt computed in one step; None: whole prompts."""
    mixed: bool = False
    """Whether running requests decode in the steps that compute prompts."""
    page_size: int = 1
    max_running: int = 256
    replicas: int = 1
    router: str = "round-robin"
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of `SchedulerConfig`. Priorities of a trace count where these or the policy make
    use of them.
    """

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}: give 1 or more")
        if self.router not in router_names():
            raise ValueError(
                f"router {self.router!r} is unknown: use one of {', '.join(router_names())}"
            )
        unknown = sorted(set(self.more) - _MORE)
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is no setting of the scheduler, or has an option of its own: "
                f"known are {', '.join(sorted(_MORE))}"
            )

    def scheduler_config(
        self, context_len: int, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> SchedulerConfig:
        """The configuration of each replica's scheduler.

        Raises:
            ValueError: for a value out of its range.
        """
        return SchedulerConfig(
            context_len=context_len,
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
            max_running_requests=self.max_running,
            chunked_prefill_size=self.chunk,
            schedule_policy=self.policy,
            enable_mixed_chunk=self.mixed,
            **self.more,
        )

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**dataclasses.asdict(self), "more": dict(self.more)}


_OWN = {
    *("context_len", "vocab_size", "eos_token_ids"),
    *("max_running_requests", "chunked_prefill_size", "enable_mixed_chunk", "schedule_policy"),
}
_MORE = {each.name for each in dataclasses.fields(SchedulerConfig)} - _OWN

AXES = {
    "policy": "policy",
    "pool": "pool_tokens",
    "chunk": "chunk",
    "mixed": "mixed",
    "page": "page_size",
    "running": "max_running",
    "replicas": "replicas",
    "router": "router",
}
"""What configurations may be compared by: the name in reports, and the field."""


def all_setups(
    axes: Mapping[str, Sequence[Any]], cost_model: CostModel, more: Mapping[str, Any]
) -> list[Setup]:
    """Every combination of the values of some axes."""
    fields = [AXES[axis] for axis in axes]
    return [
        Setup(cost_model, **dict(zip(fields, values)), more=more)
        for values in product(*axes.values())
    ]


def varied(setups: Sequence[Setup]) -> dict[str, list[Any]]:
    """The axes on which configurations differ, with the values there, in order of appearance."""
    values = {
        axis: list(dict.fromkeys(getattr(setup, name) for setup in setups))
        for axis, name in AXES.items()
    }
    return {axis: found for axis, found in values.items() if len(found) > 1}


def label(setup: Setup, axes: Sequence[str]) -> str:
    """The configuration's values on some axes, in few words."""
    return ", ".join(_words(setup, axes))


def _words(setup: Setup, axes: Sequence[str]) -> Iterator[str]:
    for axis in axes:
        value = getattr(setup, AXES[axis])
        yield str(value) if axis in ("policy", "router") else f"{axis} {shown(value)}"


def shown(value: Any) -> str:
    """A value of an axis in few letters: 65536 is "64Ki"."""
    if value is None:
        return "whole"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        for letter, unit in (("Mi", 2**20), ("Ki", 2**10)):
            if value >= unit and value % unit == 0:
                return f"{value // unit}{letter}"
    return str(value)
