"""What the machine can do at most: bytes read from memory, multiply-adds of floats and of bytes.

Owns the probes, which are part of the native library, and what a piece of work takes at least.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from benchmarks.kernels.timing import Call, best
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.linear import CpuLinear
from phloem.kernels.cpu_backend.structs import Weight
from phloem.kernels.cpu_backend.team import Team

READ_BYTES = 256 << 20
"""Far more than caches hold."""
_TASKS, _ITERATIONS = 64, 5000
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int


@dataclass(frozen=True, slots=True)
class Machine:
    """The best rates a second with so many threads. A multiply-add is two operations."""

    threads: int
    read: float
    """Bytes from memory."""
    fma: float
    """Operations on float32."""
    dot: float
    """Operations on int8."""


class Probed(NamedTuple):
    """What a probe saw."""

    machine: Machine
    cores: float
    """How many cores' worth its threads had while they multiplied."""


@dataclass(frozen=True, slots=True)
class Work:
    """What has to be done, however it is done."""

    bytes: float = 0.0
    """Read and written."""
    fma: float = 0.0
    dot: float = 0.0

    def times(self, count: int) -> Work:
        """So much of it."""
        return Work(count * self.bytes, count * self.fma, count * self.dot)

    def least(self, machine: Machine) -> float:
        """The seconds that the slowest part of it takes at least: the roof of the roofline."""
        return max(self._parts(machine).values())

    def bound(self, machine: Machine) -> str:
        """Which part that is: `memory`, `fma` or `dot`."""
        parts = self._parts(machine)
        return max(parts, key=lambda name: parts[name])

    def arithmetic(self, machine: Machine) -> float:
        """The seconds that its multiply-adds take at least."""
        parts = self._parts(machine)
        return parts["fma"] + parts["dot"]

    def _parts(self, machine: Machine) -> dict[str, float]:
        return {
            "memory": self.bytes / machine.read,
            "fma": self.fma / machine.fma,
            "dot": self.dot / machine.dot,
        }


class Probes:
    """The probes of one library on a team of its own."""

    def __init__(self, library: Library, threads: int) -> None:
        self._team = Team(library, threads)
        self._read = library.function("phloem_probe_read", _POINTER, _POINTER, ctypes.c_size_t)
        self._fma = library.function(
            "phloem_probe_fma", _POINTER, _INT, _INT, restype=ctypes.c_double
        )
        self._dot = library.function(
            "phloem_probe_dot", _POINTER, _INT, _INT, _INT, restype=ctypes.c_double
        )
        self._linears = library.function(
            *("phloem_probe_linears", _POINTER, ctypes.POINTER(Weight), _INT, _INT),
            *(_POINTER, _POINTER),
        )

    def machine(self, seconds: float) -> Probed:
        """Measure, for about `seconds` each."""
        memory = torch.ones(READ_BYTES // 4)
        team = self._team.handle
        work = (_TASKS, _ITERATIONS)
        operations = self._fma(team, *work), self._dot(team, *work, 0)
        cores = _Cores()
        read, fma, dot = best(
            [
                lambda: self._read(team, memory.data_ptr(), memory.nbytes),
                cores.during(lambda: self._fma(team, *work)),
                cores.during(lambda: self._dot(team, *work, 0)),
            ],
            seconds,
        )
        machine = Machine(
            self._team.threads, memory.nbytes / read, operations[0] / fma, operations[1] / dot
        )
        return Probed(machine, cores.had / cores.seconds)

    def linears(self, weights: Sequence[CpuLinear], rows: int) -> Call:
        """A call that multiplies `rows` rows with each of `weights`, and does nothing else."""
        parts = [part for weight in weights for part in parts_of(weight)]
        array = (Weight * len(parts))(*parts)
        # These bytes are a small number in each form that a linear reads.
        inputs = torch.full((rows, 4 * _padded(max(p.k for p in parts))), 0x3C, dtype=torch.uint8)
        out = torch.empty(rows, max(part.n for part in parts))
        kept = tuple(weights)  # they own what the structs point at

        def call() -> None:
            assert kept
            self._linears(
                *(self._team.handle, array, len(array), rows, inputs.data_ptr()), out.data_ptr()
            )

        return call


class _Cores:
    """How long calls took, and what processor time this process had meanwhile.

    Of threads that run, the system counts the time a tick at a time: only sums say something.
    """

    def __init__(self) -> None:
        self.seconds = self.had = 0.0

    def during(self, call: Call) -> Call:
        """`call`, which adds to both."""

        def timed() -> None:
            start, had = time.perf_counter(), time.process_time()
            call()
            self.had += time.process_time() - had
            self.seconds += time.perf_counter() - start

        return timed


_PART = 4096
"""Outputs at a time: all logits of a vocabulary would go to memory, which a step avoids."""
_PANEL = 16


def parts_of(linear: CpuLinear) -> Iterator[Weight]:
    """A weight in parts of `_PART` outputs; packed, its panels of outputs follow each other."""
    panel_bytes = linear.packed.nbytes // -(-linear.n // _PANEL)
    for first in range(0, linear.n, _PART):
        part = Weight.from_buffer_copy(linear.struct)
        part.n = min(_PART, linear.n - first)
        part.packed += first // _PANEL * panel_bytes
        if part.bias:
            part.bias += first * 4
        yield part


def _padded(k: int) -> int:
    """Whole groups of 32 inputs."""
    return -(-k // 32) * 32
