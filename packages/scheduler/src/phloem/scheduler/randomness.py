"""Counter-based randomness: a uniform number is a function of (seed, position), of nothing else.

So a request draws the same numbers alone or in any batch, after a retraction and on a retry.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


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


def draw_seed(base: int, index: int) -> int:
    """The seed of the `index`-th request that brought none, from the engine's own `base` seed."""
    drawn = uniform(np.array([base], np.int64), np.array([index], np.int64))
    return int(drawn[0] * 2.0**53)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed
