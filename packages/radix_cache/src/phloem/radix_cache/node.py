"""One node of the prefix tree: the run of tokens on the edge into it, their values, its state.

Owns no rule: the tree is the only writer. Eviction policies read the documented fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .key import TOKEN_BYTES, Namespace

if TYPE_CHECKING:
    from .leaves import IndexEntry


class Node:
    """A run of whole pages. To a client it is opaque; to a policy these fields are readable:

    `hits` (matches that covered it), `created` and `last_access` (clock), `age` (serial number of
    the insert that brought its tokens; smaller is older), `length` (tokens), `end` (tokens from
    the root to its last one).

    When a node is split, the old object stays the lower part and `end` does not change, so a handle
    (node, end) names the same tokens for as long as they are cached.
    """

    __slots__ = (
        "age",
        "children",
        "created",
        "data",
        "end",
        "entry",
        "hits",
        "last_access",
        "locks",
        "parent",
        "values",
    )

    data: bytes
    """Tokens of the edge as int32 bytes; never empty except at a root."""
    values: Any
    """One value per token, in the form the value adapter keeps."""
    end: int
    parent: Node | None
    """None at a root, and once the node left the tree."""
    children: dict[bytes, Node]
    """By the bytes of the child's first page."""
    locks: int
    """Locks on this node or below it."""
    hits: int
    created: float
    last_access: float
    age: int
    entry: IndexEntry | None
    """Where the node stands in the index of evictable leaves; None if it is not there."""

    def __init__(
        self, data: bytes, values: Any, parent: Node | None, end: int, now: float, age: int
    ) -> None:
        self.data = data
        self.values = values
        self.end = end
        self.parent = parent
        self.children = {}
        self.locks = 0
        self.hits = 0
        self.created = now
        self.last_access = now
        self.age = age
        self.entry = None

    @property
    def length(self) -> int:
        """Tokens on the edge."""
        return len(self.data) // TOKEN_BYTES

    def __repr__(self) -> str:
        return (
            f"<Node [{self.end - self.length}, {self.end}) locks={self.locks} hits={self.hits} "
            f"children={len(self.children)}>"
        )


class Root(Node):
    """The top of one namespace: no tokens, never locked, never evicted."""

    __slots__ = ("namespace",)

    namespace: Namespace

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(b"", None, None, end=0, now=0.0, age=-1)
        self.namespace = namespace
