"""What `CacheManager` asks of the tiers below the device, and the answer where there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from phloem.mem_pool.report import HostReport
from phloem.mem_pool.slots import Slots
from phloem.mem_pool.tree import PrefixTree, TreeHandle, TreeKey

Take = Callable[[int], "Slots | None"]
"""Fresh device slots for so many tokens, evicting if need be; None: there is no room."""
Give = Callable[[Slots], None]
"""Takes device slots back."""


@dataclass(slots=True)
class TierStats:
    """What the tiers below the device did, in tokens, since they were made."""

    backed_up: int = 0
    """Copied to the host."""
    loaded: int = 0
    """Brought back to the device, from wherever."""
    restored: int = 0
    """Read from the store into the host."""
    given_up: int = 0
    """Copies to the host that were ended because their memory was needed."""


class Tiers(Protocol):
    """Where KV is kept beside the device. `HostTier` is one."""

    stats: TierStats

    def counts(self) -> dict[str, int]:
        """What is there and what was done since the start, by names that say the unit."""
        ...

    @property
    def busy(self) -> bool:
        """Whether copies are in flight, so that there is something to pump for."""
        ...

    def peek(self, key: TreeKey) -> int:
        """Tokens that `match` would bring. Changes nothing."""
        ...

    def match(self, key: TreeKey, take: Take, give: Give) -> TreeHandle:
        """The longest prefix of a key that is cached anywhere, on the device now.

        Less than was found, where there is no room for it or a copy fails.
        """
        ...

    def pump(self, wait: float = 0.0) -> bool:
        """Go on with the copies, waiting for the next one `wait` seconds at most.

        Returns:
            Whether something was let go of for them.
        """
        ...

    def settle(self) -> None:
        """End what is in flight, copied or not, so that it pins nothing."""
        ...

    def forget(self, forget: Callable[[], Iterable[Slots]]) -> Iterable[Slots]:
        """Call a method of the tree that lets go of something in all tiers.

        Returns:
            The slots of the device; those of other tiers are free.
        """
        ...

    def check(self) -> HostReport | None:
        """Who has the slots of the host; None if there are none."""
        ...

    def quarantine(self, slots: Slots) -> None:
        """Take slots of the host out of use."""
        ...

    def keep(self) -> None:
        """Have written what is on its way to a disk; nothing more gets there. From any thread."""
        ...

    def close(self) -> None:
        """End what was started; nothing else is called any more."""
        ...


class DeviceOnly:
    """No tiers below the device: the tree's own answers."""

    busy = False

    def __init__(self, tree: PrefixTree) -> None:
        self.stats = TierStats()
        self._tree = tree

    def counts(self) -> dict[str, int]:
        """Nothing is there."""
        return {}

    def peek(self, key: TreeKey) -> int:
        """What the tree holds."""
        return self._tree.peek(key)

    def match(self, key: TreeKey, take: Take, give: Give) -> TreeHandle:
        """What the tree holds."""
        return self._tree.match(key)

    def pump(self, wait: float = 0.0) -> bool:
        """Nothing is copied."""
        return False

    def settle(self) -> None:
        """Nothing is in flight."""

    def forget(self, forget: Callable[[], Iterable[Slots]]) -> Iterable[Slots]:
        """There is one tier."""
        return forget()

    def check(self) -> HostReport | None:
        """There is no host tier."""
        return None

    def quarantine(self, slots: Slots) -> None:
        """There are none."""

    def keep(self) -> None:
        """Nothing is on its way."""

    def close(self) -> None:
        """Nothing was started."""
