"""What a worker may use: `Limits`, and how the system is made to hold a worker to them.

The system has compiling yield to other processes; it bounds memory where there is `/proc`, and
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

from phloem.grammar.errors import ConstraintTooComplex, GrammarError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_MIB = 1 << 20

LOWEST = 19
"""The lowest priority, as `nice` counts them."""

BRIEF_PATIENCE = 3
"""How much longer by the clock a constraint may take that has used little processor time: the
machine is to blame, not the constraint, unless it waits for something that never comes."""

SLOWDOWN = 4
"""After how many times `brief_seconds` by the clock a constraint counts as one that takes long when
others wait for its worker. What it may use does not depend on that."""


class TookTooLong(ConstraintTooComplex):
    """A constraint used its time up; on a less busy machine it might not."""


class Crashed(GrammarError):
    """A constraint crashed the processes that compiled it."""


class Overloaded(RuntimeError):
    """Too many constraints are being compiled; later there may be fewer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a compile service."""

    workers: int = 2
    """Processes that compile at once; each is started when first needed. With two or more, one of
    them is always for constraints that have used no more than `brief_seconds`."""
    seconds: float = 10.0
    """Processor time that one constraint may take, which on a busy machine is less than passes by
    the clock. Waiting for a worker, and loading a library, are not counted."""
    patience: float = 2.0
    """By the clock a constraint may take this many times `seconds` once it has used more than
    `brief_seconds` of processor time; before, `BRIEF_PATIENCE` times as long."""
    nice: int = 10
    """Priority of compiling at first, from 0, that of this process, to 19, the lowest."""
    brief_seconds: float = 0.5
    """After how much processor time compiling goes on at the lowest priority, and yields its worker
    to others if there are no two: what is quickly compiled should not wait for what is not."""
    waiting: int = 256
    """How many constraints may wait for a worker beyond those that find one free."""
    waiting_long: int = 16
    """How many more may wait that have used more than `brief_seconds` and had to yield."""
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
    late_seconds: float = 5.0
    """The same, for one that took too long or crashed its workers: the next time the machine may be
    less busy, or in better order."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers is {self.workers}: somebody must compile, give 1 or more")
        if not 0 <= self.nice <= LOWEST:
            raise ValueError(f"nice is {self.nice}: give a priority from 0 to {LOWEST}")
        for name in ("seconds", "start_seconds"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value:g}: give a time of more than 0 seconds")
        if not 1 <= self.patience < math.inf:
            raise ValueError(
                f"patience is {self.patience:g}: a constraint takes its processor time by the "
                "clock at least, give 1 or more"
            )
        for name in (
            "brief_seconds",
            "waiting",
            "waiting_long",
            "memory_bytes",
            "cache_bytes",
            "store_bytes",
            "error_seconds",
            "late_seconds",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name):g}: give 0 or more")


def lower_this_thread(nice: int) -> None:
    """Let the calling thread, and those that it will start, yield to others, as far as it may.

    At 10 it gets about a tenth of a processor that another wants too; at 19 a seventieth. It cannot
    be raised again without privileges. Linux alone has priorities of threads: elsewhere the whole
    process yields from then on. There the thread is one of batch work as well, which waits for the
    others when it wakes up, even if its parent need not.
    """
    if hasattr(os, "setpriority"):
        with suppress(OSError):  # a sandbox forbids it
            os.setpriority(os.PRIO_PROCESS, 0, nice)
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def lower_other_threads(pid: int) -> None:
    """Give all threads of a process but its main thread the lowest priority, where Linux rules.

    Not `SCHED_IDLE`: on a busy machine that is no processor time at all, and a constraint that
    needs a little more than others would always fail there.
    """
    with suppress(OSError):  # there is no /proc, or the process has ended
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            if thread != pid:
                with suppress(OSError):  # it has ended, or a sandbox forbids it
                    os.setpriority(os.PRIO_PROCESS, thread, LOWEST)


def set_session_priority(pid: int, nice: int) -> None:
    """Set the priority of the session that a process leads.

    Linux may share processors between sessions first, each of which it calls an autogroup, and only
    then between the threads of one: otherwise a worker would take half of a processor from a server
    in another session, however nice its threads are.
    """
    autogroup = Path(f"/proc/{pid}/autogroup")
    with suppress(OSError):
        if not autogroup.exists() or os.getsid(pid) != pid:
            return
        try:
            autogroup.write_text(str(nice), encoding="ascii")
        except BlockingIOError:  # who has no privileges may set it ten times a second
            time.sleep(0.1)
            autogroup.write_text(str(nice), encoding="ascii")


def processor_seconds(pid: int) -> float | None:
    """Processor time that a process has used; None where the system does not tell, or it has
    ended."""
    try:
        # The id of another process's clock, as clock_getcpuclockid(3) makes it on Linux.
        return time.clock_gettime((~pid << 3) | 2)
    except (OSError, AttributeError):
        return None


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
