"""The scheduler's state and what the compiler counts, as Prometheus sees them.

Owns the names of what the scheduler process knows. What clients see of their requests is counted in
`phloem.server.http.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric

from phloem.server.observability.distribution import Distribution
from phloem.server.observability.instruments import (
    Labels,
    counter_family,
    gauge_family,
    histogram_family,
)

_GAUGES = {
    "running": ("num_running_reqs", "requests that hold KV memory"),
    "waiting": ("num_queue_reqs", "requests that wait for admission, or were retracted"),
    "used": ("num_used_tokens", "KV tokens that running requests hold, shared ones once"),
    "free": ("kv_available_tokens", "KV tokens that nobody holds"),
    "cached": ("kv_evictable_tokens", "KV tokens of cached prefixes that nobody uses"),
    "total": ("max_total_num_tokens", "KV tokens that fit"),
    "max_running_requests": ("max_running_reqs", "requests that may run at once"),
    "new_token_ratio": ("new_token_ratio", "share of their allowed output that is reserved"),
}
"""Keys of the scheduler's state (`phloem.server.control`), and the gauges that show them."""

_COUNTS = {
    "retractions": ("num_retracted_requests", "times that a request's memory was taken"),
    "evicted_tokens": ("evicted_tokens", "cached tokens let go of to make room"),
    "loaded_tokens": ("load_back_tokens", "tokens brought back to the device from below"),
    "restored_tokens": ("prefetched_tokens", "tokens read from the disk into host memory"),
    "backed_up_tokens": ("backuped_tokens", "tokens copied to host memory"),
    "given_up_tokens": ("given_up_backup_tokens", "tokens whose copy to the host was given up"),
    "host_failures": ("host_cache_failures", "failures of the host tier"),
    "disk_hits": ("disk_cache_hits", "blocks found on disk"),
    "disk_misses": ("disk_cache_misses", "blocks not found on disk"),
    "disk_corrupt": ("disk_cache_corrupt", "files on disk that were not what their name says"),
    "disk_written": ("disk_cache_written", "blocks written to disk"),
    "disk_dropped": ("disk_cache_dropped", "blocks not written, as too many waited"),
    "disk_refused": ("disk_cache_refused", "writes that the disk refused"),
    "disk_evicted": ("disk_cache_evicted", "blocks removed from disk to make room"),
    "disk_failures": ("disk_cache_failures", "failures of the disk store"),
}
"""Keys of the state's `counts`, and the counters that show them."""

_HOST_GAUGES = {
    "host_used_tokens": ("hicache_host_used_tokens", "tokens in host memory"),
    "host_capacity_tokens": ("hicache_host_total_tokens", "tokens that fit into host memory"),
}
"""Keys of the state's `counts` that may also fall."""

_GRAMMAR_COUNTS = {
    "compiled": ("grammar_compiled", "constraints compiled"),
    "failed": ("grammar_failed", "constraints that could not be compiled"),
    "from_memory": ("grammar_from_memory", "constraints found compiled in memory"),
    "from_disk": ("grammar_from_disk", "constraints found compiled on disk"),
}
"""Keys of the compiler's counts, and the counters that show them."""


def engine_families(
    state: Mapping[str, Any], grammar: Mapping[str, int], common: Labels
) -> Iterator[Metric]:
    """What is in the scheduler's state and the compiler's counts; what is not, is not shown."""
    yield from _gauges(state, _GAUGES, common)
    if total := state.get("total"):
        used = state["used"]
        yield gauge_family("kv_used_tokens", "the same as num_used_tokens", common, used)
        yield gauge_family("token_usage", "num_used_tokens of max_total", common, used / total)
    if most := state.get("max_running_requests"):
        share = state["running"] / most
        yield gauge_family("utilization", "running of max_running requests", common, share)
    if "paused" in state:
        paused = state["running"] + state["waiting"] if state["paused"] else 0
        yield gauge_family("num_paused_reqs", "requests that are held still", common, paused)
    counts = state.get("counts", {})
    yield from _gauges(counts, _HOST_GAUGES, common)
    yield from _counters(counts, _COUNTS, common)
    yield from _counters(grammar, _GRAMMAR_COUNTS, common)
    if "steps" in state:
        steps: dict[tuple[str, ...], Distribution] = {(): Distribution.of(state["steps"])}
        help = "one turn of the scheduler: a model step, and the results of one"
        yield histogram_family("step_time_seconds", help, common, (), steps)


def _gauges(
    values: Mapping[str, Any], names: Mapping[str, tuple[str, str]], common: Labels
) -> Iterator[Metric]:
    for key, (name, help) in names.items():
        if key in values:
            yield gauge_family(name, help, common, values[key])


def _counters(
    values: Mapping[str, Any], names: Mapping[str, tuple[str, str]], common: Labels
) -> Iterator[Metric]:
    for key, (name, help) in names.items():
        if key in values:
            yield counter_family(name, help, common, values[key])
