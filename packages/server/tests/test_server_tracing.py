"""Traces, as a collector gets them."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from phloem.scheduler import SamplingParams
from phloem.server.http_config import HttpArgs
from phloem.server.observability.observe import observed
from phloem.server.observability.tracing import Tracing
from phloem.server.observability.watch import RequestWatch, SequenceRecord, Stage

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STARTED_NS = 1_700_000_000_000_000_000


class Collector:
    """Takes OTLP over HTTP."""

    def __init__(self):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        self.spans = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers["content-type"] == "application/x-protobuf"
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in group.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def a_watch(traceparent=None, status=200, method="POST", sequences=1):
    headers = [] if traceparent is None else [(b"traceparent", traceparent.encode())]
    scope = {"type": "http", "method": method, "headers": headers, "state": {"request_id": "q"}}
    watch = RequestWatch(scope, started=100.0, started_ns=STARTED_NS)
    watch.endpoint, watch.status, watch.ended = "/v1/chat/completions", status, 104.0
    watch.stages = [Stage("tokenize", 100.0, 100.5), Stage("compile", 100.5, 101.0)]
    for number in range(sequences):
        params = SamplingParams(max_new_tokens=7, temperature=0.5)
        each = SequenceRecord(f"r{number}", params, 101.0, 102.0, 104.0, "stop", 10, 4, 6)
        each.timings = {"queue": 0.25, "ttft": 1.0, "decode": 1.5, "total": 2.5}
        watch.sequences.append(each)
    return watch


def spans_of(collector, *watches):
    tracing = Tracing(collector.url, "model")
    for each in watches:
        tracing.ended(each)
    tracing.close()
    return {span.name: span for span in collector.spans}


def attributes(span):
    def value(given):
        kind = given.WhichOneof("value")
        if kind == "array_value":
            return [value(each) for each in given.array_value.values]
        return getattr(given, kind)

    return {each.key: value(each.value) for each in span.attributes}


def test_a_request_is_a_span_with_one_for_each_stage(collector):
    spans = spans_of(collector, a_watch())
    whole = spans.pop("chat model")
    assert whole.start_time_unix_nano == STARTED_NS
    assert whole.end_time_unix_nano == STARTED_NS + 4_000_000_000
    assert list(spans) == ["tokenize", "compile", "queue", "prefill", "decode", "detokenize"]
    seconds = {
        name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        for name, span in spans.items()
    }
    assert seconds == {
        "tokenize": 0.5,
        "compile": 0.5,
        "queue": 0.25,
        "prefill": 0.75,
        "decode": 1.5,
        "detokenize": 0.5,
    }
    for span in spans.values():
        assert span.parent_span_id == whole.span_id
        assert span.trace_id == whole.trace_id
    ends = [span.end_time_unix_nano for span in spans.values()]
    begins = [span.start_time_unix_nano for span in spans.values()]
    assert begins == [STARTED_NS, *ends[:-1]]


def test_attributes_follow_the_conventions_and_have_no_text(collector):
    found = attributes(spans_of(collector, a_watch())["chat model"])
    assert found == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "phloem.request_id": "q",
        "phloem.retractions": 0,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "phloem",
        "gen_ai.request.model": "model",
        "gen_ai.response.model": "model",
        "gen_ai.response.id": "r0",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 1.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": found["gen_ai.request.top_k"],
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 6,
    }


def test_a_caller_s_trace_goes_on(collector):
    whole = spans_of(collector, a_watch(f"00-{TRACE}-{PARENT}-01"))["chat model"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)


def test_a_malformed_traceparent_begins_a_trace(collector):
    whole = spans_of(collector, a_watch("00-nothing"))["chat model"]
    assert whole.trace_id.hex() != TRACE
    assert not whole.parent_span_id


def test_what_a_caller_does_not_sample_is_not_traced_and_nor_are_probes(collector):
    assert not spans_of(collector, a_watch(f"00-{TRACE}-{PARENT}-00"), a_watch(method="GET"))


def test_a_failure_of_ours_is_an_error_and_one_of_the_caller_s_is_none(collector):
    tracing = Tracing(collector.url, "model")
    for status in (400, 503):
        tracing.ended(a_watch(status=status, sequences=0))
    tracing.close()
    found = {
        attributes(span)["error.type"]: span.status.code
        for span in collector.spans
        if span.name == "chat model"
    }
    assert found == {"400": 0, "503": 2}


def test_of_many_sequences_the_first_ones_have_spans(collector):
    tracing = Tracing(collector.url, "model")
    tracing.ended(a_watch(sequences=20))
    tracing.close()
    assert sum(span.name == "decode" for span in collector.spans) == 8


def test_a_collector_that_is_gone_harms_nothing(collector):
    tracing = Tracing("http://127.0.0.1:9/v1/traces", "model")
    tracing.ended(a_watch())
    tracing.close()


def test_options_name_who_observes():
    with observed(HttpArgs(log_requests="off"), "m", {}) as nobody:
        assert nobody.watchers == ()
    url = "http://127.0.0.1:9/v1/traces"
    args = HttpArgs(log_requests="text", otlp_traces_endpoint=url)
    with observed(args, "m", {"a": 1.0}) as both:
        assert [type(each).__name__ for each in both.watchers] == ["AccessLog", "Tracing"]
        assert both.keep_texts
        assert both.startup_seconds == {"a": 1.0}


def test_an_endpoint_with_a_password_is_refused_and_not_shown():
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_HEADERS") as refusal:
        HttpArgs(otlp_traces_endpoint="https://me:word@host/v1/traces")
    assert "word@" not in str(refusal.value)


def test_an_endpoint_that_is_no_url_is_refused():
    with pytest.raises(ValueError, match="is no URL"):
        HttpArgs(otlp_traces_endpoint="localhost:4318")
