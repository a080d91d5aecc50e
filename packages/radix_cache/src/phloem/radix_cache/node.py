"""One node of the prefix tree: the run of tokens on the edge into it, its state, its copies.

Owns no rule: the tree is the only writer. Eviction policies read the documented fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .key import TOKEN_BYTES, Namespace

if TYPE_CHECKING:
    from .event_log import NodeHashes
    from .ghosts import Shelves
    from .leaves import IndexEntry


class Copy:
    """A node's values in one tier. The copies of one tier form a tree of their own.

    That tree hangs from the root: a node has a copy in a tier only if its parent has one there.
    """

    __slots__ = ("children", "copying", "entry", "locks", "node", "parent", "values")

    node: Node
    values: Any
    """One value per token, in the form the tier's value adapter keeps."""
    parent: Copy | None
    """The parent node's copy in this tier; None at a root, and once the copy was let go."""
    children: int
    """How many children of the node have a copy in this tier."""
    locks: int
    """Locks and pins on this copy or below it."""
    copying: bool
    """Whether a copy of it to the other tier is in flight."""
    entry: IndexEntry | None
    """Where it stands in the tier's index of evictable leaves; None if it is not there."""

    def __init__(self, node: Node, values: Any, parent: Copy | None) -> None:
        self.node = node
        self.values = values
        self.parent = parent
        self.children = 0
        self.locks = 0
        self.copying = False
        self.entry = None

    def __repr__(self) -> str:
        return f"<Copy of {self.node!r} locks={self.locks} children={self.children}>"


class Node:
    """A run of whole pages. To a client it is opaque; to a policy these fields are readable.

    `hits` (matches that covered it), `created` and `last_access` (clock), `age` (serial number of
    the insert that brought its tokens; smaller is older), `priority`, `floor` (see `CostAware`),
    `length` (tokens), `end` (tokens from the root to its last one).

    When a node is split, the old object stays the lower part and `end` does not change, so a handle
    (node, end) names the same tokens for as long as they are cached.
    """

    __slots__ = (
        "age",
        "children",
        "created",
        "data",
        "device",
        "end",
        "floor",
        "ghosts",
        "hashes",
        "hits",
        "host",
        "last_access",
        "parent",
        "priority",
        "retained_until",
    )

    data: bytes
    """Tokens of the edge as int32 bytes; never empty except at a root."""
    end: int
    parent: Node | None
    """None at a root, and once the node left the tree."""
    children: dict[bytes, Node]
    """By the bytes of the child's first page."""
    device: Copy | None
    host: Copy | None
    hits: int
    created: float
    last_access: float
    age: int
    priority: int
    retained_until: float
    """Clock until which it is evicted last; 0.0 if it never was retained or that has passed."""
    floor: Any
    """The highest rank that device eviction had reached when the node was last used; 0.0 before
    any.
    """
    hashes: NodeHashes | None
    """Of the event blocks that end in this node; None if none does, and while events are off."""
    ghosts: Shelves | None
    """What was evicted from under this node, by position; None if nothing is remembered."""

    def __init__(
        self, data: bytes, parent: Node | None, end: int, now: float, age: int, floor: Any = 0.0
    ) -> None:
        self.data = data
        self.parent = parent
        self.end = end
        self.children = {}
        self.device = None
        self.host = None
        self.hits = 0
        self.created = now
        self.last_access = now
        self.age = age
        self.priority = 0
        self.retained_until = 0.0
        self.floor = floor
        self.hashes = None
        self.ghosts = None

    @property
    def length(self) -> int:
        """Tokens on the edge."""
        return len(self.data) // TOKEN_BYTES

    @property
    def start(self) -> int:
        """Tokens from the root to the edge's first one."""
        return self.end - len(self.data) // TOKEN_BYTES

    def __repr__(self) -> str:
        tiers = "+".join(
            name for name, copy in (("device", self.device), ("host", self.host)) if copy
        )
        return f"<Node [{self.start}, {self.end}) {tiers or 'gone'} children={len(self.children)}>"


class Root(Node):
    """The top of one namespace: no tokens, never locked, never evicted; a copy in every tier."""

    __slots__ = ("namespace",)

    namespace: Namespace

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(b"", None, end=0, now=0.0, age=-1)
        self.namespace = namespace
        self.device = Copy(self, None, None)
        self.host = Copy(self, None, None)


def path_to(node: Node) -> list[Node]:
    """The nodes from below the root down to `node`."""
    path: list[Node] = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    path.reverse()
    return path
