"""What becomes of everybody when a server of processes ends: one of them dies or hangs, or it is
asked to drain.
"""

from __future__ import annotations

import json
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest
from faulty_servers import BODIES, LONG, TOKEN, lasting_script, read_until, sent, serving


@pytest.fixture(scope="module")
def script(write_script):
    """A model that says x to everybody, for longer than anybody asks for."""
    return lasting_script(write_script)


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
        missing.rmdir()  # which the server has made
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
