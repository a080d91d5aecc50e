"""What was evicted lately, remembered by its tokens, so that a miss can be explained.

Owns a bounded set of *ghosts*: runs of tokens that were cached and left all tiers. A ghost hangs
where it was: at a position of the node that it hung from in the tree, or of another ghost. It keeps
no values. `drop` and `reset` forget, they leave no ghosts.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

from .key import TOKEN_BYTES, Namespace, common_prefix
from .node import Node, Root
from .observer import Observer

TOKEN_LIMIT: Final = 2**20
"""How many tokens a cache's ghosts have at most: 4 MiB."""

_PARTS: Final = 32

Shelves: TypeAlias = "dict[int, Shelf]"
"""By position: tokens from the root to where the ghosts of the shelf begin."""


class Shelf:
    """The ghosts that begin at one position under one holder, by the bytes of their first page."""

    __slots__ = ("ghosts", "holder", "position")

    def __init__(self, holder: Holder, position: int) -> None:
        self.holder = holder
        self.position = position
        self.ghosts: dict[bytes, Ghost] = {}


class Ghost:
    """A run of tokens that ends at position `end`, evicted at `evicted` (clock) at the latest."""

    __slots__ = ("end", "evicted", "ghosts", "parts", "shelf")

    def __init__(self, data: bytes, end: int, evicted: float) -> None:
        self.parts = [data]
        """Its tokens as int32 bytes, in pieces, the last one first: a tail is evicted first."""
        self.end = end
        self.evicted = evicted
        self.ghosts: Shelves | None = None
        self.shelf: Shelf | None = None

    @property
    def data(self) -> bytes:
        """Its tokens, joined."""
        return b"".join(reversed(self.parts))

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return sum(map(len, self.parts)) // TOKEN_BYTES


class Top:
    """What begins a path of a namespace, whether the tree has a root for it now or not."""

    __slots__ = ("ghosts", "namespace")

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.ghosts: Shelves | None = None


Holder: TypeAlias = Node | Ghost | Top
"""All of these have `ghosts`, shelves by position, from behind their start up to their end."""


class Ghosts(Observer):
    """The ghosts of a cache, at most `limit` of them with at most `token_limit` tokens.

    The oldest is forgotten first. No ghost is older than one that hangs below it, so what is
    forgotten has none below. An eviction costs O(1), an insert nothing unless its first page is a
    ghost's; then O(tokens in common).
    """

    def __init__(
        self,
        limit: int,
        page_size: int,
        token_limit: int = TOKEN_LIMIT,
    ) -> None:
        self._limit = limit
        self._token_limit = token_limit
        self._page = page_size * TOKEN_BYTES
        self.now = 0.0
        """When what is being evicted is: set before, since a clock may fail, and a tree in the
        middle of an eviction may not."""
        self._tops: dict[Namespace, Top] = {}
        self._order: OrderedDict[Ghost, None] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def tokens(self) -> int:
        """How many tokens are remembered."""
        return self._tokens

    def at(self, node: Node | Namespace, position: int) -> Shelf | None:
        """What hangs at a position of a node, or at the top of a namespace; for any thread."""
        holder = self._tops.get(node) if isinstance(node, tuple) else node
        shelves = None if holder is None else holder.ghosts
        return None if shelves is None else shelves.get(position)

    def linked(self, node: Node) -> None:
        """What it brings again is remembered no longer as evicted."""
        above = node.parent
        assert above is not None, f"{node} was linked"
        shelf = self.at(above.namespace if isinstance(above, Root) else above, node.start)
        ghost = None if shelf is None else shelf.ghosts.get(node.data[: self._page])
        if ghost is not None:
            self._absorb(node, ghost)

    def split(self, upper: Node, lower: Node) -> None:
        """Each part keeps what hangs within it or at its end."""
        if lower.ghosts is not None:
            _move(lower, upper, range(upper.end + 1))

    def trimmed(self, node: Node, tail: bytes) -> None:
        """The tail becomes a ghost."""
        self._remember(node, node.end, tail, node)

    def unlinking(self, node: Node, evicted: bool) -> None:
        """It becomes a ghost if it was evicted."""
        above = node.parent
        assert above is not None, f"{node} is about to be unlinked"
        if evicted:
            if isinstance(above, Root):
                top = self._tops.setdefault(above.namespace, Top(above.namespace))
                self._remember(top, 0, node.data, node)
            else:
                self._remember(above, above.end, node.data, node)

    def dropping(self, namespace: Namespace, root: Root | None) -> None:
        """Forget the ghosts of the namespace: O(its nodes and ghosts)."""
        holders: list[Holder] = [] if root is None else list(root.children.values())
        if namespace in self._tops:
            holders.append(self._tops.pop(namespace))
        while holders and self._order:
            holder = holders.pop()
            for shelf in (holder.ghosts or {}).values():
                for ghost in shelf.ghosts.values():
                    del self._order[ghost]
                    self._tokens -= ghost.length
                    holders.append(ghost)
            holder.ghosts = None
            if isinstance(holder, Node):
                holders.extend(holder.children.values())

    def cleared(self) -> None:
        """Forget all ghosts."""
        self._tops = {}
        self._order.clear()
        self._tokens = 0

    def _remember(self, holder: Node | Top, position: int, data: bytes, gone: Node) -> None:
        """Hang a ghost of `data` at a position; it takes over the ghosts of `gone` behind that."""
        end = position + len(data) // TOKEN_BYTES
        ghost = None if gone.ghosts is None else _only_continuation(gone, position, end)
        if ghost is None:
            ghost = Ghost(data, end, 0.0)
            if gone.ghosts is not None:
                _move(gone, ghost, range(position + 1, end + 1))
        else:
            # A leaf that is evicted bit by bit stays one ghost, however small the bits.
            self._take_down(ghost)
            ghost.parts.append(data)
            if len(ghost.parts) > _PARTS:  # An object for each small bit takes far more than it.
                ghost.parts = [ghost.data]
            self._order.move_to_end(ghost)
        ghost.evicted = self.now
        self._order[ghost] = None
        self._tokens += len(data) // TOKEN_BYTES
        self._hang(holder, position, ghost)
        while len(self._order) > self._limit or self._tokens > self._token_limit:
            oldest, _ = self._order.popitem(last=False)
            assert oldest.ghosts is None, "what hangs below a ghost was evicted before it"
            self._tokens -= oldest.length
            self._take_down(oldest)

    def _absorb(self, leaf: Node, ghost: Ghost | None) -> None:
        """Take back what `leaf` brings again, from `ghost` on; the rest hangs from the leaf."""
        data, at = leaf.data, 0
        while ghost is not None:
            self._take_down(ghost)
            was = ghost.data
            at += (shared := common_prefix(was, data, at, self._page))
            position = leaf.start + at // TOKEN_BYTES
            if ghost.ghosts is not None:
                _move(ghost, leaf, range(position + 1))
            self._tokens -= shared // TOKEN_BYTES
            if shared < len(was):
                ghost.parts = [was[shared:]]
                self._hang(leaf, position, ghost)
            else:
                del self._order[ghost]
            shelf = self.at(leaf, position)
            ghost = None if shelf is None else shelf.ghosts.get(data[at : at + self._page])

    def _hang(self, holder: Node | Top, position: int, ghost: Ghost) -> None:
        if holder.ghosts is None:
            holder.ghosts = {}
        shelf = holder.ghosts.get(position)
        if shelf is None:
            shelf = holder.ghosts[position] = Shelf(holder, position)
        shelf.ghosts[ghost.parts[-1][: self._page]] = ghost
        ghost.shelf = shelf

    def _take_down(self, ghost: Ghost) -> None:
        shelf = ghost.shelf
        assert shelf is not None, "a ghost hangs somewhere until it is forgotten"
        del shelf.ghosts[ghost.parts[-1][: self._page]]
        ghost.shelf = None
        holder = shelf.holder
        if not shelf.ghosts and holder.ghosts is not None:
            del holder.ghosts[shelf.position]
            if not holder.ghosts:
                holder.ghosts = None
                if isinstance(holder, Top):
                    del self._tops[holder.namespace]


def _only_continuation(gone: Node, position: int, end: int) -> Ghost | None:
    """The ghost that begins at `end`, if it is all that hangs from `gone` behind `position`."""
    shelves = [shelf for at, shelf in (gone.ghosts or {}).items() if at > position]
    if len(shelves) != 1 or shelves[0].position != end or len(shelves[0].ghosts) != 1:
        return None
    return next(iter(shelves[0].ghosts.values()))


def _move(source: Holder, target: Holder, positions: range) -> None:
    """Hand the shelves of `source` at some positions over to `target`."""
    kept: Shelves = {}
    moved: Shelves = dict(target.ghosts or {})
    for position, shelf in (source.ghosts or {}).items():
        if position in positions:
            shelf.holder = target
            moved[position] = shelf
        else:
            kept[position] = shelf
    target.ghosts = moved or None
    source.ghosts = kept or None
