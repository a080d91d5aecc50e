"""What the machine is, for reports and stamps; and how much of it others use meanwhile."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

BUSY_CORES = 0.15
"""More than so much of the machine used by others makes a measurement doubtful."""


def cpu_model() -> str:
    """The processor's name and, where the system tells them, which vector instructions it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in reversed(lines))
    said = {name.strip(): value.strip() for name, _, value in pairs}
    sets = sorted(flag for flag in said.get("flags", "").split() if _is_vector(flag))
    return f"{said.get('model name', platform.machine())} ({', '.join(sets)})"


def _is_vector(flag: str) -> bool:
    return flag in ("avx2", "fma") or flag.startswith(("avx512", "avx_", "amx"))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """The machine, as reports have it."""
    return {
        "processor": cpu_model(),
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


class Others:
    """Cores' worth of CPU that neither this process nor some process' tree uses."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since = time.perf_counter()
        self._used = self._unknown()

    def stop(self) -> float:
        """The mean since it was made."""
        seconds = time.perf_counter() - self._since
        return max(0.0, (self._unknown() - self._used) / seconds)

    def _unknown(self) -> float:
        """Seconds of CPU, of all time, that are of others."""
        all_of_it = psutil.cpu_times()
        idle = all_of_it.idle + getattr(all_of_it, "iowait", 0.0)
        # The guests' share is in the users' share already.
        guests = getattr(all_of_it, "guest", 0.0) + getattr(all_of_it, "guest_nice", 0.0)
        theirs = sum(map(_seconds, tree(self._pid)))
        return float(sum(all_of_it) - idle - guests) - theirs - _own()


def tree(pid: int) -> list[psutil.Process]:
    """A process and its descendants, those that are alive."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _seconds(process: psutil.Process) -> float:
    """CPU seconds, those of ended children as well."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    children = (getattr(times, f"children_{kind}", 0.0) for kind in ("user", "system"))
    return float(times.user + times.system + sum(children))


def _own() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)
