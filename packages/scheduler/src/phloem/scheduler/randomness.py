"""Counter-based randomness: a uniform number is a function of (seed, position), of nothing else.

So a request draws the same numbers alone or in any batch, after a retraction and on a retry.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BLOCK = 256
"""Seeds that are drawn at a time: one alone costs as much as all of these."""


def uniform(
    seeds: npt.NDArray[np.int64], positions: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position), both of shape `[n]`.

    SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) with
    the mixed seed as the stream and the position as the counter; the upper 53 bits become the
    fraction.
    """
    with np.errstate(over="ignore"):
        stream = _mix(seeds.astype(np.uint64) + _GOLDEN)
        bits = _mix(stream + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_seeds(base: int) -> Iterator[int]:
    """Seeds without end, for requests that bring none, from the engine's own `base` seed."""
    block = np.arange(_BLOCK, dtype=np.int64)
    for first in count(1, _BLOCK):
        drawn = uniform(np.full(_BLOCK, base, np.int64), block + first)
        yield from (drawn * 2.0**53).astype(np.int64).tolist()


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed
