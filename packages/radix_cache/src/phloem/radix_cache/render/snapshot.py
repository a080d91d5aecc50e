"""What a picture of a tree shows: plain copies of its nodes, all of them or the heaviest.

Only reads, so it may run beside the writing thread: it raises nothing, and each node that it shows
was cached as shown at some moment of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, Final, NamedTuple

from ..key import TOKEN_BYTES, Namespace
from ..node import Copy, Node
from ..tier import Tier

if TYPE_CHECKING:
    from ..structure import Structure

SHOWN_TOKENS: Final = 6
"""How many of a node's tokens are shown, the first ones."""


class View:
    """A node, or the top of a namespace (without `data`), as it was."""

    __slots__ = (
        "data",
        "depth",
        "end",
        "hidden_nodes",
        "hidden_tokens",
        "hits",
        "id",
        "last_access",
        "locks",
        "nodes",
        "parent",
        "priority",
        "start",
        "tokens",
    )

    def __init__(
        self,
        node: Node,
        parent: View | None,
        start: int,
        data: bytes,
        end: int,
        copies: tuple[Copy | None, Copy | None],
    ) -> None:
        self.id = 0
        """Its place in the list of nodes shown."""
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.start = start
        self.end = end
        self.data = data[: SHOWN_TOKENS * TOKEN_BYTES]
        self.hits = node.hits
        self.priority = node.priority
        self.last_access = node.last_access
        self.locks = tuple(None if copy is None else copy.locks for copy in copies)
        """By tier; None where it has no copy."""
        self.nodes = 0 if parent is None else 1
        """It, and all nodes below it."""
        self.tokens = end - start
        """Its own tokens, and those of all nodes below it."""
        self.hidden_nodes = self.hidden_tokens = 0
        """Of those, the ones below it that are not shown."""


class Space(NamedTuple):
    """A namespace: its top, and its nodes in depth-first order."""

    namespace: Namespace
    top: View
    nodes: list[View]


class Snapshot(NamedTuple):
    """A tree."""

    page_size: int
    policy: str
    tiers: tuple[Tier, ...]
    sizes: tuple[tuple[int, int], ...]
    """Evictable and protected tokens, by tier."""
    now: float
    spaces: list[Space]


def take(tree: Structure, limit: int | None, now: float) -> Snapshot:
    """All of a tree, or the `limit` nodes that carry most tokens, their own and below them."""
    spaces = [_space(root.namespace, root) for root in list(tree.roots.values())]
    if limit is not None:
        spaces = _heaviest(spaces, limit)
    for at, view in enumerate(view for space in spaces for view in space.nodes):
        view.id = at
    return Snapshot(
        tree.page_size,
        tree.policy.name,
        tuple(ledger.tier for ledger in tree.ledgers),
        tuple(ledger.counts for ledger in tree.ledgers),
        now,
        spaces,
    )


def _space(namespace: Namespace, root: Node) -> Space:
    top = View(root, None, 0, b"", 0, (root.device, root.host))
    nodes: list[View] = []
    stack = [_children(root, top)]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            continue
        node, view = found
        nodes.append(view)
        stack.append(_children(node, view))
    for view in reversed(nodes):
        assert view.parent is not None, "only the top has no parent"
        view.parent.nodes += view.nodes
        view.parent.tokens += view.tokens
    return Space(namespace, top, nodes)


def _children(parent: Node, above: View) -> Iterator[tuple[Node, View]]:
    for page, first in list(parent.children.items()):
        child: Node | None = first
        while child is not None and parent.end == above.end:
            # Copies first: if they change after this, the tokens are cut before them or not at all.
            copies = (child.device, child.host)
            data, end = child.data, child.end
            if end - len(data) // TOKEN_BYTES == above.end:
                if any(copies):  # Without any it is about to be taken out.
                    yield child, View(child, above, above.end, data, end, copies)
                break
            # The writer split or trimmed it just now: look again who is there.
            child = parent.children.get(page)


def _heaviest(spaces: Iterable[Space], limit: int) -> list[Space]:
    # A node carries more tokens than any node below it, so the heaviest hang together.
    views = (view for space in spaces for view in space.nodes)
    shown = set(nlargest(limit, views, key=lambda view: view.tokens))
    chosen: list[Space] = []
    for space in spaces:
        for view in space.nodes:
            if view not in shown and (above := view.parent) and (above in shown or not above.depth):
                above.hidden_nodes += view.nodes
                above.hidden_tokens += view.tokens
        chosen.append(space._replace(nodes=[view for view in space.nodes if view in shown]))
    return chosen
