"""`phloem serve` as a process among others: how it starts, how it ends, and that nothing stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from phloem.server.background import running_server
from phloem.server.children import main_of
from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs

ENDLESS = {"prompt": "abc", "max_tokens": 90_000, "ignore_eos": True, "model": "scripted"}


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


@pytest.fixture
def server(script, folders):
    args = ServerArgs(model=script, max_running_requests=8)
    with running_server(args, HttpArgs(port=0, served_model_name="scripted")) as running:
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
        ready, serving = list(server.log)[-2:]
        assert ready.startswith("ready after ")
        assert "import the server" in ready
        assert "read the script" in ready
        assert serving == f"Phloem serves scripted at {server.url}"
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
        assert "Phloem serves" not in process.communicate(timeout=30)[1]
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

    def test_a_request_that_runs_too_long_is_aborted_after_a_signal(self, server):
        children = processes_of(server)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask, server, ENDLESS)
            until_running(server, 1)
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(20) == 0
            # Its client hears of it, as an answer or an error.
            assert asked.result().status_code in (200, 499, 500, 503)
        assert gone(children)

    def test_a_second_signal_waits_for_nothing(self, server):
        children = processes_of(server)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask, server, ENDLESS)
            until_running(server, 1)
            os.kill(children["scheduler"].pid, signal.SIGSTOP)
            # Two of one kind could arrive as one.
            server.process.send_signal(signal.SIGINT)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(20) == 0
            assert asked.exception() is not None or asked.result().status_code >= 500
        assert gone(children)

    def test_if_the_server_is_killed_its_children_end(self, server, folders):
        children = processes_of(server)
        server.process.kill()
        assert gone(children)
        assert list(folders.iterdir()) == []


class TestDeath:
    @pytest.mark.parametrize("name", ["scheduler", "detokenizer"])
    def test_of_a_process_fails_what_is_in_flight_and_ends_the_server(self, server, folders, name):
        children = processes_of(server)
        with (
            ThreadPoolExecutor() as pool,
            httpx.stream(
                "POST", f"{server.url}/v1/completions", json=ENDLESS | {"stream": True}, timeout=60
            ) as stream,
        ):
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            asked = pool.submit(ask, server, ENDLESS)
            until_running(server, 2)
            children[name].kill()
            answer = asked.result()
            assert answer.status_code == 503
            assert f"the {name} process died (signal 9, SIGKILL)" in answer.text
            events = [line.removeprefix("data: ") for line in lines if line]
            errors = [json.loads(event) for event in events[-2:] if event != "[DONE]"]
            assert "error" in errors[-1]
        assert server.process.wait(20) == 1
        assert gone(children)
        assert list(folders.iterdir()) == []
        assert any(f"the {name} process died" in line for line in server.log)
