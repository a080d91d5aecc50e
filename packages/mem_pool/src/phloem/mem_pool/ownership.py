"""Who claims each slot of one tier: finds the slots that several claim, or nobody."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from phloem.mem_pool.errors import shortened
from phloem.mem_pool.slots import SlotAllocator, Slots

_PADDING, _QUARANTINE = 1, 2
_NAMES = ("nobody", "the padding page", "the quarantine")


class Ownership:
    """One owner's name for every slot; remembers what a second owner claims.

    Slots in quarantine are known to be wrong: nothing is said of them.

    Attributes:
        problems: what was found, as sentences.
        suspects: the slots that are in several hands, or in none.
    """

    def __init__(self, slots: SlotAllocator) -> None:
        self.problems: list[str] = []
        self.suspects: list[Slots] = []
        self._names = [*_NAMES]
        self._details: dict[int, Callable[[int], str]] = {}
        self._owner = np.zeros(slots.num_slots, np.int32)
        self._num_padding = slots.page_size
        self._owner[: self._num_padding] = _PADDING
        self._owner[slots.quarantined_slots()] = _QUARANTINE

    def claim(self, name: str, *segments: Slots, detail: Callable[[int], str] | None = None) -> int:
        """Enter an owner of some slots; returns how many were claimed.

        Args:
            name: of the owner.
            segments: the slots, in parts.
            detail: says more of the owner of one slot, in case that something is wrong with it.
        """
        code = len(self._names)
        self._names.append(name)
        if detail is not None:
            self._details[code] = detail
        claimed = np.concatenate(segments) if segments else np.empty(0, np.int32)
        inside = (claimed >= 0) & (claimed < len(self._owner))
        if not inside.all():
            self.problems.append(
                f"{name} owns slots {shortened(claimed[~inside])}, which the pool does not have"
            )
        ids, counts = np.unique(claimed[inside], return_counts=True)
        sound = self._owner[ids] != _QUARANTINE
        ids, counts = ids[sound], counts[sound]
        if (counts > 1).any():
            twice = ids[counts > 1]
            self._suspect(twice, f"{self._named(code, twice)} owns", "more than once")
        before = self._owner[ids]
        for other in np.unique(before[before > 0]).tolist():
            shared = ids[before == other]
            names = f"{self._named(other, shared)} and {self._named(code, shared)}"
            self._suspect(shared, "", f"are owned by both {names}")
        self._owner[ids] = code
        return len(claimed)

    def find_lost(self) -> None:
        """Look for slots that nobody has claimed, once all have."""
        lost = np.flatnonzero(self._owner == 0).astype(np.int32)
        if len(lost):
            self._suspect(lost, "", "are owned by nobody")

    def suspected(self) -> Slots:
        """int32 [n], the slots that are not as they should be, the padding aside."""
        found: Slots = np.unique(np.concatenate([np.empty(0, np.int32), *self.suspects]))
        return found[found >= self._num_padding]

    def _suspect(self, slots: Slots, who: str, what: str) -> None:
        self.suspects.append(slots)
        self.problems.append(f"{who} slots {shortened(slots)} {what}".lstrip())

    def _named(self, code: int, slots: Slots) -> str:
        detail = self._details.get(code)
        return self._names[code] + (f" ({detail(int(slots[0]))})" if detail else "")
