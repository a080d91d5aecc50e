"""How requests end before their time: clients leave, operators abort, rows and engines fail."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from phloem.scheduler import ScriptedRowError

LONG = {"prompt": "long", "max_tokens": 20_000, "ignore_eos": True}
PATHS = {
    "/v1/completions": LONG,
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "long"}],
        "ignore_eos": True,
    },
    "/generate": {
        "text": "long",
        "sampling_params": {"max_new_tokens": 20_000, "ignore_eos": True},
    },
}


@pytest.fixture(scope="module")
def script(write_script):
    return write_script([], context_length=25_000, pool_tokens=100_000)


@pytest.fixture
def server(serve, script):
    made = serve(script, max_running_requests=16)
    yield made
    made.frontend.end()


@pytest.fixture(scope="module")
def processes(phloem_serve, script):
    return phloem_serve(script, max_running_requests=16)


def state(server):
    return server.http.get("/server_info").json()["state"]


def wait_for(server, running):
    """Until that many requests run; the module's timeout ends it."""
    while state(server)["running"] != running:
        pass


def finished(server):
    """How many sequences ended, by reason."""
    found = server.samples("phloem_num_requests_total")
    return {labels["finish_reason"]: count for labels, count in found}


def send(server, path, body):
    """Send a request and return its socket; nothing is read."""
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_leaves_ends_its_request(server, path, stream):
    """Case AB-01: streamed or not."""
    connection = send(server, path, PATHS[path] | {"stream": stream})
    wait_for(server, 1)
    connection.close()
    wait_for(server, 0)
    assert state(server)["used"] == 0
    assert finished(server) == {"abort": 1}
    assert server.metric("phloem_generation_tokens_total") < 20_000


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_a_server_of_processes_frees_its_memory(processes, stream):
    """Case AB-01."""
    before = finished(processes).get("abort", 0)
    connection = send(processes, "/v1/completions", LONG | {"stream": stream})
    wait_for(processes, 1)
    connection.close()
    wait_for(processes, 0)
    assert state(processes)["used"] == 0
    assert finished(processes) == {"abort": before + 1}


def test_a_client_that_leaves_ends_all_its_choices(server):
    connection = send(server, "/v1/completions", LONG | {"prompt": ["a", "b"], "n": 3})
    wait_for(server, 6)
    connection.close()
    wait_for(server, 0)
    assert finished(server) == {"abort": 6}


def test_a_client_that_leaves_in_the_middle_of_its_request_harms_nothing(server):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
        )
    assert server.post("/v1/completions", prompt="a").status_code == 200


class Asked:
    """A request that is under way in a thread."""

    def __init__(self, server, path, **body):
        def ask():
            self.response = server.http.post(path, json=body)

        self._thread = threading.Thread(target=ask)
        self._thread.start()

    def result(self):
        self._thread.join()
        return self.response


def test_an_abort_ends_a_request_with_an_error(server):
    asked = Asked(server, "/v1/completions", **LONG)
    wait_for(server, 1)
    assert server.post("/abort_request", abort_all=True).json() == {"aborted": 1}
    response = asked.result()
    assert response.status_code == 499
    assert response.json()["error"]["code"] == "aborted"
    assert finished(server) == {"abort": 1}


def test_an_aborted_native_request_has_what_it_came_to(server):
    asked = Asked(server, "/generate", **PATHS["/generate"], rid="mine")
    wait_for(server, 1)
    assert server.post("/abort_request", rid="mine").json() == {"aborted": 1}
    response = asked.result()
    assert response.status_code == 200
    assert response.json()["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_answer_in_a_stream_can_be_aborted_by_its_id(server):
    body = LONG | {"stream": True, "skip_special_tokens": False}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        id = json.loads(next(lines).removeprefix("data: "))["id"]
        assert server.post("/abort_request", rid=id).json() == {"aborted": 1}
        *_, last = lines
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "aborted"


def test_an_answer_of_several_sequences_is_aborted_by_its_id(server):
    body = LONG | {"stream": True, "skip_special_tokens": False, "n": 3}
    other = Asked(server, "/v1/completions", **LONG)
    wait_for(server, 1)
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        id = json.loads(next(lines).removeprefix("data: "))["id"]
        assert server.post("/abort_request", rid=f"{id}-1").json() == {"aborted": 1}
        list(lines)
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        id = json.loads(next(lines).removeprefix("data: "))["id"]
        assert server.post("/abort_request", rid=id).json() == {"aborted": 3}
        *_, last = lines
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "aborted"
    assert server.post("/abort_request", abort_all=True).json() == {"aborted": 1}
    assert other.result().status_code == 499


def test_aborting_what_has_ended_or_never_was_is_no_error(server):
    """Case AB-07."""
    server.post("/generate", text="a", rid="done")
    for rid in ("done", "done", "never"):
        response = server.post("/abort_request", rid=rid)
        assert (response.status_code, response.json()) == (200, {"aborted": 0})


@pytest.fixture
def failing(server):
    """Rows whose prompt begins with a token of `!` fail, from a given output token on."""
    runner = server.frontend.parts.runner
    plain = runner._script
    bang = server.frontend.tokenizer.encode("!")[0]

    def fail_from(length):
        def script(history):
            if history[0] == bang and len(history) >= length:
                raise ScriptedRowError("the logits are NaN")
            return plain(history)

        runner._script = script
        return server

    return fail_from


@pytest.mark.parametrize("stream", [False, True])
def test_a_row_that_fails_at_once_is_a_500_and_others_go_on(failing, stream):
    """Case SC-10, as a client meets it."""
    server = failing(1)
    asked = Asked(server, "/v1/completions", **LONG | {"max_tokens": 500})
    response = server.post("/v1/completions", prompt="!", stream=stream)
    assert response.status_code == 500
    assert "NaN" in response.json()["error"]["message"]
    assert server.post("/v1/completions", prompt=["a", "!"]).status_code == 500
    assert server.post("/generate", text="!").status_code == 500
    results = server.post("/generate", text=["a", "!"]).json()
    assert [r["meta_info"]["finish_reason"]["type"] for r in results] == ["stop", "error"]
    assert asked.result().status_code == 200


def test_a_row_that_fails_in_mid_stream_is_an_event_and_no_done(failing):
    server = failing(6)
    body = {"prompt": "!", "max_tokens": 100, "ignore_eos": True, "skip_special_tokens": False}
    with server.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    assert len(lines) == 6
    assert "NaN" in json.loads(lines[-1].removeprefix("data: "))["error"]["message"]


def test_an_engine_that_ends_fails_what_runs_and_what_comes(server):
    whole = Asked(server, "/v1/completions", **LONG)
    body = LONG | {"stream": True, "skip_special_tokens": False}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        wait_for(server, 2)
        server.frontend.end()
        *_, last = lines
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "service_unavailable_error"
    assert whole.result().status_code == 503
    for method, path in (
        ("POST", "/v1/completions"),
        ("POST", "/generate"),
        ("GET", "/health"),
        ("GET", "/ready"),
        ("GET", "/server_info"),
    ):
        sent = {"prompt": "a"} if path == "/v1/completions" else {"text": "a"}
        response = server.http.request(method, path, json=sent if method == "POST" else None)
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "service_unavailable_error"
    assert finished(server)["error"] == 2


def test_every_sequence_is_counted_once_whatever_its_end(failing):
    """Case ME-04: and when all is over the gauges are at zero."""
    server = failing(1)
    server.post("/v1/completions", prompt=["a", "b"], max_tokens=3, ignore_eos=True)
    server.post("/v1/completions", prompt="a", n=2)
    server.post("/generate", text="!")
    connection = send(server, "/v1/completions", LONG | {"stream": True})
    wait_for(server, 1)
    connection.close()
    wait_for(server, 0)
    server.post("/v1/completions", prompt="a", temperature=-1)
    assert finished(server) == {"length": 2, "stop": 2, "error": 1, "abort": 1}
    assert server.metric("phloem_num_aborted_requests_total") == 1
    for gauge in ("num_running_reqs", "num_queue_reqs", "num_used_tokens"):
        assert server.samples(f"phloem_{gauge}") == [({}, 0.0)]
