"""The engine's options, in one place: for `Engine(...)`, for the command line and for the docs.

Each component has a config of its own; this one is what a user sets, and `phloem.server.wiring`
makes theirs from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from phloem.server.options import (
    check_choices,
    check_lets_in,
    check_types,
    check_without_effect,
    is_positive,
    option,
)

ENGINE, MEMORY, SCHEDULING, GRAMMAR = "Engine", "Memory", "Scheduling", "Grammar"


CHUNKING_OFF = -1
_GRAMMAR_BACKENDS = ("auto", "fsm", "xgrammar", "llguidance", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArgs:
    """What a user says about the engine; lengths count tokens.

    Raises:
        ValueError: for a value that no engine could be made with, naming it.
    """

    model: str = option(
        "smollm2",
        "a known name, a folder with config.json and safetensors, a .gguf file, a hub id "
        "(org/name), or scripted:FILE",
        group=ENGINE,
    )
    dtype: str = option(
        "auto",
        "number format of weights and activations; auto: float32 on a CPU, else the checkpoint's",
        group=ENGINE,
        choices=("auto", "float32", "bfloat16"),
    )
    quantization: str = option(
        "auto",
        "how weights are kept; none: in floats; int8, int4: rounded when they are loaded; gguf: in "
        "the blocks of their file; auto: with the kernels cpu, for a .gguf file of rounded weights "
        "int8 where the processor has AVX-512 VNNI, else gguf, and int4, as they are, for AWQ and "
        "GPTQ checkpoints; else none",
        group=ENGINE,
        choices=("auto", "none", "int8", "int4", "gguf"),
    )
    device: str = option("auto", "auto, cpu, cuda or cuda:N", group=ENGINE)
    kernel_backend: str = option(
        "auto",
        "which kernels compute; auto: triton on a GPU, else cpu where it can run, and torch",
        group=ENGINE,
        choices=("auto", "cpu", "torch", "triton", "flashinfer"),
    )
    context_length: int | None = option(
        None, "longest prompt and output; none: the model's own", group=ENGINE
    )
    kv_cache_dtype: str = option(
        "auto",
        "number format of the KV cache; auto: int8 beside quantized weights, else that of the "
        "activations; int8 and fp8_e4m3 keep a scale for each token and head",
        group=MEMORY,
        choices=("auto", "float32", "bfloat16", "float16", "int8", "fp8_e4m3"),
    )
    page_size: int = option(1, "tokens per page of the KV cache, a power of two", group=MEMORY)
    max_running_requests: int = option(
        256, "requests that may hold memory at once", group=SCHEDULING
    )
    max_total_tokens: int | None = option(
        None, "tokens that the KV cache holds; none: sized by the memory that is free", group=MEMORY
    )
    mem_fraction_static: float | None = option(
        None,
        "share of the free memory for the KV cache; none: at most 1 GiB on a CPU",
        group=MEMORY,
    )
    chunked_prefill_size: int | None = option(
        None,
        "tokens of a prompt computed in one step; none: by device; -1: whole prompts",
        group=SCHEDULING,
    )
    max_prefill_tokens: int = option(
        16384, "prompt tokens computed in one step, all requests", group=SCHEDULING
    )
    schedule_policy: str = option(
        "lpm",
        "order of admission: lpm (longest cached prefix first), fcfs (first come first), ...",
        group=SCHEDULING,
        choices=(
            "lpm",
            "fcfs",
            "dfs-weight",
            "lof",
            "random",
            "priority",
            "shortest-prefill-first",
            "hrrn",
        ),
    )
    lpm_fallback_above: int = option(
        128,
        "with more requests waiting than this, cache-aware policies behave as fcfs",
        group=SCHEDULING,
    )
    aging_tokens: int = option(
        64,
        "tokens that each pass of waiting counts for, so that nobody waits for ever; 0: unfair",
        group=SCHEDULING,
    )
    in_batch_shared_tokens: int = option(
        32,
        "uncached tokens that a request must share with one being computed to wait for it; 0: off",
        group=SCHEDULING,
    )
    enable_priority_scheduling: bool = option(
        False,
        "requests may have a priority, whatever the policy; the higher, the sooner",
        group=SCHEDULING,
    )
    priority_preemption_threshold: int | None = option(
        None,
        "running requests give way to those whose priority is higher by more than this; none: "
        "never",
        group=SCHEDULING,
    )
    schedule_low_priority_values_first: bool = option(
        False, "the lower a priority, the sooner", group=SCHEDULING
    )
    enable_tenant_fairness: bool = option(
        False,
        "tenants (API keys; without one, the field tenant) that wait are served alike",
        group=SCHEDULING,
    )
    schedule_conservativeness: float = option(
        1.0, "how much of their allowed output requests are expected to need", group=SCHEDULING
    )
    enable_mixed_chunk: bool = option(
        False, "decode in the same step as a prefill chunk", group=SCHEDULING
    )
    itl_target_ms: float | None = option(
        None,
        "time between two tokens that running requests keep beside prefill chunks, which are cut "
        "shorter for it; needs enable_mixed_chunk",
        group=SCHEDULING,
    )
    enable_overlap: bool | None = option(
        None, "schedule the next step while one runs; none: on a GPU only", group=SCHEDULING
    )
    max_queued_requests: int | None = option(
        None,
        "requests that may wait, others get a 503; none: any number",
        group=SCHEDULING,
    )
    max_queued_tokens: int | None = option(
        None, "the same for the tokens of their prompts together", group=SCHEDULING
    )
    request_timeout: float | None = option(
        None,
        "seconds after which a request ends that names no timeout",
        group=SCHEDULING,
    )
    queue_timeout: float | None = option(
        None, "seconds that a request may wait before it begins, likewise", group=SCHEDULING
    )
    disable_radix_cache: bool = option(False, "share no prefixes between requests", group=MEMORY)
    host_cache_gb: float | None = option(
        None,
        "GiB of host memory that keep what the KV cache lets go of; none: nothing, or with a "
        "disk_cache as much as the KV cache takes, at most 4",
        group=MEMORY,
    )
    disk_cache: str | None = option(
        None,
        "folder where cached prefixes outlive the process; processes may share one",
        group=MEMORY,
    )
    disk_cache_gb: float | None = option(
        None, "GiB that the files of the disk_cache may take; none: 10", group=MEMORY
    )
    cache_idle_ttl: float | None = option(
        None,
        "seconds after which a prefix that nobody used is forgotten, on disk too; none: never",
        group=MEMORY,
    )
    grammar_backend: str = option(
        "auto",
        "what enforces constraints on outputs: auto, fsm, xgrammar, llguidance, none, or a backend "
        "of yours as module:function; auto: fsm where it can, else another that is installed; "
        "none: requests with a constraint are refused",
        group=GRAMMAR,
    )
    grammar_compile_timeout: float = option(
        10.0,
        "seconds of processor time that compiling one constraint may take; what takes longer is "
        "refused",
        group=GRAMMAR,
    )
    jump_forward: bool = option(
        True,
        "take text that a constraint forces without asking the model; the output is the same",
        group=GRAMMAR,
    )
    grammar_steering: bool = option(
        True,
        "near its token limit, bring a constrained output to its end; a request may say otherwise",
        group=GRAMMAR,
    )
    grammar_whitespace: str = option(
        "bounded",
        "whitespace in JSON outputs; bounded: compact and pretty-printed are both allowed; "
        "compact: none; a request may say otherwise",
        group=GRAMMAR,
        choices=("bounded", "compact"),
    )
    random_seed: int | None = option(
        None, "base of the seeds of requests without one; none: random", group=ENGINE
    )
    cache_dir: str | None = option(None, "folder for fetched and converted models", group=ENGINE)
    offline: bool = option(False, "never ask the network", group=ENGINE)

    def __post_init__(self) -> None:
        check_types(self)
        if not self.model:
            raise ValueError("model is empty: give a name, a folder or a file")
        if self.random_seed is not None and not -(2**63) <= self.random_seed < 2**63:
            raise ValueError(f"random_seed {self.random_seed} is no signed 64-bit integer")
        if self.page_size < 1 or self.page_size & (self.page_size - 1):
            raise ValueError(f"page_size {self.page_size} is no power of two: use 1, 2, 4, 8, ...")
        check_lets_in(self, _LETS_IN)
        check_choices(self)
        self._check_computing()
        self._check_tiers()
        self._check_order()
        self._check_grammar()

    @property
    def uses_priorities(self) -> bool:
        """Whether requests may say how urgent they are."""
        return self.enable_priority_scheduling or self.schedule_policy == "priority"

    def _check_computing(self) -> None:
        device, kernels = self.device.partition(":")[0], self.kernel_backend
        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device {self.device!r} is unknown: use auto, cpu, cuda or cuda:N")
        if kernels == "cpu" and device == "cuda":
            raise ValueError(
                f"kernel_backend cpu does not compute on device {self.device}: use device cpu, or "
                "kernel_backend triton"
            )
        if kernels == "cpu" and self.dtype == "bfloat16":
            raise ValueError(
                "kernel_backend cpu computes in float32, and dtype is bfloat16: use kernel_backend "
                "torch, or dtype float32"
            )
        share = self.mem_fraction_static
        if share is not None and not 0 < share <= 1:
            raise ValueError(
                f"mem_fraction_static {share:g} is no share: give more than 0 and at most 1"
            )
        least = _LEAST_PAGES * self.page_size
        if self.max_total_tokens is not None and self.max_total_tokens < least:
            raise ValueError(
                f"max_total_tokens {self.max_total_tokens} serves nobody: with page_size "
                f"{self.page_size} a request needs {least} at least, so give that or more"
            )

    def _check_order(self) -> None:
        chunk = self.chunked_prefill_size
        if chunk is not None and chunk != CHUNKING_OFF and (chunk < 1 or chunk % self.page_size):
            raise ValueError(
                f"chunked_prefill_size {chunk} is no multiple of page_size {self.page_size}: "
                f"use one that is, or {CHUNKING_OFF} to compute prompts whole"
            )
        for name in ("request_timeout", "queue_timeout"):
            seconds = getattr(self, name)
            if not is_positive(seconds):
                raise ValueError(
                    f"{name} {seconds:g} is no time: give more than 0 seconds, or leave it out"
                )
        whole, waiting = self.request_timeout, self.queue_timeout
        if whole is not None and waiting is not None and waiting >= whole:
            raise ValueError(
                f"queue_timeout {waiting:g} is never reached, since request_timeout {whole:g} ends "
                "requests before: give less, or leave it out"
            )
        for name in ("lpm_fallback_above", "aging_tokens", "in_batch_shared_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative: give 0 or more")
        if self.schedule_policy in _WITHOUT_FALLBACK:
            check_without_effect(
                self,
                ("lpm_fallback_above",),
                f"since schedule_policy {self.schedule_policy} has nothing to fall back from",
                "choose a cache-aware schedule_policy",
            )
        if not 0 < self.schedule_conservativeness < math.inf:
            raise ValueError(
                f"schedule_conservativeness {self.schedule_conservativeness:g} must be more than 0 "
                "and finite: 1 is the default"
            )
        target = self.itl_target_ms
        chunked = self.enable_mixed_chunk and self.chunked_prefill_size != CHUNKING_OFF
        if target is not None and (not 0 < target < math.inf or not chunked):
            raise ValueError(
                f"itl_target_ms {target:g} must be more than 0 and finite, and needs "
                "enable_mixed_chunk with prompts computed in chunks"
            )
        self._check_priorities()

    def _check_priorities(self) -> None:
        threshold = self.priority_preemption_threshold
        if threshold is not None and (threshold < 0 or not self.uses_priorities):
            raise ValueError(
                f"priority_preemption_threshold {threshold} must be 0 or more, and needs "
                "enable_priority_scheduling"
            )
        if self.schedule_low_priority_values_first and not self.uses_priorities:
            raise ValueError(
                "schedule_low_priority_values_first was given without priorities: set "
                "enable_priority_scheduling too"
            )

    def _check_grammar(self) -> None:
        if self.grammar_backend not in _GRAMMAR_BACKENDS and ":" not in self.grammar_backend:
            raise ValueError(
                f"grammar_backend {self.grammar_backend!r} is unknown: use one of "
                f"{', '.join(_GRAMMAR_BACKENDS)}, or module:function"
            )
        if not is_positive(self.grammar_compile_timeout):
            raise ValueError(
                f"grammar_compile_timeout {self.grammar_compile_timeout:g} is no time: give more "
                "than 0 seconds"
            )
        if self.grammar_backend == "none":
            check_without_effect(
                self,
                _OF_CONSTRAINTS,
                "since grammar_backend none refuses constraints",
                "choose another grammar_backend",
            )

    def _check_tiers(self) -> None:
        for name in ("host_cache_gb", "disk_cache_gb", "cache_idle_ttl"):
            value = getattr(self, name)
            if not is_positive(value):
                raise ValueError(f"{name} {value} is not positive: give more than 0, or leave it")
        if self.disk_cache_gb is not None and self.disk_cache is None:
            raise ValueError(
                f"disk_cache_gb {self.disk_cache_gb:g} was given without a disk_cache: give its "
                "folder too"
            )
        if self.disk_cache == "":
            raise ValueError("disk_cache is empty: give a folder")
        if self.disable_radix_cache and (self.host_cache_gb or self.disk_cache):
            raise ValueError(
                "host_cache_gb and disk_cache keep what the radix cache holds, which "
                "disable_radix_cache turns off: leave one of them"
            )
        if self.disable_radix_cache and self.cache_idle_ttl is not None:
            raise ValueError(
                f"cache_idle_ttl {self.cache_idle_ttl:g} is for prefixes that the radix cache "
                "holds, which disable_radix_cache turns off: leave one of them"
            )


_OF_CONSTRAINTS = (
    "grammar_compile_timeout",
    "grammar_steering",
    "grammar_whitespace",
    "jump_forward",
)
_WITHOUT_FALLBACK = ("fcfs", "lof", "random", "priority")
"""Policies that do not look at the cache."""
_LEAST_PAGES = 3
"""Of the KV cache: for a prompt, for its output, and what admission asks for besides."""
_LETS_IN = (
    "max_running_requests",
    "max_prefill_tokens",
    "max_total_tokens",
    "max_queued_requests",
    "max_queued_tokens",
)
