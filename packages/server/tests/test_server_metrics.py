"""What is counted of requests, and how it is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from phloem.server.http.connections import ConnectionCounts
from phloem.server.http.metrics import Metrics
from phloem.server.messages import Finish, TextNews
from phloem.server.observability.distribution import Distribution
from phloem.server.observability.growth import Growth

STATE = {
    "running": 1,
    "waiting": 2,
    "used": 25,
    "cached": 15,
    "free": 60,
    "total": 100,
    "max_running_requests": 4,
    "paused": None,
    "new_token_ratio": 0.5,
    "counts": {
        "retractions": 3,
        "evicted_tokens": 4,
        "loaded_tokens": 5,
        "restored_tokens": 6,
        "backed_up_tokens": 7,
        "given_up_tokens": 8,
        "host_used_tokens": 9,
        "host_capacity_tokens": 10,
        "host_failures": 11,
        "disk_hits": 12,
    },
    "steps": {"bounds": [0.1, 1.0], "counts": [2, 1, 1], "sum": 3.5},
}


def samples(metrics, state=STATE, grammar=()):
    """Of the exposition: values by name and labels, the model's name aside."""
    text = metrics.exposition(state, dict(grammar)).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "m"
            key = (sample.name.removeprefix("phloem_"), *sorted(sample.labels.values()))
            assert key not in found
            found[key] = sample.value
    return found


def news(tokens=(), finish=None, prompt=10, cached=0, brought=None, timings=None, retractions=0):
    return TextNews(
        "r",
        "",
        list(tokens),
        finish and Finish(finish),
        prompt,
        0,
        cached,
        retractions,
        timings,
        brought=brought,
    )


LASTING = {"queue": 0.5, "ttft": 1.5, "decode": 2.0, "total": 3.5}


def test_every_metric_says_which_model_it_is_of_and_what_it_is():
    text = Metrics("m").exposition(STATE, {"compiled": 1}).decode()
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("phloem_")
        assert family.documentation
        assert all(sample.labels["model_name"] == "m" for sample in family.samples)


def test_the_scheduler_s_state_is_shown():
    found = samples(Metrics("m"), grammar={"compiled": 13})
    assert (found["num_running_reqs",], found["num_queue_reqs",]) == (1, 2)
    assert found["num_used_tokens",] == found["kv_used_tokens",] == 25
    states = ("kv_used_tokens", "kv_evictable_tokens", "kv_available_tokens")
    assert sum(found[name,] for name in states) == found["max_total_num_tokens",]
    assert (found["token_usage",], found["utilization",]) == (0.25, 0.25)
    assert found["num_retracted_requests_total",] == 3
    assert found["evicted_tokens_total",] == 4
    assert found["load_back_tokens_total",] == 5
    assert found["prefetched_tokens_total",] == 6
    assert found["hicache_host_used_tokens",] == 9
    assert found["disk_cache_hits_total",] == 12
    assert found["grammar_compiled_total",] == 13
    assert found["step_time_seconds_bucket", "0.1"] == 2
    assert found["step_time_seconds_bucket", "+Inf"] == found["step_time_seconds_count",] == 4
    assert found["step_time_seconds_sum",] == 3.5


def test_without_a_scheduler_what_the_api_counts_is_shown_still():
    found = samples(Metrics("m"), state={})
    assert ("num_running_reqs",) not in found
    assert found["generation_tokens_total",] == 0


def test_those_that_are_held_still_are_told_apart():
    assert samples(Metrics("m"))["num_paused_reqs",] == 0
    assert samples(Metrics("m"), STATE | {"paused": "in_place"})["num_paused_reqs",] == 3


def test_a_sequence_is_counted_with_its_tokens_and_its_stages():
    metrics = Metrics("m")
    meter = metrics.meter()
    meter.take(news([1], cached=4))
    meter.take(news([2, 3]))
    meter.take(news([4], "stop", timings=LASTING))
    meter.end("abort")
    found = samples(metrics)
    assert found["num_requests_total", "stop"] == 1
    assert ("num_requests_total", "abort") not in found
    assert found["num_aborted_requests_total",] == 0
    assert found["generation_tokens_total",] == 4
    assert found["prompt_tokens_total", "computed"] == 6
    assert found["prompt_tokens_total", "device"] == 4
    assert found["time_to_first_token_seconds_count",] == 1
    assert found["inter_token_latency_seconds_count",] == 3
    assert found["e2e_request_latency_seconds_count",] == 1
    assert found["queue_time_seconds_sum",] == 0.5
    stage = "per_stage_req_latency_seconds_sum"
    assert found[stage, "queue"] == pytest.approx(0.5)
    assert found[stage, "prefill"] == pytest.approx(1)
    assert found[stage, "decode"] == pytest.approx(2)
    assert found[stage, "detokenize"] == 0  # it ended before the scheduler says that it did


def test_a_client_that_leaves_has_its_prompt_counted_once_it_was_computed():
    metrics = Metrics("m")
    waited, began = metrics.meter(), metrics.meter()
    began.take(news([1]))
    for meter in (waited, began):
        meter.end("abort")
        meter.end("abort")
    found = samples(metrics)
    assert found["num_requests_total", "abort"] == found["num_aborted_requests_total",] == 2
    assert found["prompt_tokens_total", "computed"] == 10


def test_a_prompt_that_was_given_up_before_its_first_token_counts_when_the_scheduler_tells():
    metrics = Metrics("m")
    for timings in (LASTING, {}):
        meter = metrics.meter()
        meter.end("abort")
        meter.late(news(finish="abort", cached=4, timings=timings))
    found = samples(metrics)
    assert found["prompt_tokens_total", "computed"] == 6
    assert found["prompt_tokens_total", "device"] == 4
    assert found["e2e_request_latency_seconds_count",] == 2


def test_connections_are_shown_with_why_they_were_closed():
    counts = ConnectionCounts()
    counts.open = 3
    counts.closed["timeout"] = 2
    found = samples(Metrics("m", connections=counts))
    assert found["http_connections",] == 3
    assert found["http_connections_closed_total", "timeout"] == 2


def test_what_was_refused_counts_no_prompt():
    metrics = Metrics("m")
    metrics.meter().take(news(finish="refused"))
    found = samples(metrics)
    assert found["num_requests_total", "refused"] == 1
    assert found["prompt_tokens_total", "computed"] == 0
    assert found["cache_hit_rate",] == 0


def test_a_prompt_counts_though_no_token_came_of_it():
    metrics = Metrics("m")
    metrics.meter().take(news(finish="length", cached=9, timings=LASTING))
    found = samples(metrics)
    assert found["prompt_tokens_total", "device"] == 9
    assert found["cache_hit_rate",] == 0.9


@given(
    prompt=st.integers(0, 50),
    cached=st.integers(-5, 60),
    brought=st.none() | st.tuples(st.integers(-5, 60), st.integers(-5, 60)),
)
def test_the_parts_of_a_prompt_sum_to_it_whatever_is_said_of_them(prompt, cached, brought):
    """Case ME-03."""
    metrics = Metrics("m")
    metrics.meter().take(news([1], prompt=prompt, cached=cached, brought=brought))
    found = samples(metrics)
    parts = [found["prompt_tokens_total", s] for s in ("computed", "device", "host", "disk")]
    assert sum(parts) == prompt
    assert min(parts) >= 0
    assert parts[1:] == [found["cached_tokens_total", s] for s in ("device", "host", "disk")]


def test_cached_tokens_are_told_apart_by_where_they_were():
    metrics = Metrics("m")
    metrics.meter().take(news([1], cached=9, brought=(2, 4)))
    found = samples(metrics)
    parts = [found["prompt_tokens_total", s] for s in ("computed", "device", "host", "disk")]
    assert parts == [1, 3, 2, 4]


def test_constraints_that_are_being_compiled_are_a_queue():
    metrics = Metrics("m")
    with metrics.compiling("regex"):
        assert samples(metrics)["num_grammar_queue_reqs",] == 1
    found = samples(metrics)
    assert found["num_grammar_queue_reqs",] == 0
    assert found["constraints_total", "regex"] == 1
    assert found["grammar_compilation_time_seconds_count",] == 1


def test_a_constraint_that_does_not_compile_leaves_the_queue_and_does_not_count():
    metrics = Metrics("m")
    with pytest.raises(ValueError), metrics.compiling("regex"):
        raise ValueError
    found = samples(metrics)
    assert found["num_grammar_queue_reqs",] == 0
    assert ("constraints_total", "regex") not in found


def test_parts_of_the_start_may_come_after_the_app():
    startup = {"load": 1.5}
    metrics = Metrics("m", startup)
    startup["warm up"] = 0.5
    found = samples(metrics)
    assert found["startup_time_seconds", "load"] == 1.5
    assert found["startup_time_seconds", "warm up"] == 0.5


@given(st.lists(st.floats(-1, 10, allow_nan=False)))
def test_a_distribution_counts_as_its_bounds_say(values):
    bounds = (0.0, 1.0, 5.0)
    made = Distribution(bounds)
    for value in values:
        made.observe(value)
    for i, bound in enumerate(bounds):
        assert sum(made.counts[: i + 1]) == sum(value <= bound for value in values)
    assert sum(made.counts) == len(values)
    assert made.sum == pytest.approx(sum(values))
    assert Distribution.of(made.as_dict()).as_dict() == made.as_dict()


class TestGrowth:
    def test_only_the_last_seconds_count(self):
        total = [0.0]
        growth = Growth(10, lambda: (total[0],), now=0)
        total[0] = 50
        growth.mark(5)
        assert growth.growth(5) == (5, (50,))
        total[0] = 80
        growth.mark(12)
        # The mark at 0 is older than ten seconds, and the next one is not.
        assert growth.growth(12) == (12, (80,))
        assert growth.growth(15) == (10, (30,))
        assert growth.growth(100) == (88, (0,))

    def test_a_mark_is_due_after_a_part_of_the_time(self):
        growth = Growth(10, lambda: (0,), now=3)
        assert growth.due == 4
        growth.mark(7)
        assert growth.due == 8
