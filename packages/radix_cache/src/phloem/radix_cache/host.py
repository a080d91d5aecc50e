"""Copies between the tiers: which nodes are due for a backup, and what comes back.

Owns the list of what is due and the pins of a copy in flight. It copies nothing itself: it names
what to copy, and is told how that went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .handles import Backup, Insertion, Load, Match, Transfer
from .ledger import Ledger
from .node import Copy, Node
from .observer import Observer
from .structure import Structure

if TYPE_CHECKING:
    from .tree import RadixCache


class HostTier(Observer):
    """Write-through from the device tier of a structure to its host tier, and loads back.

    Both tiers hold rooted prefixes of every path, so a node is backed up after its parent.
    """

    def __init__(
        self, cache: RadixCache, structure: Structure, host: Ledger, write_through: int
    ) -> None:
        if write_through < 1:
            raise ValueError(
                f"write_through {write_through} is less than 1: give the use at which a node is "
                "copied to the host; the insert that brings it is the first"
            )
        self._cache = cache
        self._structure = structure
        self._device = structure.device
        self._host = host
        self._write_through = write_through
        structure.observe(self)
        self._due: dict[Node, None] = {}
        self.backed_up_tokens = self.loaded_tokens = 0

    def used(self, node: Node) -> None:
        """A match or an insert covered `node` and all above it."""
        while node.parent is not None and node.host is None:
            if node.hits + 1 >= self._write_through:
                self._due[node] = None
            node = node.parent

    def unlinking(self, node: Node, evicted: bool) -> None:
        """What has left the tree is due no more."""
        self._due.pop(node, None)

    def cleared(self) -> None:
        """Nothing is due."""
        self._due.clear()

    def backups(self, limit: int | None) -> list[Backup]:
        """See `RadixCache.backups`."""
        found: list[Backup] = []
        tokens = 0
        while self._due and (limit is None or tokens < limit):
            node = next(iter(self._due))
            for each in self._missing_above(node):
                found.append(self._begin_backup(each))
                tokens += each.length
            self._due.pop(node, None)
        return found

    def backed_up(self, backup: Backup, host_values: Any) -> tuple[range, ...]:
        """See `RadixCache.backed_up`."""
        _check_length(host_values, backup.length, self._host, "backup")
        copies = self._device.path(self._copy_at(backup.node, self._device), backup.start)
        self._release(backup)
        nodes = [copy.node for copy in copies]
        declined = self._structure.adopt(self._host, nodes, host_values, backup.start)
        self.backed_up_tokens += backup.length - sum(map(len, declined))
        return declined

    def load(self, match: Match, device: Copy, host: Copy) -> Load:
        """See `RadixCache.load`."""
        self._device.lock(device)
        self._host.lock(host)
        return Load(self._cache, match.host_node, match.length, device, host)

    def loaded(self, load: Load, device_values: Any) -> Insertion:
        """See `RadixCache.loaded`."""
        _check_length(device_values, load.length, self._device, "load")
        nodes = [copy.node for copy in self._host.path(load.host, load.start)]
        self._release(load)
        declined = self._structure.adopt(self._device, nodes, device_values, load.start)
        self.loaded_tokens += load.length - sum(map(len, declined))
        return Insertion(self._cache, load.node, load.node.end, declined)

    def cancel(self, transfer: Transfer) -> None:
        """See `RadixCache.cancel`."""
        self._release(transfer)

    def values(self, transfer: Transfer) -> Any:
        """The values that are to be copied."""
        if isinstance(transfer, Backup):
            return self._device.values(transfer.device, transfer.start)
        return self._host.values(transfer.host, transfer.start)

    def _missing_above(self, node: Node) -> list[Node]:
        """The nodes down to `node` that have no host copy, present or on its way."""
        found: list[Node] = []
        while node.parent is not None and node.host is None:
            if node.device is not None and not node.device.copying:
                found.append(node)
            node = node.parent
        found.reverse()
        return found

    def _begin_backup(self, node: Node) -> Backup:
        device = self._copy_at(node, self._device)
        above: Node | None = node.parent
        while above is not None and above.host is None:
            above = above.parent
        assert above is not None, f"{node} has no root"
        assert above.host is not None, "the walk ends at a host copy, and every root has one"
        device.copying = True
        self._device.lock(device)
        self._host.lock(above.host)
        return Backup(self._cache, node, node.start, device, above.host)

    def _release(self, transfer: Transfer) -> None:
        if isinstance(transfer, Backup):
            for copy in self._device.path(transfer.device, transfer.start):
                copy.copying = False
        self._device.unlock(transfer.device)
        self._host.unlock(transfer.host)
        transfer.released = True

    def _copy_at(self, node: Node, ledger: Ledger) -> Copy:
        copy = ledger.of(node)
        assert copy is not None, f"{node} is pinned in the {ledger.tier.name.lower()} tier"
        return copy


def _check_length(values: Any, length: int, ledger: Ledger, what: str) -> None:
    given = ledger.adapter.length(values)
    if given != length:
        raise ValueError(
            f"{given} values were given back for a {what} of {length} tokens: give one for each, "
            "in order, or cancel the copy if it failed"
        )
