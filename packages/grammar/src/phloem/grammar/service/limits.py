"""What a worker may use: `Limits`, and how the system is made to hold a worker to them.

The system has a worker yield to other processes; it bounds memory where there is `/proc`, and
processor time where there is `resource`. That a worker that takes too long is killed is `pool`'s.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_MIB = 1 << 20

LOWEST = 19
"""The lowest priority, as `nice` counts them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a compile service."""

    workers: int = 2
    """Processes that compile at once; each is started when first needed."""
    seconds: float = 10.0
    """How long a worker may take for one constraint; waiting for a worker is not counted."""
    nice: int = 10
    """Priority of workers at first, from 0, that of this process, to 19, the lowest."""
    brief_seconds: float = 0.5
    """After how long a worker goes on at the lowest priority: what is quickly compiled should not
    wait for a machine to be idle, and what is not should not slow others down."""
    memory_bytes: int = 1024 * _MIB
    """Address space that compiling one constraint may take beyond what the worker started with."""
    start_seconds: float = 120.0
    """How long a worker may take to start."""
    cache_bytes: int = 64 * _MIB
    """Compiled constraints kept in memory."""
    store_bytes: int = 256 * _MIB
    """Compiled constraints kept on disk."""
    error_seconds: float = 60.0
    """For how long a constraint that failed fails at once."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers is {self.workers}: somebody must compile, give 1 or more")
        if not 0 <= self.nice <= LOWEST:
            raise ValueError(f"nice is {self.nice}: give a priority from 0 to {LOWEST}")
        for name in ("seconds", "start_seconds"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value:g}: give a time of more than 0 seconds")
        for name in (
            "brief_seconds",
            "memory_bytes",
            "cache_bytes",
            "store_bytes",
            "error_seconds",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name):g}: give 0 or more")


def lower_priority(pid: int, nice: int) -> None:
    """Let a process, and the threads that it will start, yield to others, as far as it may.

    At 10 it gets about a tenth of a processor that others want too; at 19 close to nothing, and
    on Linux only what others leave. It cannot be raised again without privileges.

    Linux may share processors between sessions first, each of which it calls an autogroup, and only
    then between the processes of one. So of a process that leads a session, that is lowered too:
    otherwise it would take half of a processor from a server in another session, however nice it
    is.
    """
    if not hasattr(os, "setpriority"):
        return
    with suppress(OSError):  # it has ended, or, as below, a sandbox forbids it
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    if nice == LOWEST and hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        autogroup = Path(f"/proc/{pid}/autogroup")
        if autogroup.exists() and os.getsid(pid) == pid:
            autogroup.write_text(str(nice), encoding="ascii")


def forbid_core_dumps() -> None:
    """Leave no image of the memory on disk when a limit ends this process."""
    if resource is not None:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextmanager
def limited(seconds: float, memory_bytes: int) -> Iterator[None]:
    """Bound what this process may use inside the block.

    Memory beyond the limit cannot be had: Python raises `MemoryError`. Processor time beyond the
    limit, and a second more, ends the process; the service would have killed it before, but a
    worker that lost its service in the middle of native code must end too.
    """
    if resource is None:
        yield
        return
    space = address_space()
    bounds = {resource.RLIMIT_CPU: math.ceil(time.process_time() + seconds) + 1}
    if space is not None:
        bounds[resource.RLIMIT_AS] = space + memory_bytes
    before = {which: resource.getrlimit(which) for which in bounds}
    try:
        for which, bound in bounds.items():
            soft, hard = before[which]
            tightest = min([bound, *(x for x in (soft, hard) if x != resource.RLIM_INFINITY)])
            resource.setrlimit(which, (tightest, hard))
        yield
    finally:
        for which, limit in before.items():
            resource.setrlimit(which, limit)


def address_space() -> int | None:
    """Bytes of address space that this process takes; None where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
