"""The endpoints for operating a server: health, models, information, cache and metrics."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families


@pytest.fixture(scope="module")
def server(serve, write_script):
    script = write_script([{"prompt": "say", "output": "hello world"}])
    return serve(script, {"options": {"model": "scripted", "page_size": 1}})


def samples(server):
    text = server.http.get("/metrics").text
    return {
        (sample.name, *(v for k, v in sample.labels.items() if k != "model_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_health_and_readiness_ask_the_engine(server):
    for path, status in (
        ("/health", "ok"),
        ("/ping", "ok"),
        ("/ready", "ok"),
        ("/startup", "started"),
    ):
        response = server.http.get(path)
        assert (response.status_code, response.json()) == (200, {"status": status})
        response = server.http.head(path)
        assert (response.status_code, response.content) == (200, b"")


def test_a_health_check_may_generate_which_counts_as_no_request(server):
    before = samples(server)
    assert server.http.get("/health_generate").json() == {"status": "ok"}
    after = samples(server)
    for name in ("generation_tokens_total", "e2e_request_latency_seconds_count"):
        assert after[f"phloem_{name}",] == before[f"phloem_{name}",]
    assert server.http.get("/server_info").json()["state"]["running"] == 0


def test_the_model_is_listed_with_its_context(server):
    (model,) = server.http.get("/v1/models").json()["data"]
    assert model["id"] == "tiny"
    assert model["object"] == "model"
    assert model["max_model_len"] == 8192
    assert server.http.get("/v1/models/tiny").json() == model


def test_the_server_tells_what_it_is_and_does(server):
    info = server.http.get("/server_info").json()
    assert info["model"] == "tiny"
    assert info["options"] == {"model": "scripted", "page_size": 1}
    assert info["limits"]["context_len"] == 8192
    state = info["state"]
    assert state["used"] + state["cached"] + state["free"] == state["total"]
    assert info["version"]


def test_the_cache_is_flushed(server):
    server.post("/v1/completions", prompt="say", max_tokens=3)
    assert server.http.post("/flush_cache").json()["freed_tokens"] > 0
    assert server.http.get("/server_info").json()["state"]["cached"] == 0


def test_metrics_count_what_was_served(server):
    before = samples(server)
    body = {"prompt": "say", "temperature": 0, "max_tokens": 5}
    server.post("/v1/completions", **body)
    server.events("/v1/completions", **body)
    server.post("/v1/completions", temperature=-1, prompt="a")
    server.http.get("/somewhere/else")
    after = samples(server)

    def more(*key):
        return after[key] - before.get(key, 0)

    assert more("phloem_http_requests_total", "/v1/completions", "200") == 2
    assert more("phloem_http_requests_total", "/v1/completions", "400") == 1
    assert more("phloem_http_requests_total", "other", "404") == 1
    assert more("phloem_num_requests_total", "length") == 2
    cached = more("phloem_prompt_tokens_total", "device")
    assert cached + more("phloem_prompt_tokens_total", "computed") == 6
    assert more("phloem_cached_tokens_total", "device") == cached >= 2
    assert more("phloem_generation_tokens_total") == 10
    assert more("phloem_time_to_first_token_seconds_count") == 2
    assert more("phloem_inter_token_latency_seconds_count") == 8
    assert more("phloem_e2e_request_latency_seconds_count") == 2
    assert more("phloem_queue_time_seconds_count") == 2
    assert more("phloem_per_stage_req_latency_seconds_count", "tokenize") == 3
    for stage in ("queue", "prefill", "decode", "detokenize"):
        assert more("phloem_per_stage_req_latency_seconds_count", stage) == 2
    assert after["phloem_max_total_num_tokens",] == 65536
    assert after["phloem_kv_evictable_tokens",] > 0
    assert 0 < after["phloem_cache_hit_rate",] < 1
    assert after["phloem_gen_throughput",] > 0


def test_a_metric_that_fails_breaks_nothing(serve, write_script, monkeypatch):
    """Case ME-03."""
    from phloem.server.observability.distribution import Distribution
    from phloem.server.observability.instruments import Counter

    def broken(*args):
        raise ValueError("counters can only go up")

    server = serve(write_script([]))
    monkeypatch.setattr(Counter, "add", broken)
    monkeypatch.setattr(Distribution, "observe", broken)
    body = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}
    assert server.post("/v1/completions", **body).status_code == 200
    assert server.events("/v1/completions", **body)


def test_apps_have_metrics_of_their_own(serve, write_script):
    other = serve(write_script([]))
    assert ("phloem_num_requests_total", "length") not in samples(other)


def test_what_the_api_takes_is_described(server):
    assert "/v1/chat/completions" in server.http.get("/openapi.json").json()["paths"]
