"""A server in the background of a script, a notebook or a test: `phloem serve` as a subprocess.

Owns its command line, the wait until it is ready, and its end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import chain

from phloem.server.children import main_of
from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs

SERVING = "Phloem serves"
"""How the line begins that the server says when it is ready; it ends with its address."""

_SECONDS_TO_END = 15.0
_KEPT_LINES = 1000


class BackgroundServer:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: deque[str] = deque(maxlen=_KEPT_LINES)
        """The latest lines that it wrote to standard error."""
        self.url = ""
        """Its address, `http://host:port`."""
        self._said_all = threading.Event()
        """It is ready, or has ended."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self, timeout: float) -> None:
        """Wait until it can be asked.

        Raises:
            RuntimeError: it is not ready after `timeout` seconds, or has ended; with its messages.
        """
        self._said_all.wait(timeout)
        if not self.url:
            raise RuntimeError("the server did not start:\n" + "\n".join(self.log))

    def stop(self) -> int:
        """End it as Ctrl-C would, if it has not ended; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
        status = self.process.wait()
        # The last of its children has closed it by now, or soon.
        self._reader.join(_SECONDS_TO_END)
        return status

    def _read(self) -> None:
        assert self.process.stderr is not None, "it was made as a pipe"
        with self.process.stderr as lines:
            for line in lines:
                self.log.append(line.rstrip("\n"))
                if line.startswith(SERVING):
                    self.url = line.split()[-1]
                    self._said_all.set()
        self._said_all.set()


@contextmanager
def running_server(
    args: ServerArgs | None = None, http: HttpArgs | None = None, *, timeout: float = 120.0
) -> Iterator[BackgroundServer]:
    """Run `phloem serve` with these options, by default on a free port, and end it afterwards.

    Raises:
        RuntimeError: it did not start within `timeout` seconds; with its messages.
    """
    http = http or HttpArgs(port=0)
    flags = _flags(args or ServerArgs()) + _flags(http)
    process = subprocess.Popen(
        [*main_of("phloem.server.cli"), "serve", *flags],
        env=os.environ | _secrets(http),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    server = BackgroundServer(process)
    try:
        server.wait_ready(timeout)
        yield server
    finally:
        server.stop()


def _flags(options: ServerArgs | HttpArgs) -> list[str]:
    """The command line that says the same."""
    flags = []
    for field in fields(options):
        value, flag = getattr(options, field.name), "--" + field.name.replace("_", "-")
        if value == field.default or field.metadata["secret_env"] is not None:
            continue
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, tuple):
            flags += chain.from_iterable((flag, part) for part in value)
        else:
            flags += [flag, str(value)]
    return flags


def _secrets(options: HttpArgs) -> dict[str, str]:
    """What must not be on the command line, which others can read: the variables that say it."""
    said = {}
    for field in fields(options):
        value, name = getattr(options, field.name), field.metadata["secret_env"]
        if name is not None and value != field.default:
            said[name] = " ".join(value) if isinstance(value, tuple) else value
    return said
