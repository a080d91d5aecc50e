"""What the scheduler is told once, at construction."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral

from phloem.scheduler.validation import checked_seconds


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and choices of a scheduler; lengths count tokens.

    Raises:
        ValueError: for a value out of its range, naming it.
    """

    context_len: int
    """Prompt and output of one request together."""
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    """End a request unless it asked for `ignore_eos`."""
    max_running_requests: int = 256
    max_prefill_tokens: int = 16384
    """Prompt tokens computed in one step at most, over all requests."""
    chunked_prefill_size: int | None = 2048
    """A longer prompt is computed in chunks of this size; None: whole prompts only."""
    schedule_policy: str = "fcfs"
    enable_mixed_chunk: bool = False
    """Whether running requests decode in the same step as a prefill chunk."""
    itl_target_ms: float | None = None
    """Time between two tokens that running requests should keep: chunks beside them are made so
    long that steps take no longer; None: as long as `chunked_prefill_size`.
    """
    schedule_conservativeness: float = 1.0
    """How much of their allowed output running requests are expected to need; higher retracts less.
    """
    clip_max_new_tokens: int = 4096
    """Admission never reserves more output than this for one request."""
    lpm_fallback_above: int = 128
    """With more requests waiting than this, lpm and the other cache-aware policies behave as fcfs:
    matching them all would cost too much.
    """
    aging_tokens: int = 64
    """Under lpm, lof and shortest-prefill-first each pass of waiting counts as this many tokens;
    dfs-weight and hrrn let nobody wait for more than `context_len` of them. 0 is unfair.
    """
    in_batch_shared_tokens: int = 32
    """A request that shares at least this many uncached tokens with one that is being computed
    waits until they are cached; 0: nobody waits for that.
    """
    in_batch_check_tokens: int | None = None
    """Who has more tokens cached than this does not wait for more; None: may wait all the same."""
    enable_priority_scheduling: bool = False
    """Whether more urgent requests go first, whatever the policy; policy "priority" says so too."""
    priority_preemption_threshold: int | None = None
    """Running requests give way to waiting ones whose priority is higher by more than this; None:
    they never do.
    """
    schedule_low_priority_values_first: bool = False
    """Whether the lowest number is the most urgent, not the highest."""
    enable_tenant_fairness: bool = False
    """Whether tenants that have requests waiting are served alike, whatever each of them sends."""
    max_queued_requests: int | None = None
    """New requests that may wait; None: any number. Retracted ones wait beside them."""
    max_queued_tokens: int | None = None
    """Tokens that their prompts may have together; None: any number."""
    request_timeout: float | None = None
    """Seconds from arrival after which a request ends, unless it names a limit; None: never."""
    queue_timeout: float | None = None
    """The same for those that have not been let in yet."""
    max_retractions: int = 32
    """A request that would be retracted more often ends instead: it comes to nothing here."""
    enable_jump_forward: bool = True
    """Whether text that a constraint leaves no choice about is appended without forward passes; its
    tokens are the same either way.
    """
    default_seed: int = field(default=0)
    """Where the seeds of requests without one are drawn from."""

    @property
    def uses_priorities(self) -> bool:
        """Whether requests may say how urgent they are."""
        return self.enable_priority_scheduling or self.schedule_policy == "priority"

    def __post_init__(self) -> None:
        self._check_types()
        for token in self.eos_token_ids:
            if not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"eos_token_ids has {token}, but the vocabulary has ids 0 to "
                    f"{self.vocab_size - 1}: leave it out"
                )
        for name in ("request_timeout", "queue_timeout"):
            checked_seconds(getattr(self, name), name)
        self._check_priorities()
        _check_factor("schedule_conservativeness", self.schedule_conservativeness)
        if self.itl_target_ms is not None:
            _check_factor("itl_target_ms", self.itl_target_ms)
            if not self.enable_mixed_chunk or self.chunked_prefill_size is None:
                raise ValueError(
                    f"itl_target_ms is {self.itl_target_ms}, but it makes chunks shorter that "
                    "requests decode beside: set enable_mixed_chunk and chunked_prefill_size too"
                )

    def _check_types(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            optional = name in _MAY_BE_NONE
            if optional and value is None:
                continue
            if not _is_integer(value) or value < least:
                raise ValueError(
                    f"{name} is {value!r}: give an integer, {least} or more"
                    f"{', or None' if optional else ''}"
                )
        if not _is_integer(self.default_seed):
            raise ValueError(f"default_seed is {self.default_seed!r}: give an integer")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}: give True or False")

    def _check_priorities(self) -> None:
        if self.uses_priorities:
            return
        for name in ("priority_preemption_threshold", "schedule_low_priority_values_first"):
            value = getattr(self, name)
            # A threshold of 0 is one.
            if value is not None and value is not False:
                raise ValueError(
                    f"{name} is {value}, but there are no priorities: set "
                    "enable_priority_scheduling too"
                )


def _is_integer(value: object) -> bool:
    """Whether it is an integer, of numpy's too; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_factor(name: str, value: object) -> None:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {value!r}: give more than 0, as a finite number")


_LEAST = {
    "context_len": 1,
    "vocab_size": 1,
    "max_running_requests": 1,
    "max_prefill_tokens": 1,
    "chunked_prefill_size": 1,
    "clip_max_new_tokens": 1,
    "lpm_fallback_above": 0,
    "aging_tokens": 0,
    "in_batch_shared_tokens": 0,
    "in_batch_check_tokens": 0,
    "priority_preemption_threshold": 0,
    "max_queued_requests": 1,
    "max_queued_tokens": 1,
    "max_retractions": 1,
}
_MAY_BE_NONE = {
    "chunked_prefill_size",
    "in_batch_check_tokens",
    "priority_preemption_threshold",
    "max_queued_requests",
    "max_queued_tokens",
}
_SWITCHES = (
    "enable_jump_forward",
    "enable_mixed_chunk",
    "enable_priority_scheduling",
    "schedule_low_priority_values_first",
    "enable_tenant_fairness",
)
