"""What the server counts, as Prometheus sees it; one registry for each app.

Tokens and latencies are measured here, at the API, since this is what clients see of them; what is
running and how full the cache is comes from the scheduler when `/metrics` is read. An error in
here is logged and harms no request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from phloem.server.messages import TextNews

logger = logging.getLogger(__name__)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_COMPILE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)

_GAUGES = {
    "running": "running_requests",
    "waiting": "waiting_requests",
    "used": "kv_used_tokens",
    "cached": "kv_evictable_tokens",
    "free": "kv_free_tokens",
    "total": "kv_capacity_tokens",
}
"""Keys of the scheduler's state, and the gauges that show them."""

_GRAMMAR_COUNTS = {
    "compiled": "constraints compiled since the start",
    "failed": "constraints that could not be compiled",
    "from_memory": "constraints that were found compiled in memory",
    "from_disk": "constraints that were found compiled on disk",
}
"""Keys of the compiler's counts, and what they are."""


class Metrics:
    """All metrics of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"phloem_{name}", help, labels, registry=self.registry)

        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"phloem_{name}", help, registry=self.registry, buckets=buckets)

        self.responses = counter("http_requests", "HTTP requests answered", "endpoint", "status")
        self.finished = counter("finished_requests", "sequences that ended", "reason")
        self.prompt_tokens = counter("prompt_tokens", "tokens of prompts")
        self.cached_tokens = counter("cached_tokens", "prompt tokens found in the cache")
        self.generation_tokens = counter("generation_tokens", "tokens generated")
        self.ttft = histogram("time_to_first_token_seconds", "from request to token", _SECONDS)
        self.itl = histogram("inter_token_latency_seconds", "between tokens", _STEP_SECONDS)
        self.total = histogram("request_seconds", "from request to end", _SECONDS)
        self.queue = histogram("queue_seconds", "from request to admission", _SECONDS)
        self.constrained = counter("constraints", "constraints that answers kept to", "kind")
        self.compile = histogram(
            "grammar_compile_seconds", "wait for a compiled constraint", _COMPILE_SECONDS
        )
        self._gauges = {
            key: Gauge(f"phloem_{name}", "as the scheduler says", registry=self.registry)
            for key, name in _GAUGES.items()
        }
        self._grammar = _GrammarCounts()
        self.registry.register(self._grammar)

    def meter(self) -> Meter:
        """Starts the clock of a sequence."""
        return Meter(self)

    def count_response(self, endpoint: str, status: int) -> None:
        """Count an answered HTTP request."""
        try:
            self.responses.labels(endpoint, str(status)).inc()
        except Exception:
            logger.exception("a metric failed")

    @contextmanager
    def compiling(self, kind: str) -> Iterator[None]:
        """Within it an answer waits for its constraint, which counts if it is compiled."""
        began = perf_counter()
        yield
        try:
            self.constrained.labels(kind).inc()
            self.compile.observe(perf_counter() - began)
        except Exception:
            logger.exception("a metric failed")

    def exposition(self, state: Mapping[str, Any], grammar: Mapping[str, int]) -> bytes:
        """The text that Prometheus reads; `state` is the scheduler's, `grammar` the compiler's."""
        for key, gauge in self._gauges.items():
            if key in state:
                gauge.set(state[key])
        self._grammar.values = grammar
        return generate_latest(self.registry)


class _GrammarCounts(Collector):
    """Shows what the compiler has counted itself, as counters."""

    def __init__(self) -> None:
        self.values: Mapping[str, int] = {}

    def collect(self) -> Iterable[CounterMetricFamily]:
        for key, help in _GRAMMAR_COUNTS.items():
            if key in self.values:
                yield CounterMetricFamily(f"phloem_grammar_{key}", help, self.values[key])


class Meter:
    """Measures one sequence, which it counts as finished exactly once."""

    __slots__ = ("_began", "_ended", "_last", "_metrics")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._began = perf_counter()
        self._last = 0.0
        self._ended = False

    def take(self, news: TextNews) -> None:
        """Note news of the sequence."""
        try:
            if news.token_ids:
                self._tokens(len(news.token_ids))
            if news.finish is not None:
                self._finish(news, news.finish.type)
        except Exception:
            logger.exception("a metric failed")

    def end(self, reason: str) -> None:
        """Note that the sequence ended without news of it; nothing, if there were any."""
        if self._ended:
            return
        self._ended = True
        try:
            self._metrics.finished.labels(reason).inc()
        except Exception:
            logger.exception("a metric failed")

    def _tokens(self, count: int) -> None:
        now = perf_counter()
        metrics = self._metrics
        metrics.generation_tokens.inc(count)
        if self._last:
            metrics.itl.observe((now - self._last) / count)
        else:
            metrics.ttft.observe(now - self._began)
        self._last = now

    def _finish(self, news: TextNews, reason: str) -> None:
        self.end(reason)
        metrics = self._metrics
        metrics.prompt_tokens.inc(max(news.prompt_tokens, 0))
        metrics.cached_tokens.inc(max(news.cached_tokens, 0))
        metrics.total.observe(perf_counter() - self._began)
        if news.timings and "queue" in news.timings:
            metrics.queue.observe(news.timings["queue"])
