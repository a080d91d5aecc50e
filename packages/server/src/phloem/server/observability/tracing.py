"""Requests as OpenTelemetry traces: a span for each, with one for each stage of its work.

Spans are made when a request is over, of what its watch noted, and exported by a thread: a
collector that is slow or gone costs spans and no request. Attributes follow OpenTelemetry's
conventions for generative AI (`gen_ai.*`) and HTTP; texts are never among them.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from phloem.server.observability.watch import RequestWatch, SequenceRecord, Stage

if TYPE_CHECKING:
    # An extra.
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/encode": "embeddings",
}
"""What the conventions call what an endpoint does."""
_PARAMETERS = {
    "max_new_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}
_MOST_SEQUENCES = 8
"""Of one request have spans: more of them say no more, and cost."""
_SECONDS_TO_EXPORT = 5.0
_SECONDS_TO_END = 2.0


def check_tracing(endpoint: str) -> None:
    """Refuse to trace to what is no URL, or without the libraries.

    Raises:
        ValueError: that is so, or the URL has a secret.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(
            f"otlp_traces_endpoint {endpoint!r} is no URL: use one such as "
            "http://localhost:4318/v1/traces"
        )
    if "@" in urlsplit(endpoint).netloc:
        # Not shown: it has a secret.
        raise ValueError(
            "otlp_traces_endpoint has a user or a password, which logs and dumps would show: leave "
            "them out, and set OTEL_EXPORTER_OTLP_HEADERS"
        )
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ValueError(
            "otlp_traces_endpoint is given, and the libraries for traces are not installed: "
            "pip install 'phloem-server[otel]', or leave out --otlp-traces-endpoint"
        )


class Tracing:
    """A `Watcher` that makes a trace of each request that posts something.

    A request whose `traceparent` header says that it is not sampled is not traced.

    Args:
        endpoint: URL of a collector that takes OTLP over HTTP, path included.
        model: what the API calls the model.
    """

    def __init__(self, endpoint: str, model: str) -> None:
        self._model = model
        self._provider = _provider(endpoint)
        self._tracer = self._provider.get_tracer("phloem.server")

    def ended(self, watch: RequestWatch) -> None:
        """Make the spans of a request."""
        if watch.scope.get("method") != "POST":
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        operation = _OPERATIONS.get(watch.endpoint)
        span = self._tracer.start_span(
            f"POST {watch.endpoint}" if operation is None else f"{operation} {self._model}",
            _parent(watch),
            SpanKind.SERVER,
            self._attributes(watch, operation),
            start_time=watch.started_ns,
        )
        if watch.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        if span.is_recording():
            context = set_span_in_context(span)
            self._add_stages(watch, watch.stages, context, {})
            for each in watch.sequences[:_MOST_SEQUENCES]:
                self._add_stages(watch, each.stages, context, {"phloem.rid": each.rid})
        span.end(watch.ns(watch.ended))

    def close(self) -> None:
        """Export what is left, for a moment at most."""
        # A collector that is gone would hold the end up for as long as an export may take.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_SECONDS_TO_END)

    def _add_stages(
        self,
        watch: RequestWatch,
        stages: Iterable[Stage],
        context: Context,
        attributes: dict[str, str],
    ) -> None:
        for name, start, end in stages:
            span = self._tracer.start_span(
                name, context, attributes=attributes, start_time=watch.ns(start)
            )
            span.end(watch.ns(end))

    def _attributes(self, watch: RequestWatch, operation: str | None) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "http.request.method": "POST",
            "http.route": watch.endpoint,
            "http.response.status_code": watch.status,
            "phloem.request_id": watch.request_id,
        }
        if watch.status >= 400:
            attributes["error.type"] = str(watch.status)
        if operation is not None:
            attributes["gen_ai.operation.name"] = operation
            attributes["gen_ai.provider.name"] = "phloem"
            attributes["gen_ai.request.model"] = self._model
            if watch.sequences:
                attributes["gen_ai.response.model"] = self._model
                attributes |= _generated(watch.sequences)
        return {name: value for name, value in attributes.items() if value is not None}


def _generated(sequences: list[SequenceRecord]) -> dict[str, Any]:
    first = [each.first - each.started for each in sequences if each.first is not None]
    attributes: dict[str, Any] = {
        "gen_ai.response.id": sequences[0].rid,
        "gen_ai.response.finish_reasons": [each.reason or "abort" for each in sequences],
        "gen_ai.request.choice.count": len(sequences),
        "gen_ai.usage.input_tokens": sum(each.prompt_tokens for each in sequences),
        "gen_ai.usage.cache_read.input_tokens": sum(each.cached_tokens for each in sequences),
        "gen_ai.usage.output_tokens": sum(each.completion_tokens for each in sequences),
        "gen_ai.response.time_to_first_chunk": min(first) if first else None,
        "phloem.retractions": sum(each.retractions for each in sequences),
    }
    params = sequences[0].params
    if params is not None:
        attributes |= {label: getattr(params, name) for name, label in _PARAMETERS.items()}
    return attributes


def _parent(watch: RequestWatch) -> Context:
    """The span that a caller says it is in, by the W3C's `traceparent`; else none."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    names = (b"traceparent", b"tracestate")
    headers = {
        name.decode(): value.decode("latin-1")
        for name, value in watch.scope["headers"]
        if name in names
    }
    return TraceContextTextMapPropagator().extract(headers, Context())


def _provider(endpoint: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        # The library's variables have said nothing.
        resource = resource.merge(Resource({"service.name": "phloem"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint, timeout=_SECONDS_TO_EXPORT)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
