"""The two ways in which memory bookkeeping can be found wrong, as exceptions; nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class OwnershipError(RuntimeError):
    """Something was given back by one who does not own it (any more): a slot, a row or a lease."""


class IntegrityError(RuntimeError):
    """`CacheManager.check` found slots that are lost, shared or in the wrong row."""


def shortened(ids: Sequence[int] | npt.NDArray[np.integer], limit: int = 8) -> str:
    """Ids for a message, the first `limit` of them: `[3, 4, 5, ... 12 in all]`."""
    shown = ", ".join(str(int(i)) for i in ids[:limit])
    return f"[{shown}, ... {len(ids)} in all]" if len(ids) > limit else f"[{shown}]"
