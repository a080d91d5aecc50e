"""How soon a thread that wakes up gets a core from one that computes.

A step of the model keeps all cores busy, and each token goes through two more processes and the
threads of their sockets. Linux lets who wakes up wait until the thread that runs has had its time
slice, which most kernels look at every four milliseconds. A thread whose own slice is shorter comes
at once, and gets no more of the processor by that (EEVDF with `PREEMPT_SHORT`; since Linux 6.12
`sched_setattr` takes the slice of an ordinary thread, without privileges).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_SYSCALLS = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""Of `sched_setattr`, for which the C library has no function, by machine, in 64 bits."""
_SHORT_NS = 100_000
"""The shortest that the kernel takes."""
_USUAL = 0
"""The kernel's own."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr`: size, policy, flags, nice, priority, runtime, deadline, period."""


def come_soon() -> bool:
    """Give the calling thread the shortest slice, and those that it starts from then on.

    Whether the system took it; a kernel before 6.12 does, and nothing comes of it. A thread for
    which somebody chose another scheduling policy is left alone.
    """
    return _set(_SHORT_NS)


def come_as_usual() -> bool:
    """Give it the kernel's own slice: for who computes."""
    return _set(_USUAL)


def _set(nanoseconds: int) -> bool:
    number = _SYSCALLS.get(platform.machine())
    if sys.platform != "linux" or number is None or sys.maxsize < 1 << 32:
        return False
    try:
        policy = os.sched_getscheduler(0)
        nice = os.getpriority(os.PRIO_PROCESS, 0)
    except OSError:  # a sandbox forbids it, or a C library does not have it
        return False
    if policy != os.SCHED_OTHER:
        return False
    size = _ATTRIBUTES.size
    attributes = _ATTRIBUTES.pack(size, policy, 0, nice, 0, nanoseconds, 0, 0)
    return ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0
