"""What becomes of a server of processes, and of everybody else, when something in it or around it
fails: processes that die or stand still, clients that leave, do not read or never ask.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from phloem.server.background import running_server
from phloem.server.config import ServerArgs
from phloem.server.file_limit import room_for_connections
from phloem.server.http_config import HttpArgs

CHAT = {"messages": [{"role": "user", "content": "secret"}]}
LONG = 20_000
NAME = "tiny" + 2000 * "y"
"""Of the model, which is in each event: so streams soon have more bytes than a system keeps."""
BODIES = {
    "/v1/chat/completions": CHAT | {"max_tokens": LONG},
    "/v1/completions": {"prompt": "secret", "max_tokens": LONG},
    "/generate": {"text": "secret", "sampling_params": {"max_new_tokens": LONG}},
    "/v1/responses": {"input": "secret", "max_output_tokens": LONG},
    "/v1/messages": CHAT | {"model": NAME, "max_tokens": LONG},
}
LAST_EVENTS = {"/v1/responses": b"response.incomplete", "/v1/messages": b"message_stop"}
"""Where that is not `[DONE]`."""
TOKEN = b'"x"'
MAX_CONNECTIONS = 256
MIB = 1 << 20


@pytest.fixture(scope="module")
def script(write_script):
    """A model that says x to everybody, for longer than anybody asks for."""
    everybody = {"prompt_ids": [], "output": "x" * 25_000}
    return write_script([everybody], context_length=25_000, pool_tokens=200_000)


class Running:
    """A server of processes."""

    def __init__(self, server):
        self._server = server
        self.url, self.log, self.process = server.url, server.log, server.process
        self.http = httpx.Client(base_url=server.url, timeout=60)
        children = psutil.Process(server.process.pid).children(recursive=True)
        self.processes = {
            name: child
            for child in children
            for name in ("scheduler", "detokenizer")
            if f"{name}_process" in " ".join(child.cmdline())
        }

    def connect(self, data=b"", receive_buffer=None):
        """A socket to it, on which `data` was sent."""
        host, port = self.url.removeprefix("http://").split(":")
        made = socket.socket()
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.connect((host, int(port)))
        made.sendall(data)
        return made

    def state(self):
        return self.http.get("/server_info").json()["state"]

    def until(self, **values):
        """Until the state is so; the suite's timeout ends it."""
        while not values.items() <= self.state().items():
            pass

    def until_nothing_is_held(self):
        self.until(running=0, waiting=0, used=0)

    def until_status(self, path, status):
        while (answer := self.http.get(path)).status_code != status:
            pass
        return answer

    def aborted(self):
        """How many sequences ended because somebody left."""
        lines = self.http.get("/metrics").text.splitlines()
        (line,) = [x for x in lines if x.startswith("phloem_num_aborted_requests_total")]
        return float(line.split()[-1])

    def memory(self):
        """Bytes that the API process has."""
        return psutil.Process(self.process.pid).memory_info().rss

    def wait_end(self):
        """Its exit status; the log is whole then."""
        status = self.process.wait(30)
        self._server.stop()
        return status

    @contextmanager
    def standing_still(self, name):
        """While a process does nothing."""
        self.processes[name].suspend()
        try:
            yield
        finally:
            self.processes[name].resume()


@contextmanager
def serving(model, engine=None, **http):
    args = ServerArgs(model=model, max_running_requests=16, **(engine or {}))
    options = HttpArgs(port=0, served_model_name=NAME, log_requests="off", **http)
    with running_server(args, options) as server:
        yield Running(server)


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


def sent(path, body):
    """A request as bytes: its head, and its body."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode(), content


def read_until(connection, mark):
    """What comes up to a mark, and a bit more perhaps."""
    received = b""
    while mark not in received:
        part = connection.recv(1 << 16)
        assert part, f"the answer ended before {mark!r}: {received[-500:]!r}"
        received += part
    return received


def reset(connection):
    """Close it as a machine does that is switched off: what comes is not wanted."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


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


@pytest.mark.parametrize("name", ["scheduler", "detokenizer"])
def test_a_process_that_is_asked_writes_its_stacks_and_goes_on(server, name):
    server.processes[name].send_signal(signal.SIGUSR1)
    while not any(f"{name}_process.py" in line for line in tuple(server.log)):
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


@pytest.fixture
def sockets(monkeypatch):
    """Where the sockets' folders are made; the paths of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def parsed_dump(folder):
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    return json.loads(file.read_text())


class Flying:
    """A whole answer and a stream on each endpoint, under way."""

    def __init__(self, server, stack):
        self._pool = stack.enter_context(ThreadPoolExecutor(len(BODIES)))
        self._whole = [self._pool.submit(server.http.post, p, json=b) for p, b in BODIES.items()]
        self._streams = []
        for path, body in BODIES.items():
            connection = stack.enter_context(
                closing(server.connect(b"".join(sent(path, body | {"stream": True}))))
            )
            read_until(connection, TOKEN)
            self._streams.append(connection)
        server.until(running=2 * len(BODIES))

    def ends(self):
        """The whole answers, and the last bytes of the streams."""
        tails = []
        for connection in self._streams:
            tail = b""
            while part := connection.recv(1 << 16):
                tail = (tail + part)[-3000:]
            tails.append(tail.decode())
        return [asked.result() for asked in self._whole], tails


@pytest.mark.parametrize(
    ("name", "texts"),
    [("scheduler", False), ("detokenizer", True)],
    ids=["scheduler", "detokenizer"],
)
def test_a_process_that_is_killed_ends_all_in_flight_with_a_5xx_and_is_dumped(
    script, sockets, tmp_path, name, texts
):
    options = {"crash_dump_dir": str(tmp_path), "crash_dump_text": texts}
    # What the server does, which this test waits for, is told to the admin key alone.
    keys = {"api_key": ("key-of-mine",), "admin_api_key": "key-of-mine-to-rule"}
    with serving(script, **keys, **options) as server, ExitStack() as stack:
        server.http.headers["x-api-key"] = keys["admin_api_key"]
        flying = Flying(WithKey(server), stack)
        server.processes[name].kill()
        answers, tails = flying.ends()
        assert server.wait_end() == 1
        assert psutil.wait_procs(list(server.processes.values()), timeout=10)[1] == []
        assert list(sockets.iterdir()) == []
    sentence = f"the {name} process died (signal 9, SIGKILL)"
    for answer in answers:
        # Anthropic's way to say that a server is overloaded is 529.
        assert answer.status_code in (503, 529)
        assert sentence in answer.text
    for tail in tails:
        assert sentence in tail
        assert "[DONE]" not in tail
    (line,) = [line for line in server.log if "a crash dump of 10 requests is in" in line]
    assert str(tmp_path) in line
    dump = parsed_dump(tmp_path)
    assert dump["reason"] == sentence
    assert dump["server_options"]["crash_dump_dir"] == str(tmp_path)
    assert dump["engine_options"]["model"] == script
    assert any(sentence in line for line in dump["log"])
    assert len({request["rid"] for request in dump["requests"]}) == 10
    for request in dump["requests"]:
        assert request["prompt_tokens"] >= len("secret")
        assert request["sampling_params"]["max_new_tokens"] == LONG
        assert request["age"] >= (request["first_news_after"] or 0)
        if texts:
            assert request["output"] == "x" * request["completion_tokens"]
            assert len(request["prompt_ids"]) == request["prompt_tokens"]
    shown = json.dumps(dump)
    assert "key-of-mine" not in shown
    assert texts or ("secret" not in shown and "xxx" not in shown)


class WithKey:
    """A server whose requests on sockets have its client's key too."""

    def __init__(self, server):
        self._server = server
        self.http, self.until = server.http, server.until

    def connect(self, data):
        key = self.http.headers["x-api-key"]
        return self._server.connect(
            data.replace(b"Host: x", f"Host: x\r\nx-api-key: {key}".encode())
        )


def test_a_step_that_hangs_is_barked_at_and_a_dump_without_a_folder_is_one_line(
    write_script, tmp_path
):
    slow = write_script([{"prompt_ids": [], "output": "x" * 100}], step_ms=60_000)
    missing = tmp_path / "not" / "there"
    options = {"watchdog_timeout": 0.5, "watchdog_action": "exit", "crash_dump_dir": str(missing)}
    with serving(slow, **options) as server:
        answer = server.http.post(
            "/v1/completions", json=BODIES["/v1/completions"] | {"max_tokens": 9}
        )
        assert server.wait_end() == 1
    assert answer.status_code == 503
    assert "the scheduler process died (exit status 1)" in answer.text
    log = "\n".join(server.log)
    assert "Timeout (0:00:00.6" in log
    assert "scheduler_process.py" in log
    assert log.count("crash dump") == 1
    assert f"no crash dump could be written to {missing}" in log
    assert "Traceback" not in log


def test_a_drain_is_told_on_all_ways_in_at_once_and_lets_streams_end(write_script):
    grpc = pytest.importorskip("grpc")
    health = pytest.importorskip("grpc_health.v1.health_pb2")
    stubs = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
    # As many steps as a signal needs to arrive, and more.
    script = write_script(
        [{"prompt_ids": [], "output": "x" * 250}],
        context_length=25_000,
        pool_tokens=200_000,
        step_ms=10,
    )
    with serving(script, drain_seconds=1000.0, grpc_port=0) as server, ExitStack() as stack:
        (line,) = [line for line in server.log if line.startswith("gRPC at ")]
        channel = stack.enter_context(grpc.insecure_channel(line.split()[-1]))
        stub = stubs.HealthStub(channel)
        watch = stub.Watch(health.HealthCheckRequest())
        assert next(watch).status == health.HealthCheckResponse.SERVING
        streams = [
            stack.enter_context(
                closing(server.connect(b"".join(sent(path, body | {"stream": True}))))
            )
            for path, body in BODIES.items()
        ]
        server.until(running=len(BODIES))
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == health.HealthCheckResponse.NOT_SERVING
        ready = server.http.get("/ready")
        refused = server.http.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"])
        for answer in (ready, refused):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1000")
        assert server.http.get("/health").status_code == 200
        assert (
            stub.Check(health.HealthCheckRequest()).status == health.HealthCheckResponse.NOT_SERVING
        )
        for path, connection in zip(BODIES, streams):
            mark = {"/v1/responses": b"response.completed", "/v1/messages": b"message_stop"}
            read_until(connection, mark.get(path, b"[DONE]"))
        assert server.wait_end() == 0
    assert any("5 requests go on for 1000 s at most" in line for line in server.log)
