"""What the scheduler is told once, at construction."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    default_seed: int = field(default=0)
    """Where the seeds of requests without one are drawn from."""

    @property
    def uses_priorities(self) -> bool:
        """Whether requests may say how urgent they are."""
        return self.enable_priority_scheduling or self.schedule_policy == "priority"

    def __post_init__(self) -> None:
        for token in self.eos_token_ids:
            if not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"eos_token_ids has {token}, but the vocabulary has ids 0 to "
                    f"{self.vocab_size - 1}: leave it out"
                )
        for name in ("request_timeout", "queue_timeout"):
            checked_seconds(getattr(self, name), name)
        for name in ("max_queued_requests", "max_queued_tokens", "max_retractions"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"{name} is {limit}: give 1 or more, or leave it out")
        for name in ("context_len", "vocab_size", "max_running_requests", "max_prefill_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.chunked_prefill_size is not None and self.chunked_prefill_size < 1:
            raise ValueError(
                f"chunked_prefill_size is {self.chunked_prefill_size}: give 1 or more, "
                "or None to compute prompts whole"
            )
        if self.schedule_conservativeness <= 0:
            raise ValueError(
                f"schedule_conservativeness is {self.schedule_conservativeness}: give more than 0"
            )
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}: give 0 or more")
        if self.itl_target_ms is not None:
            if self.itl_target_ms <= 0:
                raise ValueError(f"itl_target_ms is {self.itl_target_ms}: give more than 0")
            if not self.enable_mixed_chunk or self.chunked_prefill_size is None:
                raise ValueError(
                    f"itl_target_ms is {self.itl_target_ms}, but it makes chunks shorter that "
                    "requests decode beside: set enable_mixed_chunk and chunked_prefill_size too"
                )
        if self.priority_preemption_threshold is not None and not self.uses_priorities:
            raise ValueError(
                f"priority_preemption_threshold is {self.priority_preemption_threshold}, but there "
                "are no priorities: set enable_priority_scheduling too"
            )


_NOT_NEGATIVE = (
    "aging_tokens",
    "lpm_fallback_above",
    "in_batch_shared_tokens",
    "in_batch_check_tokens",
    "priority_preemption_threshold",
)
