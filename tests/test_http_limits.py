"""Queue limits, time limits, pauses and changes of weights, as clients and operators meet them."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

import pytest

LONG = {"prompt": "long", "max_tokens": 20_000, "ignore_eos": True}
SHORT = {"prompt": "short", "max_tokens": 3, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def script(write_script):
    return write_script([], context_length=25_000, pool_tokens=100_000)


@pytest.fixture(scope="module")
def limited(serve, script):
    return serve(script, max_running_requests=1, max_queued_requests=2)


@pytest.fixture(scope="module")
def server(serve, script):
    return serve(script)


@pytest.fixture(scope="module")
def processes(phloem_serve, script):
    return phloem_serve(script, max_running_requests=1, max_queued_requests=2)


FAIR = {"max_running_requests": 1, "max_queued_requests": 4, "enable_tenant_fairness": True}


@pytest.fixture(scope="module")
def fair(serve, script):
    return serve(script, **FAIR)


@pytest.fixture(scope="module")
def fair_processes(phloem_serve, script):
    return phloem_serve(script, **FAIR)


def state(server):
    return server.http.get("/server_info").json()["state"]


def wait_for(server, **values):
    """Until the state is so; the suite's timeout ends it."""
    while not values.items() <= state(server).items():
        pass


@contextmanager
def paused(server, mode="in_place"):
    """While nothing is scheduled."""
    assert server.post("/pause_generation", mode=mode).json() == {"paused": mode}
    try:
        yield
    finally:
        assert server.http.post("/continue_generation").json() == {"paused": None}


class Asked:
    """A request that is under way in a thread."""

    def __init__(self, server, path="/v1/completions", **body):
        def ask():
            self.response = server.http.post(path, json=body)

        self._thread = threading.Thread(target=ask)
        self._thread.start()

    @property
    def alive(self):
        return self._thread.is_alive()

    def result(self):
        self._thread.join()
        return self.response


def refusal(response):
    """What is wrong with it, if it is one."""
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("service_unavailable_error", "overloaded")
    return error["message"]


@pytest.mark.parametrize("kind", ["limited", "processes"])
def test_who_finds_the_queue_full_is_refused_at_once_and_the_others_are_served(kind, request):
    """Case AB-06."""
    server = request.getfixturevalue(kind)
    with paused(server):
        waiting = [Asked(server, **SHORT) for _ in range(2)]
        wait_for(server, waiting=2)
        for path, body in (
            ("/v1/completions", SHORT),
            ("/v1/completions", SHORT | {"stream": True}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ("/generate", {"text": "a"}),
            ("/generate", {"text": ["a", "b"]}),
        ):
            assert "the queue is full: 2 requests wait" in refusal(
                server.http.post(path, json=body)
            )
    assert [asked.result().status_code for asked in waiting] == [200, 200]


@pytest.mark.parametrize("kind", ["limited", "processes"])
@pytest.mark.parametrize("stream", [False, True])
def test_each_of_n_counts_and_all_are_refused_together(kind, stream, request):
    """Case AB-06: n."""
    server = request.getfixturevalue(kind)
    with paused(server):
        refusal(server.post("/v1/completions", n=3, stream=stream, **SHORT))
        wait_for(server, waiting=0)
        asked = Asked(server, n=2, **SHORT)
        wait_for(server, waiting=2)
        refusal(server.post("/v1/completions", **SHORT))
    assert len(asked.result().json()["choices"]) == 2


@pytest.mark.parametrize("kind", ["fair", "fair_processes"])
def test_a_tenant_with_more_than_its_share_of_a_full_queue_gets_a_429(kind, request):
    server = request.getfixturevalue(kind)
    with paused(server):
        heavy = [Asked(server, **SHORT, tenant="heavy") for _ in range(4)]
        wait_for(server, waiting=4)
        light = Asked(server, **SHORT, tenant="light")
        while all(asked.alive for asked in heavy):
            pass
        wait_for(server, waiting=4)
        again = server.post("/v1/completions", **SHORT, tenant="heavy")
    for response in (again, *(asked.result() for asked in heavy)):
        if response.status_code != 200:
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "yours take more than their share" in again.json()["error"]["message"]
    assert sorted(asked.result().status_code for asked in heavy) == [200, 200, 200, 429]
    assert light.result().status_code == 200


def test_refused_sequences_are_counted_as_ended(limited):
    """Case ME-04: a refusal too is one end."""

    def refused():
        return limited.metric("phloem_num_requests_total", finish_reason="refused")

    before = refused()
    with paused(limited):
        asked = Asked(limited, n=2, **SHORT)
        wait_for(limited, waiting=2)
        limited.post("/v1/completions", **SHORT)
    assert asked.result().status_code == 200
    assert refused() - before <= 1
    for gauge in ("num_running_reqs", "num_queue_reqs", "num_used_tokens"):
        assert limited.samples(f"phloem_{gauge}") == [({}, 0.0)]


@pytest.mark.parametrize("kind", ["server", "processes"])
class TestTimeLimits:
    def test_one_that_is_over_before_the_answer_begins_is_a_408(self, kind, request):
        server = request.getfixturevalue(kind)
        with paused(server):
            for path, body in (("/v1/completions", SHORT), ("/generate", {"text": "a"})):
                response = server.http.post(path, json=body | {"timeout": 0.05})
                assert response.status_code == 408
                error = response.json()["error"]
                assert error["code"] == "timeout"
                assert "did not end within its 0.05 s" in error["message"]

    def test_one_on_the_queue_is_a_503_with_a_time_to_come_again(self, kind, request):
        server = request.getfixturevalue(kind)
        with paused(server):
            response = server.post("/v1/completions", queue_timeout=0.05, **SHORT)
        assert "waited for 0.05 s and was not let in" in refusal(response)

    def test_one_that_is_over_in_mid_answer_ends_it(self, kind, request):
        server = request.getfixturevalue(kind)
        params = {"max_new_tokens": 20_000, "ignore_eos": True}
        response = server.post("/generate", text="long", sampling_params=params, timeout=0.3)
        assert response.status_code == 200
        meta = response.json()["meta_info"]
        assert (meta["finish_reason"]["type"], meta["finish_reason"]["status_code"]) == (
            "abort",
            408,
        )
        assert 0 < meta["completion_tokens"] < 20_000
        body = LONG | {"stream": True, "timeout": 0.3, "skip_special_tokens": False}
        with server.http.stream("POST", "/v1/completions", json=body) as stream:
            assert stream.status_code == 200
            *_, last = (line for line in stream.iter_lines() if line)
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        wait_for(server, running=0, used=0)

    @pytest.mark.parametrize("name", ["timeout", "queue_timeout"])
    @pytest.mark.parametrize("seconds", [0, -1, 1e300])
    def test_one_that_is_no_time_is_refused(self, kind, request, name, seconds):
        server = request.getfixturevalue(kind)
        response = server.post("/v1/completions", **SHORT, **{name: seconds})
        assert response.status_code == 400
        assert f"{name} is {seconds:g}" in response.json()["error"]["message"]


def test_the_server_has_time_limits_of_its_own(serve, script):
    server = serve(script, request_timeout=0.05)
    assert server.post("/v1/completions", **LONG).status_code == 408


@pytest.mark.parametrize("kind", ["server", "processes"])
class TestPause:
    def test_in_place_goes_on(self, kind, request):
        server = request.getfixturevalue(kind)
        asked = Asked(server, **LONG | {"max_tokens": 2000})
        wait_for(server, running=1)
        with paused(server):
            wait_for(server, paused="in_place", running=1)
            assert server.http.get("/ready").status_code == 200
            response = server.http.post("/flush_cache?timeout=0.01")
            assert response.status_code == 400
            assert "1 requests use the cache" in response.json()["error"]["message"]
            assert response.json()["error"]["param"] == "timeout"
            # Who named no timeout is not told that it is wrong.
            response = server.http.post("/flush_cache")
            assert response.status_code == 400
            assert response.json()["error"]["param"] is None
        assert asked.result().json()["usage"]["completion_tokens"] == 2000

    def test_retract_frees_the_memory_and_goes_on(self, kind, request):
        server = request.getfixturevalue(kind)
        asked = Asked(server, **LONG | {"max_tokens": 2000})
        wait_for(server, running=1)
        with paused(server, "retract"):
            wait_for(server, running=0, waiting=1)
            assert server.http.post("/flush_cache").json()["freed_tokens"] > 0
            assert state(server)["free"] == state(server)["total"]
        assert asked.result().json()["usage"]["completion_tokens"] == 2000

    def test_abort_ends_what_runs(self, kind, request):
        server = request.getfixturevalue(kind)
        asked = Asked(server, **LONG)
        wait_for(server, running=1)
        with paused(server, "abort"):
            assert asked.result().status_code == 499
            late = Asked(server, **SHORT)
            wait_for(server, waiting=1)
        assert late.result().status_code == 200

    def test_an_unknown_mode_is_refused(self, kind, request):
        server = request.getfixturevalue(kind)
        response = server.post("/pause_generation", mode="gently")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "mode"

    def test_a_flush_without_sense_is_refused(self, kind, request):
        server = request.getfixturevalue(kind)
        for timeout in ("-1", "nan", "soon"):
            assert server.http.post(f"/flush_cache?timeout={timeout}").status_code in (400, 422)


def test_a_flush_waits_for_what_runs(processes):
    asked = Asked(processes, **LONG | {"max_tokens": 2000})
    wait_for(processes, running=1)
    assert processes.http.post("/flush_cache?timeout=60").json()["freed_tokens"] >= 2000
    assert asked.result().status_code == 200


@pytest.mark.parametrize("kind", ["server", "processes"])
def test_a_prompt_finds_nothing_of_other_weights(kind, request):
    """Case SC-09."""
    server = request.getfixturevalue(kind)

    def cached():
        params = {"max_new_tokens": 2}
        answer = server.post("/generate", text="some weights", sampling_params=params).json()
        return answer["meta_info"]["cached_tokens"]

    cached()
    assert cached() == len("some weights") - 1
    for version, found in (("two", 0), ("default", len("some weights") - 1)):
        response = server.post("/update_weight_version", new_version=version)
        assert response.json() == {"weight_version": version}
        assert state(server)["weight_version"] == version
        assert cached() == found


@pytest.mark.parametrize("length", [0, 257])
def test_a_name_of_weights_that_says_nothing_or_too_much_is_refused(server, length):
    before = state(server)["weight_version"]
    response = server.post("/update_weight_version", new_version="w" * length)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "new_version")
    assert error["message"] == f"new_version has {length} characters: give 1 to 256"
    assert state(server)["weight_version"] == before


def test_a_name_of_weights_may_have_256_characters(serve, script):
    server = serve(script)
    assert server.post("/update_weight_version", new_version="w" * 256).status_code == 200
