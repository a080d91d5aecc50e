"""The books of one tier: which nodes have a copy there, what is locked, what goes first.

Owns the copies and their counts; it neither shapes the tree nor decides when something goes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

from .key import TOKEN_BYTES
from .leaves import LeafIndex
from .node import Copy, Node
from .policy import EvictionPolicy
from .tier import Tier
from .values import ValueAdapter


class Ledger:
    """Copies of one tier. `counts` is (evictable, protected) in tokens.

    The counts are one tuple, replaced whole, so that a reader in another thread never sees half a
    change.
    """

    def __init__(self, tier: Tier, policy: EvictionPolicy, adapter: ValueAdapter) -> None:
        self.tier = tier
        self.adapter = adapter
        self.leaves = LeafIndex(policy)
        self.counts = (0, 0)
        self._attribute = tier.name.lower()
        self.of: Callable[[Node], Copy | None] = attrgetter(self._attribute)

    def add(self, node: Node, values: Any) -> None:
        """Give `node` a copy with `values`; its parent has one."""
        above = node.parent
        parent = None if above is None else self.of(above)
        assert parent is not None, f"{above} above {node} has no copy in the {self._attribute} tier"
        copy = Copy(node, values, parent)
        setattr(node, self._attribute, copy)
        parent.children += 1
        self.leaves.discard(parent)
        self.leaves.add(copy)
        self._account(node.length)

    def remove(self, copy: Copy) -> Any:
        """Take an unlocked copy without copies below it out; returns its values."""
        parent, node = copy.parent, copy.node
        assert parent is not None, f"{copy} belongs to a root or was removed before"
        self.leaves.discard(copy)
        setattr(node, self._attribute, None)
        gone, copy.values, copy.parent = copy.values, None, None
        parent.children -= 1
        if not parent.children and not parent.locks and parent.parent is not None:
            self.leaves.add(parent)
        self._account(-node.length)
        return gone

    def trim(self, copy: Copy, keep: int) -> Any:
        """Let the values past the first `keep` go, before the node's tokens do."""
        kept, gone = self.cut(copy.node, keep)
        copy.values = kept
        self._account(keep - copy.node.length)
        return gone

    def cut(self, node: Node, tokens: int) -> tuple[Any, Any]:
        """The values of a node's first `tokens` and those of the rest; changes nothing."""
        copy = self.of(node)
        if copy is None:
            return None, None
        cut = self.adapter.cut
        return cut(copy.values, 0, tokens), cut(copy.values, tokens, node.length)

    def split(self, upper: Node, lower: Node, values: tuple[Any, Any]) -> None:
        """Give `upper` and `lower` their parts of the values of `lower`, as `cut` gave them."""
        copy = self.of(lower)
        if copy is None:
            return
        head = Copy(upper, values[0], copy.parent)
        head.locks = copy.locks
        head.copying = copy.copying
        head.children = 1
        copy.values = values[1]
        copy.parent = head
        setattr(upper, self._attribute, head)

    def lock(self, copy: Copy) -> None:
        """Protect a copy and all above it."""
        gained = 0
        here = copy
        while (parent := here.parent) is not None:
            if not here.locks:
                gained += len(here.node.data)
                if here.entry is not None:
                    self.leaves.discard(here)
            here.locks += 1
            here = parent
        if gained:
            gained //= TOKEN_BYTES
            self._account(-gained, gained)

    def unlock(self, copy: Copy) -> None:
        """Take one lock back."""
        lost = 0
        here = copy
        while (parent := here.parent) is not None:
            here.locks -= 1
            if not here.locks:
                lost += len(here.node.data)
                if not here.children:
                    self.leaves.add(here)
            here = parent
        if lost:
            lost //= TOKEN_BYTES
            self._account(lost, -lost)

    def path(self, copy: Copy, start: int = 0) -> list[Copy]:
        """The copies from position `start`, where one begins, down to `copy`."""
        found: list[Copy] = []
        here = copy
        while here.node.end > start:
            found.append(here)
            here = cast("Copy", here.parent)
        found.reverse()
        return found

    def values(self, copy: Copy, start: int = 0) -> Any:
        """The values of the tokens from `start` to the end of `copy`, joined."""
        return self.adapter.join([each.values for each in self.path(copy, start)])

    def _account(self, evictable: int, protected: int = 0) -> None:
        self.counts = (self.counts[0] + evictable, self.counts[1] + protected)
