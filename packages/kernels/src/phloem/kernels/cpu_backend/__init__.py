"""The op table in C++, for processors; whether it can run here, and how to make it.

The sources in `native` are compiled on first use, or when a wheel is built, into one library for
each instruction set, which Python calls through a C ABI.
"""

from __future__ import annotations

from phloem.kernels.base import Ops
from phloem.kernels.cpu_backend.library import library_status
from phloem.kernels.cpu_backend.machine import InstructionSet


def probe() -> tuple[bool, str]:
    """Whether the backend can run on this machine, and why not, or on what. Compiles nothing."""
    status = library_status()
    return status.usable, status.reason


def make_ops(threads: int | None = None, isa: InstructionSet | None = None) -> Ops:
    """The op table, with the options of `CpuOps`. Takes some seconds where it has to compile.

    Raises:
        BuildError: if it has to compile and cannot.
    """
    from phloem.kernels.cpu_backend.ops import CpuOps

    return CpuOps(threads, isa)
