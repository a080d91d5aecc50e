"""How soon a thread that wakes up gets a core from one that computes.

A step of the model keeps all cores busy, and each token goes through two more processes and the
threads of their sockets. Linux lets who wakes up wait until the thread that runs has had its time
slice, which most kernels look at every four milliseconds. A thread whose own slice is shorter comes
at once (EEVDF with `PREEMPT_SHORT`;
since Linux 6.12 `sched_setattr` takes the slice of an ordinary thread, without privileges). It gets
no more of the processor by that.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_SYSCALLS = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""Of `sched_setattr`, for which the C library has no function, by machine."""
_SHORT_NS = 100_000
"""The shortest that the kernel takes."""
_USUAL = 0
"""The kernel's own."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr`: size, policy, flags, nice, priority, runtime, deadline, period."""


def come_soon() -> bool:
    """Give the calling thread the shortest slice, and those that it starts from then on.

    False where the system knows nothing of it.
    """
    return _set(_SHORT_NS)


def come_as_usual() -> bool:
    """Give it the usual slice again: for who computes."""
    return _set(_USUAL)


def _set(nanoseconds: int) -> bool:
    number = _SYSCALLS.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    if os.sched_getscheduler(0) != os.SCHED_OTHER:  # somebody knows better
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    size = _ATTRIBUTES.size
    attributes = _ATTRIBUTES.pack(size, os.SCHED_OTHER, 0, nice, 0, nanoseconds, 0, 0)
    return ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0
