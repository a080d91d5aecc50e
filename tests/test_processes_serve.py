"""`phloem serve` as a process among others: how it starts, how it ends, and that nothing stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import httpx
import psutil
import pytest

from phloem.server.background import running_server
from phloem.server.children import main_of
from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs

ENDLESS = {"prompt": "abc", "max_tokens": 90_000, "ignore_eos": True, "model": "scripted"}
SHUTTING_DOWN = {
    "error": {
        "message": "the server is shutting down",
        "type": "service_unavailable_error",
        "param": None,
        "code": "service_unavailable",
    }
}


@pytest.fixture(scope="module")
def script(tiny_llama, tmp_path_factory):
    file = tmp_path_factory.mktemp("script") / "script.json"
    content = {
        "tokenizer": str(tiny_llama),
        "context_length": 100_000,
        "pool_tokens": 500_000,
        "responses": [
            {"prompt": "Say", "output": "hello"},
            {"prompt": "abc", "output": "x" * 90_000},
        ],
    }
    file.write_text(json.dumps(content))
    return f"scripted:{file}"


@pytest.fixture
def folders(monkeypatch):
    """Where the sockets' folders are made; the paths of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def serving(script, **options):
    args = ServerArgs(model=script, max_running_requests=8)
    return running_server(args, HttpArgs(port=0, served_model_name="scripted", **options))


@pytest.fixture
def server(script, folders):
    with serving(script) as running:
        yield running


def processes_of(server):
    """The server's child processes by name."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    names = ("scheduler", "detokenizer")
    found = {n: c for c in children for n in names if f"{n}_process" in " ".join(c.cmdline())}
    assert len(found) == len(children) == 2
    return found


def gone(children):
    return psutil.wait_procs(list(children.values()), timeout=10)[1] == []


def ask(server, body):
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


@contextmanager
def streaming(server, body):
    """The lines of a stream that has begun, and whose first event is read."""
    url, body = f"{server.url}/v1/completions", body | {"stream": True}
    with httpx.stream("POST", url, json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        yield chain([first], lines)


def completed(lines):
    """The text of a stream that ended well."""
    *events, done = (line.removeprefix("data: ") for line in lines if line)
    assert done == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def until_running(server, requests):
    while httpx.get(f"{server.url}/server_info", timeout=60).json()["state"]["running"] < requests:
        pass


def run_serve(*flags):
    command = [*main_of("phloem.server.cli"), "serve", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def starting(model):
    """A server whose processes exist, but that is not ready: loading torch takes long enough."""
    process = subprocess.Popen(
        [*main_of("phloem.server.cli"), "serve", "--model", str(model), "--port", "0"],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    children = []
    while len(children) < 2:
        children = psutil.Process(process.pid).children()
    return process, children


class TestStart:
    def test_it_says_what_the_start_took_and_then_its_address(self, server):
        *configuration, ready, serving = server.log
        assert ready.startswith("ready after ")
        assert "import the server" in ready
        assert "read the script" in ready
        assert serving == f"Phloem serves scripted at {server.url}"
        assert f"endpoints   http {server.url}, ui /ui, " in "\n".join(configuration)
        assert "kernels scripted" in "\n".join(configuration)
        answer = ask(server, {"model": "scripted", "prompt": "Say", "temperature": 0})
        assert answer.json()["choices"][0]["text"] == "hello"

    def test_a_model_that_is_not_there_is_one_sentence(self, folders):
        done = run_serve("--model", "./no-such-model", "--port", "0")
        assert done.returncode == 2
        error = done.stderr[done.stderr.index("Error: ") :]
        assert "There is no file or folder" in error
        assert "Traceback" not in done.stderr
        assert list(folders.iterdir()) == []

    def test_options_that_do_not_fit_the_model_are_a_usage_error(self, script, folders):
        flags = ("--model", script, "--context-length", "200000", "--port", "0")
        done = run_serve(*flags)
        assert (done.returncode, "more than the 100000 tokens" in done.stderr) == (2, True)
        assert "Traceback" not in done.stderr
        assert list(folders.iterdir()) == []

    def test_a_port_in_use_is_a_sentence(self, script, folders):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            done = run_serve("--model", script, "--port", port)
        assert (done.returncode, f"port {port}" in done.stderr) == (1, True)
        assert "choose another --host or --port" in done.stderr
        assert list(folders.iterdir()) == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_during_the_start_ends_it(self, tiny_llama, folders, number):
        process, children = starting(tiny_llama)
        process.send_signal(number)
        error = process.communicate(timeout=30)[1]
        assert "Phloem serves" not in error
        assert "Traceback" not in error
        assert process.returncode == 0
        assert gone(dict(enumerate(children)))
        assert list(folders.iterdir()) == []

    def test_a_process_that_dies_during_the_start_is_a_sentence(self, tiny_llama, folders):
        process, children = starting(tiny_llama)
        for child in children:
            if "scheduler_process" in " ".join(child.cmdline()):
                child.kill()
        error = process.communicate(timeout=30)[1]
        assert process.returncode == 1
        assert "Error: the scheduler process died (signal 9, SIGKILL) before it was ready" in error
        assert "Traceback" not in error
        assert gone(dict(enumerate(children)))
        assert list(folders.iterdir()) == []


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_leaves_nothing_behind(self, server, folders, number):
        children = processes_of(server)
        assert len(list(folders.iterdir())) == 1
        server.process.send_signal(number)
        assert server.process.wait(20) == 0
        assert gone(children)
        assert list(folders.iterdir()) == []

    @pytest.mark.parametrize("signals", [1, 2])
    def test_what_is_cut_off_hears_that_the_server_is_shutting_down(self, script, folders, signals):
        """Case AB-04: at the limit of the drain, or at a second signal."""
        # With two the drain would last for longer than the test may.
        with serving(script, drain_seconds=0.1 if signals == 1 else 1000) as server:
            children = processes_of(server)
            with ThreadPoolExecutor() as pool, streaming(server, ENDLESS) as lines:
                asked = pool.submit(ask, server, ENDLESS)
                until_running(server, 2)
                # Two of one kind could arrive as one.
                for number in (signal.SIGTERM, signal.SIGINT)[:signals]:
                    server.process.send_signal(number)
                answer = asked.result()
                *_, last = (line for line in lines if line)
            assert server.process.wait(20) == 0
            assert gone(children)
            server.stop()
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json() == json.loads(last.removeprefix("data: ")) == SHUTTING_DOWN
        assert not any("Traceback" in line for line in server.log)

    def test_a_second_signal_needs_no_scheduler(self, script, folders):
        with serving(script, drain_seconds=1000) as server:
            children = processes_of(server)
            with ThreadPoolExecutor() as pool:
                asked = pool.submit(ask, server, ENDLESS)
                until_running(server, 1)
                os.kill(children["scheduler"].pid, signal.SIGSTOP)
                server.process.send_signal(signal.SIGINT)
                server.process.send_signal(signal.SIGTERM)
                assert server.process.wait(20) == 0
                assert asked.result().status_code == 503
            assert gone(children)
            server.stop()
        assert not any("Traceback" in line for line in server.log)

    def test_while_it_drains_what_runs_goes_on_and_nothing_new_is_taken(self, script, folders):
        """Case AB-04."""
        long = ENDLESS | {"max_tokens": 8000, "temperature": 0}
        with serving(script, drain_seconds=1000) as server:
            children = processes_of(server)
            with streaming(server, long) as first, streaming(server, long) as second:
                server.process.send_signal(signal.SIGTERM)
                while (ready := httpx.get(f"{server.url}/ready", timeout=60)).status_code == 200:
                    pass
                refused = ask(server, ENDLESS)
                healthy = httpx.get(f"{server.url}/health", timeout=60)
                texts = [completed(lines) for lines in (first, second)]
            assert server.process.wait(20) == 0
            assert gone(children)
        assert (ready.status_code, refused.status_code) == (503, 503)
        assert ready.json() == refused.json() == SHUTTING_DOWN
        assert ready.headers["retry-after"] == refused.headers["retry-after"] == "1000"
        assert healthy.status_code == 200
        assert texts == ["x" * 8000] * 2

    def test_if_the_server_is_killed_its_children_end(self, server, folders):
        children = processes_of(server)
        server.process.kill()
        assert gone(children)
        assert list(folders.iterdir()) == []
