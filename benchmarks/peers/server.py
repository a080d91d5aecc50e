"""A server's process: start, first answer, memory, end.

Owns the process with all its descendants, and its log; who asks it for what is `load`'s business.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.peers.contestant import SERVED_NAME, Launch
from benchmarks.peers.machine import tree

_POLL_SECONDS = 0.05
_SAMPLE_SECONDS = 0.5
_ANSWER_SECONDS = 120.0
_SECONDS_TO_END = 20.0
_TAIL = 15
"""Lines of its log that are told of a server that failed."""


class ServerFailed(Exception):
    """A server did not come up, or ended; with the end of its log."""


class RunningServer:
    """A server that has answered."""

    def __init__(
        self, process: subprocess.Popen[bytes], url: str, log: Path, started: float
    ) -> None:
        self.pid = process.pid
        self.url = url
        self.startup_s = 0.0
        """From its start to its first answer."""
        self._process = process
        self._log = log
        self._started = started

    def wait_ready(self, timeout: float) -> None:
        """Ask for a token until there is one.

        Raises:
            ServerFailed: it ended, or did not answer in time.
        """
        body = {"model": SERVED_NAME, "prompt": "Hi", "max_tokens": 1, "temperature": 0}
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        problem: str | None = "it was not asked"
        while problem and self._age() < timeout and self._process.poll() is None:
            problem = _problem(request)
            if problem:
                time.sleep(_POLL_SECONDS)
        self.startup_s = self._age()
        if (status := self._process.poll()) is not None:
            problem = f"it ended with status {status}"
        if problem:
            raise ServerFailed(f"no answer after {self.startup_s:.0f} s: {problem}\n{self._end()}")

    def _age(self) -> float:
        return time.perf_counter() - self._started

    def _end(self) -> str:
        """Its last words."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_TAIL:])

    def pss_mib(self) -> float | None:
        """Memory of the process tree, shared pages counted once; None where nobody tells.

        It makes the system walk through all pages, so ask between measurements.
        """
        return _sum_mib(self.pid, "pss")

    def stop(self) -> None:
        """End it and all its descendants."""
        left = tree(self.pid)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_END)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, _SECONDS_TO_END)
        self._process.wait()


@contextmanager
def running(launch: Launch, log: Path, timeout: float) -> Iterator[RunningServer]:
    """Start a server on a free port, and end it afterwards.

    Raises:
        ServerFailed: it did not come up within `timeout` seconds.
    """
    port = _free_port()
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                launch.at(port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **launch.environment},
                start_new_session=True,
            )
        except OSError as error:
            raise ServerFailed(f"{launch.command[0]} cannot be run: {error}") from error
    server = RunningServer(process, f"http://127.0.0.1:{port}", log, started)
    try:
        server.wait_ready(timeout)
        yield server
    finally:
        server.stop()


class PeakMemory:
    """The most resident memory of a process tree, sampled; a context manager.

    Pages that processes share are counted for each of them.
    """

    def __init__(self, pid: int) -> None:
        self.rss_mib = 0.0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.rss_mib = max(self.rss_mib, _sum_mib(self._pid, "rss") or 0.0)
            if self._ended.wait(_SAMPLE_SECONDS):
                return


def _problem(request: urllib.request.Request) -> str | None:
    """Why there is no answer; None if there is."""
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:
            json.load(response)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
    return None


def _sum_mib(pid: int, kind: str) -> float | None:
    total = 0
    for process in tree(pid):
        with suppress(psutil.Error):
            memory = process.memory_info() if kind == "rss" else process.memory_full_info()
            if not hasattr(memory, kind):
                return None
            total += getattr(memory, kind)
    return total / 2**20


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
