"""The machine's peaks as seen so far: what others take of its cores for a while is no limit of it.

Owns when probes run again: a few times at the start while threads lack cores, then now and then
between what is measured. The best of all counts, so a peak is known only when all is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TypeVar

from benchmarks.kernels.machine import Machine, Probed

_T = TypeVar("_T")
_FEW_S, _AGAIN_S = 0.05, 5.0
"""How long a probe takes between measurements, and how far they are apart."""
_TRIES, _PAUSE_S = 5, 0.3
_ENOUGH = 0.85
"""Of a core for each thread: with so much of it a probe saw the peak."""
_RISE = 1.02
"""What is told once more."""


class Peaks:
    """The best that `probe`, a function of seconds, has seen."""

    def __init__(self, probe: Callable[[float], Probed], seconds: float) -> None:
        """Looks at once, for about `seconds`, again if threads had to share cores."""
        self._probe = probe
        self._few = min(seconds, _FEW_S)
        self.machine, self.cores = probe(seconds)
        self._looked = time.perf_counter()
        for _ in range(_TRIES - 1):
            if self.complete:
                break
            time.sleep(min(seconds, _PAUSE_S))
            self._look()

    @property
    def complete(self) -> bool:
        """Whether each thread had a core of its own in one of the probes."""
        return self.cores >= _ENOUGH * self.machine.threads

    def now(self) -> Machine:
        """The best so far; looks again if it has not for a while."""
        if time.perf_counter() - self._looked > _AGAIN_S:
            self._look()
        return self.machine

    def settled(
        self, before: Machine, found: Sequence[Callable[[Machine], _T]], tell: Callable[[_T], None]
    ) -> list[_T]:
        """All that was `found`, by the peaks of now; told if they rose since `before`."""
        self._look()
        figures = [one(self.machine) for one in found]
        if rose(before, self.machine):
            for one in figures:
                tell(one)
        return figures

    def _look(self) -> None:
        machine, cores = self._probe(self._few)
        self.machine, self.cores = better(self.machine, machine), max(self.cores, cores)
        self._looked = time.perf_counter()


def better(one: Machine, other: Machine) -> Machine:
    """The best of both in each."""
    return Machine(**{f.name: max(getattr(one, f.name), getattr(other, f.name)) for f in _RATES})


def rose(before: Machine, now: Machine) -> bool:
    """Whether a share of a peak would be another number now."""
    return any(getattr(now, f.name) > _RISE * getattr(before, f.name) for f in _RATES)


_RATES = fields(Machine)
