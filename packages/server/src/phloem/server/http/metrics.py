"""What clients see of their requests, counted for Prometheus; one set for each app.

Tokens and latencies are measured here, at the API; what the scheduler knows comes from it when
`/metrics` is read, see `phloem.server.observability.engine_metrics`. An error in here is logged
and harms no request. The app's loop is the only one to use it, so nothing is locked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from phloem.server.frontend import GenerationRequest
from phloem.server.http.connections import ConnectionCounts
from phloem.server.messages import TextNews
from phloem.server.observability.engine_metrics import engine_families
from phloem.server.observability.growth import Growth
from phloem.server.observability.instruments import (
    Counter,
    Histogram,
    gauge_family,
    parts_family,
)
from phloem.server.observability.watch import (
    RequestWatch,
    SequenceRecord,
    Stage,
    current_watch,
    stage,
)

logger = logging.getLogger(__name__)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_STAGE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, *_SECONDS)
_COMPILE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_SOURCES = ("computed", "device", "host", "disk")
_THROUGHPUT_SECONDS = 10.0
_HIT_RATE_SECONDS = 60.0


class Metrics(Collector):
    """All metrics of one app.

    Args:
        model: the value of the label `model_name`, which all have.
        startup_seconds: how long each part of the start took; may be filled in later.
        connections: those of the server; None: nobody counts them.
    """

    def __init__(
        self,
        model: str = "phloem",
        startup_seconds: Mapping[str, float] | None = None,
        connections: ConnectionCounts | None = None,
    ) -> None:
        self._connections = ConnectionCounts() if connections is None else connections
        self._common = {"model_name": model}
        self._startup = {} if startup_seconds is None else startup_seconds
        self._state: Mapping[str, Any] = {}
        self._grammar: Mapping[str, int] = {}
        self._compiling = 0
        self._make_counters()
        self._make_histograms()
        now = perf_counter()
        prompt, cached = self._prompt, self._cached
        self.throughput = Growth(_THROUGHPUT_SECONDS, lambda: (self.generated.value,), now)
        self._hits = Growth(
            _HIT_RATE_SECONDS,
            lambda: (
                sum(each.value for each in cached.values()),
                sum(each.value for each in prompt.values()),
            ),
            now,
        )
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def _make_counters(self) -> None:
        self.responses = Counter("http_requests", "HTTP requests answered", "endpoint", "status")
        self.requests = Counter("num_requests", "sequences that ended", "finish_reason")
        self._aborts = Counter("num_aborted_requests", "sequences that were aborted")
        self.aborted = self._aborts.at()
        self._generation = Counter("generation_tokens", "tokens generated")
        self.generated = self._generation.at()
        self._prompts = Counter("prompt_tokens", "tokens of prompts, by their source", "source")
        self._prompt = {source: self._prompts.at(source) for source in _SOURCES}
        self._from_cache = Counter("cached_tokens", "prompt tokens found cached", "cache_source")
        self._cached = {source: self._from_cache.at(source) for source in _SOURCES[1:]}
        self._constraints = Counter("constraints", "constraints that answers kept to", "kind")

    def _make_histograms(self) -> None:
        first = Histogram("time_to_first_token_seconds", "from request to token", _SECONDS)
        between = Histogram("inter_token_latency_seconds", "between tokens", _STEP_SECONDS)
        whole = Histogram("e2e_request_latency_seconds", "from request to end", _SECONDS)
        queue = Histogram("queue_time_seconds", "from request to admission", _SECONDS)
        compiled = Histogram(
            "grammar_compilation_time_seconds", "wait for a compiled constraint", _COMPILE_SECONDS
        )
        self.stages = Histogram(
            "per_stage_req_latency_seconds", "parts of a request's way", _STAGE_SECONDS, "stage"
        )
        self.ttft, self.itl, self.e2e = first.at(), between.at(), whole.at()
        self.queue, self.compile = queue.at(), compiled.at()
        self._histograms = (first, between, whole, queue, compiled, self.stages)

    def meter(self, request: GenerationRequest | None = None) -> Meter:
        """Starts the clock of a sequence, whose record the watch of the running task gets."""
        now = perf_counter()
        rid, params = (request.rid, request.params) if request is not None else ("", None)
        record = SequenceRecord(rid, params, now)
        watch = current_watch()
        if watch is not None:
            watch.sequences.append(record)
        return Meter(self, record)

    def count_response(self, endpoint: str, status: int) -> None:
        """Count an answered HTTP request."""
        try:
            self.responses.add(1, endpoint, str(status))
        except Exception:
            logger.exception("a metric failed")

    def ended(self, watch: RequestWatch) -> None:
        """Count the stages of a request as a whole; a `Watcher`."""
        self._observe(watch.stages)

    def count_prompt(self, news: TextNews) -> None:
        """Count a prompt by its sources, which sum to it whatever the news say."""
        prompt = max(news.prompt_tokens, 0)
        cached = min(max(news.cached_tokens, 0), prompt)
        host, disk = news.brought or (0, 0)
        disk = min(max(disk, 0), cached)
        host = min(max(host, 0), cached - disk)
        self._prompt["computed"].value += prompt - cached
        for source, count in (("device", cached - host - disk), ("host", host), ("disk", disk)):
            self._prompt[source].value += count
            self._cached[source].value += count
        now = perf_counter()
        if now >= self._hits.due:
            self._hits.mark(now)

    def count_end(self, record: SequenceRecord) -> None:
        """Count a sequence that has ended."""
        self.requests.add(1, record.reason or "error")
        if record.reason == "abort":
            self.aborted.value += 1
        if "queue" in record.timings:
            self.queue.observe(record.timings["queue"])
        self._observe(record.stages)

    @contextmanager
    def compiling(self, kind: str) -> Iterator[None]:
        """Within it an answer waits for its constraint, which counts if it is compiled."""
        began = perf_counter()
        self._compiling += 1
        try:
            with stage("compile"):
                yield
        finally:
            self._compiling -= 1
        try:
            self._constraints.add(1, kind)
            self.compile.observe(perf_counter() - began)
        except Exception:
            logger.exception("a metric failed")

    def exposition(self, state: Mapping[str, Any], grammar: Mapping[str, int]) -> bytes:
        """The text that Prometheus reads; `state` is the scheduler's, `grammar` the compiler's."""
        self._state, self._grammar = state, grammar
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """All metrics, as Prometheus's library wants them."""
        common = self._common
        counters = (
            *(self.responses, self.requests, self._aborts, self._generation, self._prompts),
            *(self._from_cache, self._constraints),
        )
        for each in (*counters, *self._histograms):
            yield each.family(common)
        yield from engine_families(self._state, self._grammar, common)
        now = perf_counter()
        seconds, (tokens,) = self.throughput.growth(now)
        yield gauge_family("gen_throughput", "tokens a second of late", common, tokens / seconds)
        _, (cached, prompt) = self._hits.growth(now)
        rate = cached / prompt if prompt else 0.0
        help = "share of the prompts of the last minute that was cached"
        yield gauge_family("cache_hit_rate", help, common, rate)
        help = "constraints that are being compiled, or wait for it"
        yield gauge_family("num_grammar_queue_reqs", help, common, self._compiling)
        help = "parts of the start, which sum to it"
        yield parts_family("startup_time_seconds", help, common, "part", self._startup)

        help = "connections that are open"
        yield gauge_family("http_connections", help, common, self._connections.open)
        closed = Counter(
            "http_connections_closed",
            "connections refused, or closed before their requests were answered",
            "reason",
        )
        for reason, count in self._connections.closed.items():
            closed.add(count, reason)
        yield closed.family(common)

    def _observe(self, stages: Iterable[Stage]) -> None:
        for each in stages:
            self.stages.at(each.name).observe(each.end - each.start)


class Meter:
    """Measures one sequence, which it counts as ended exactly once."""

    __slots__ = ("_counted", "_last", "_metrics", "_record")

    def __init__(self, metrics: Metrics, record: SequenceRecord) -> None:
        self._metrics = metrics
        self._record = record
        self._last = 0.0
        self._counted = False
        """Its prompt is."""

    def take(self, news: TextNews) -> None:
        """Note news of the sequence."""
        try:
            if news.token_ids:
                self._tokens(news, len(news.token_ids))
            if news.finish is not None:
                self._finish(news, news.finish.type)
        except Exception:
            logger.exception("a metric failed")

    def late(self, news: TextNews) -> None:
        """Note the last news of a sequence that has ended for its client: what was computed of its
        prompt counts, whoever waits for it.
        """
        try:
            if not self._counted and "queue" in (news.timings or {}):
                self._take_prompt(news)
        except Exception:
            logger.exception("a metric failed")

    def end(self, reason: str) -> None:
        """Note that the sequence ended without news of it; nothing, if there were any."""
        record = self._record
        if record.reason is not None:
            return
        record.reason = reason
        record.ended = perf_counter()
        try:
            self._metrics.e2e.observe(record.ended - record.started)
            self._metrics.count_end(record)
        except Exception:
            logger.exception("a metric failed")

    def _tokens(self, news: TextNews, count: int) -> None:
        now = perf_counter()
        metrics = self._metrics
        metrics.generated.value += count
        if self._last:
            metrics.itl.observe((now - self._last) / count, count)
        else:
            self._begin(news, now)
        self._last = now
        self._record.completion_tokens += count
        if now >= metrics.throughput.due:
            metrics.throughput.mark(now)

    def _begin(self, news: TextNews, now: float) -> None:
        record = self._record
        record.first = now
        self._metrics.ttft.observe(now - record.started)
        self._take_prompt(news)

    def _take_prompt(self, news: TextNews) -> None:
        """Once it was let in: what was refused or waited in vain is nobody's hit, nor computed."""
        record = self._record
        self._counted = True
        record.prompt_tokens, record.cached_tokens = news.prompt_tokens, news.cached_tokens
        self._metrics.count_prompt(news)

    def _finish(self, news: TextNews, reason: str) -> None:
        record = self._record
        record.timings = news.timings or {}
        record.retractions = news.retractions
        if not self._counted and "queue" in record.timings:
            self._take_prompt(news)
        self.end(reason)
