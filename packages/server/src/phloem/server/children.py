"""The server's child processes: how they are started, watched and ended, on both sides.

A child learns what to do from its standard input and lives as long as that stays open: however its
parent ends, the child ends at once. The parent learns of a child's death from a thread that waits
for it. What a child does is its own module's business.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from phloem.server.config import ServerArgs
from phloem.server.ipc import Endpoints
from phloem.server.observability.logs import set_up_logs
from phloem.server.time_slice import come_soon

SCHEDULER = "phloem.server.scheduler_process"
DETOKENIZER = "phloem.server.detokenizer_process"

_SECONDS_TO_END = 2.0
_GOODBYE = b"."
"""What a parent that ends its child says last."""

_ENVIRONMENT = {"GOMP_SPINCOUNT": "1000"}
"""Where the user has not set it. The threads of a computation wait for each other by spinning.
With every core to themselves, spinning long is about a fifth faster; but where another process
takes a core, be it one of ours, each of many waits then lasts as long as that one's time slice,
and a model step takes ten times as long and more. This is the count that GNU's OpenMP takes by
itself when it knows that it has more threads than cores.
"""


class ChildConfig(msgspec.Struct, frozen=True):
    """What a child is told."""

    args: ServerArgs
    tokenizer_folder: str
    endpoints: Endpoints
    log_level: str
    spawned: float
    """When, on the monotonic clock, which processes share."""
    log_format: str = "text"
    watchdog_seconds: float = 0.0
    """What a turn of a loop may take; 0: any time."""
    watchdog_exits: bool = False


# In the child.


def enter_child(name: str, at_end: Callable[[], None] = lambda: None) -> ChildConfig:
    """Become a child: read the config, log to standard error, and end with the parent.

    `at_end` is called, in a thread of ours, when a parent that has not died ends the child; it has
    a second or so.

    Ctrl-C is left to the parent, which ends its children in its own time. A crash in native code
    writes the stacks of all threads to standard error, and so does SIGUSR1.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    come_soon()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(sys.stdin.fileno(), 1)  # what comes behind the line is for the guard
        if not part:
            raise SystemExit("the parent ended before it said what to do")
        line += part
    config = msgspec.json.decode(line, type=ChildConfig)
    set_up_logs(name, config.log_level, config.log_format)
    guard = threading.Thread(
        target=_end_with_parent,
        args=(config.endpoints.folder, at_end),
        name=f"{name}-guard",
        daemon=True,
    )
    guard.start()
    return config


def _end_with_parent(folder: str, at_end: Callable[[], None]) -> None:
    if os.read(sys.stdin.fileno(), 1) == _GOODBYE:
        try:
            at_end()
        except Exception:  # nothing keeps a child from ending
            logging.getLogger(__name__).exception("something was not ended in order")
    else:
        # A parent that was killed could not clean up. One that was not does so when all of its
        # children have ended: before, one of them may be about to make its socket there.
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


# In the parent.


def main_of(module: str) -> list[str]:
    """A command that calls `main()` of a module, with this interpreter and search path.

    `python -m` would look for modules in the current folder first.
    """
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"
    return [sys.executable, "-c", code]


class Ahead:
    """A child's process that has been started before it is known what to tell it."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._process: subprocess.Popen[bytes] | None = _started(module)

    def take(self) -> subprocess.Popen[bytes] | None:
        """The process, which is the caller's from then on; None: somebody has it."""
        process, self._process = self._process, None
        return process

    def drop(self) -> None:
        """Kill it, if nobody took it."""
        process = self.take()
        if process is not None:
            process.kill()
            process.communicate()


@contextmanager
def started_ahead(module: str) -> Iterator[Ahead]:
    """A process for a `Child`, which imports what it needs while this one does the same."""
    ahead = Ahead(module)
    try:
        yield ahead
    finally:
        ahead.drop()


def _started(module: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        main_of(module),
        stdin=subprocess.PIPE,
        # Standard output is the parent's, and so is the terminal's Ctrl-C.
        stdout=2,
        start_new_session=True,
        env=_ENVIRONMENT | os.environ,
    )


class Child:
    """A child process that runs a module's `main`."""

    def __init__(
        self,
        name: str,
        module: str,
        config: ChildConfig,
        died: Callable[[str], None],
        ahead: Ahead | None = None,
    ) -> None:
        """Start it, or take the one that was started ahead for the same module; `died` is called
        with a sentence, in a thread of ours, should it end early.
        """
        self.name = name
        self._died = died
        self._ending = False
        process = ahead.take() if ahead is not None and ahead.module == module else None
        self._process = process or _started(module)
        assert self._process.stdin is not None, "it was made as a pipe"
        self._stdin = self._process.stdin
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{name}", daemon=True)
        self._watcher.start()
        with suppress(BrokenPipeError):  # the watcher tells of its death
            self._stdin.write(msgspec.json.encode(config) + b"\n")
            self._stdin.flush()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._watcher.is_alive()

    def end(self) -> None:
        """Let it end, without waiting for it."""
        self._ending = True
        with suppress(BrokenPipeError):
            if not self._stdin.closed:
                self._stdin.write(_GOODBYE)
            self._stdin.close()

    def join(self, timeout: float = _SECONDS_TO_END) -> None:
        """Wait until it has ended; it is killed if that takes longer than `timeout` seconds."""
        self._watcher.join(timeout)
        if self.running:
            self._process.kill()
            self._watcher.join()

    def _watch(self) -> None:
        status = self._process.wait()
        if not self._ending:
            self._died(f"the {self.name} process died ({_cause(status)})")


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status}, {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
