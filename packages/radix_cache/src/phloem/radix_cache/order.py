"""The order of requests that walks a prefix tree depth first, heaviest subtree first.

Owns the sorting only, over anything with a `parent`. Which nodes the requests matched is the
caller's business, and so is what to do with the order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol


class Linked(Hashable, Protocol):
    """A node of a tree that knows its parent; hashed and compared by identity."""

    @property
    def parent(self) -> Linked | None:
        """The node above; None at a root."""
        ...


def dfs_order(nodes: Iterable[Linked]) -> list[int]:
    """The indices of `nodes`, one node for each request, in depth-first order.

    Requests under one subtree come one after the other, so that what they share is computed and
    kept once. Of two subtrees of one node the one with more requests comes first; what ends at the
    node itself comes after its subtrees, so that of requests on one path the longest match is
    first. Ties, and requests at one node, keep the order given. A node without a parent (a root, or
    one that left its tree) is a tree of its own.

    Visits only the nodes given and those above them: O(sum of their depths), plus sorting.
    """
    requests: dict[Linked, list[int]] = {}
    below: dict[Linked | None, list[Linked]] = {}
    weight: dict[Linked, int] = {}
    for index, given in enumerate(nodes):
        requests.setdefault(given, []).append(index)
        node: Linked | None = given
        while node is not None:
            parent = node.parent
            if node not in weight:
                weight[node] = 0
                below.setdefault(parent, []).append(node)
            weight[node] += 1
            node = parent

    def heaviest_first(parent: Linked | None) -> list[Linked]:
        # `sorted` is stable and `below` is in the order of each subtree's first request.
        return sorted(below.get(parent, ()), key=lambda child: -weight[child])

    # Built from the back: a node's own requests, then its subtrees from the lightest on.
    order: list[int] = []
    stack = heaviest_first(None)
    while stack:
        last = stack.pop()
        order.extend(reversed(requests.get(last, ())))
        stack.extend(heaviest_first(last))
    order.reverse()
    return order
