"""Fits the simulator's cost model to what was measured of a server.

Least squares over relative errors, with no coefficient below zero: no work gives time back. Owns
the arithmetic; the probes that measure are `phloem.server.bench.probes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from phloem.scheduler.simulation import CostModel

_LEAST_STEP = 1e-6
"""Seconds; where the measurements leave nothing for a step itself."""


@dataclass(frozen=True, slots=True)
class Work:
    """What was done in a measured time, by the coefficients of `CostModel`, in their order."""

    step: float = 0.0
    """Steps."""
    prefill_token: float = 0.0
    prefill_pair: float = 0.0
    decode_row: float = 0.0
    decode_context: float = 0.0
    request: float = 0.0
    """Requests whose way to the server and back is in the time."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured time, what was done in it, and how it was come by."""

    probe: str
    seconds: float
    work: Work


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost model and what it says of each observation."""

    cost_model: CostModel
    observations: tuple[Observation, ...]
    predicted: tuple[float, ...]
    """Seconds of each observation, by the model."""

    @property
    def mean_error(self) -> float:
        """Of the relative errors, regardless of sign."""
        return float(np.mean([abs(error) for error in self.errors]))

    @property
    def errors(self) -> tuple[float, ...]:
        """Of each observation, relative: 0.1 means that the model says 10 % too much."""
        return tuple(p / o.seconds - 1 for p, o in zip(self.predicted, self.observations))

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; `load_cost_model` of the simulator reads it."""
        return {
            "cost_model": self.cost_model.as_dict(),
            "mean_error": self.mean_error,
            "observations": [
                {"probe": o.probe, "seconds": o.seconds, "predicted": p}
                for o, p in zip(self.observations, self.predicted)
            ],
        }


def prefill_work(new: int, cached: int, chunk: int) -> Work:
    """The work before the first token of a lone request: `new` tokens after `cached` ones."""
    return Work(
        step=-(-new // chunk),
        prefill_token=new,
        prefill_pair=new * cached + new * (new + 1) / 2,
        request=1,
    )


def fit(observations: Sequence[Observation]) -> Fit:
    """The cost model that explains some observations best.

    Raises:
        ValueError: they are none, or say nothing about steps.
    """
    if not any(o.work.step for o in observations):
        raise ValueError("no observation has a step in it: nothing can be fitted")
    work = np.array([astuple(o.work) for o in observations])
    seconds = np.array([o.seconds for o in observations])
    found = _non_negative(work / seconds[:, None], np.ones(len(seconds)))
    names = [field.name for field in fields(Work)]
    values = dict(zip(names, found.tolist()))
    values["step"] = max(values["step"], _LEAST_STEP)
    model = CostModel(**values)
    predicted = work @ np.array([values[name] for name in names])
    return Fit(model, tuple(observations), tuple(predicted.tolist()))


def _non_negative(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The x >= 0 that makes |a x - b| least (Lawson and Hanson, Solving Least Squares Problems,
    1974, chapter 23), for the few columns that there are here.
    """
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    a = a / scale  # columns differ by many powers of ten
    x = np.zeros(a.shape[1])
    free = np.zeros(a.shape[1], np.bool_)
    for _ in range(3 * a.shape[1]):
        gain = np.where(free, -np.inf, a.T @ (b - a @ x))
        if gain.max() <= 1e-10:
            break
        free[gain.argmax()] = True
        while True:
            trial = np.zeros_like(x)
            trial[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            below = free & (trial <= 0)
            if not below.any():
                break
            # As far towards the trial as nothing gets negative; what is zero there stays out.
            step = (x[below] / (x[below] - trial[below])).min()
            x = x + step * (trial - x)
            free &= x > 1e-12
            x[~free] = 0.0
        x = trial
    return x / scale
