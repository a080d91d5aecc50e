"""What a server of processes goes on after: clients that leave, do not read or never ask, processes
that stand still. What ends it is in `test_faults_that_end`.
"""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from faulty_servers import BODIES, TOKEN, lasting_script, read_until, reset, sent, serving

from phloem.server.file_limit import room_for_connections

LAST_EVENTS = {"/v1/responses": b"response.incomplete", "/v1/messages": b"message_stop"}
"""Where that is not `[DONE]`."""
MAX_CONNECTIONS = 256
MIB = 1 << 20


@pytest.fixture(scope="module")
def script(write_script):
    """A model that says x to everybody, for longer than anybody asks for."""
    return lasting_script(write_script)


@pytest.fixture(scope="module")
def server(script):
    with pytest.MonkeyPatch.context() as patch:
        # Where the backend of constraints is.
        patch.syspath_prepend(str(Path(__file__).parent))
        engine = {"grammar_backend": "crashing_backend:create"}
        with serving(
            script,
            engine,
            health_timeout=1.0,
            max_connections=MAX_CONNECTIONS,
            header_timeout=60.0,
            write_timeout=0.5,
        ) as running:
            yield running


def several(path, body):
    """The body of a request for three sequences; None: there is no such thing."""
    if path in ("/v1/responses", "/v1/messages"):
        return None
    if path == "/generate":
        return body | {"sampling_params": body["sampling_params"] | {"n": 3}}
    return body | {"n": 3}


def short(path, body):
    """The same for three tokens."""
    if path == "/generate":
        return body | {"sampling_params": {"max_new_tokens": 3}}
    (limit,) = [name for name in body if name.startswith("max_")]
    return body | {limit: 3}


@pytest.mark.parametrize("path", BODIES)
class TestClientsThatLeave:
    def test_while_they_ask_leave_nothing_behind(self, server, path):
        head, content = sent(path, BODIES[path])
        for part in (head[:30], head, head + content[:-5]):
            server.connect(part).close()
        assert server.http.get("/health").status_code == 200
        server.until_nothing_is_held()

    @pytest.mark.parametrize("stream", [False, True])
    def test_before_the_first_token_leave_nothing_behind(self, server, path, stream):
        assert server.http.post("/pause_generation", json={"mode": "in_place"}).is_success
        try:
            connection = server.connect(b"".join(sent(path, BODIES[path] | {"stream": stream})))
            server.until(waiting=1)
            reset(connection)
            server.until(waiting=0)
        finally:
            assert server.http.post("/continue_generation").is_success
        server.until_nothing_is_held()

    @pytest.mark.parametrize("leave", [socket.socket.close, reset])
    def test_between_tokens_leave_nothing_behind(self, server, path, leave):
        before = server.aborted()
        connection = server.connect(b"".join(sent(path, BODIES[path] | {"stream": True})))
        read_until(connection, TOKEN)
        leave(connection)
        server.until_nothing_is_held()
        assert server.aborted() == before + 1

    def test_while_several_sequences_run_leave_nothing_behind(self, server, path):
        body = several(path, BODIES[path])
        if body is None:
            pytest.skip("it has one sequence")
        # A stream of `/generate` has one sequence.
        for stream in (False, True)[: 1 if path == "/generate" else 2]:
            before = server.aborted()
            connection = server.connect(b"".join(sent(path, body | {"stream": stream})))
            server.until(running=3)
            connection.close()
            server.until_nothing_is_held()
            assert server.aborted() == before + 3

    def test_at_the_last_event_leave_nothing_behind(self, server, path):
        body = short(path, BODIES[path]) | {"stream": True}
        connection = server.connect(b"".join(sent(path, body)))
        read_until(connection, LAST_EVENTS.get(path, b"[DONE]"))
        reset(connection)
        reset(server.connect(b"".join(sent(path, body))))
        server.until_nothing_is_held()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_its_constraint_is_compiled(server, tmp_path, stream):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    body = {"prompt": "secret", "regex": f"hold {pipe}", "stream": stream}
    connection = server.connect(b"".join(sent("/v1/completions", body)))
    with open(pipe) as told:
        assert told.readline() == "held\n"
        connection.close()
        # The process that compiled it is ended.
        assert told.read() == ""
    server.until_nothing_is_held()
    answer = server.http.post("/v1/completions", json={"prompt": "a", "regex": "ab"})
    assert answer.json()["choices"][0]["text"] == "ab"


@pytest.mark.parametrize("name", ["scheduler", "detokenizer"])
def test_health_tells_of_a_process_that_stands_still_and_of_its_return(server, name):
    assert server.http.get("/health_generate").json() == {"status": "ok"}
    body = BODIES["/v1/completions"] | {"max_tokens": 2000}
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(server.http.post, "/v1/completions", json=body)
        server.until(running=1)
        with server.standing_still(name):
            answer = server.until_status("/health", 503)
            for path in ("/ping", "/ready", "/health_generate"):
                assert server.http.get(path).status_code == 503
            assert server.http.get("/startup").status_code == 200
        server.until_status("/health", 200)
        assert asked.result().json()["usage"]["completion_tokens"] == 2000
    error = answer.json()["error"]
    assert f"the {name} process has not answered for" in error["message"]
    assert error["code"] == "service_unavailable"
    assert server.http.get("/ready").status_code == 200
    server.until_nothing_is_held()


@pytest.mark.parametrize("name", ["scheduler_process", "detokenizer_process", "serve"])
def test_a_process_that_is_asked_writes_its_stacks_and_goes_on(server, name):
    processes = server.processes | {"serve": server.process}
    processes[name.removesuffix("_process")].send_signal(signal.SIGUSR1)
    while not any(f"/{name}.py" in line for line in tuple(server.log)):
        pass
    assert server.http.get("/health_generate").status_code == 200


def test_a_health_check_that_generates_ends_in_time_and_leaves_nothing(server):
    assert server.http.post("/pause_generation", json={"mode": "in_place"}).is_success
    try:
        answer = server.http.get("/health_generate")
        assert server.http.get("/health").status_code == 200
        server.until(waiting=0)
    finally:
        assert server.http.post("/continue_generation").is_success
    assert answer.status_code == 503
    server.until_nothing_is_held()


def test_clients_that_do_not_read_are_closed_and_harm_nobody(server):
    before, memory = server.aborted(), server.memory()
    request = b"".join(
        sent("/v1/chat/completions", BODIES["/v1/chat/completions"] | {"stream": True})
    )
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(closing(server.connect(request, receive_buffer=4096)))
        server.until(running=4)
        other = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 50})
        assert other.json()["usage"]["completion_tokens"] == 50
        server.until_nothing_is_held()
    assert server.aborted() == before + 4
    assert server.memory() - memory < 100 * MIB


@pytest.mark.parametrize("number", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_connections_that_never_ask_are_bounded_and_harm_nobody(server, number):
    if room_for_connections(number) < number:
        pytest.skip("this system does not let a process have so many connections")
    memory = server.memory()
    with ExitStack() as stack:
        for index in range(number):
            with suppress(ConnectionError):  # it made room already
                said = b"POST /generate HTTP/1.1\r\nHost:" if index % 2 else b""
                stack.enter_context(closing(server.connect(said)))
            if index % 500 == 0:
                answer = httpx.post(f"{server.url}/generate", json={"text": "a"}, timeout=60)
                assert answer.status_code == 200
        assert psutil.Process(server.process.pid).num_fds() < MAX_CONNECTIONS + 100
        assert server.memory() - memory < 100 * MIB
    server.until_nothing_is_held()
