"""The minimal automaton of a list of literals (Daciuk et al. 2000)."""

from __future__ import annotations

from collections.abc import Iterable

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.plain import Plain, Rows


def of_literals(literals: Iterable[bytes], budget: Budget) -> Plain | None:
    """Minimal and canonical; None if there is no literal.

    Raises:
        ConstraintTooComplex: if the budget is spent.
    """
    texts = sorted(set(literals))
    if not texts:
        return None
    nodes = _Nodes(budget)
    return nodes.numbered(_root(texts, nodes))


class _Nodes:
    """The states of an acyclic automaton, each made once: equal edges and ends are one node."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._edges: list[dict[int, int]] = [{}]
        """By node: the next one by byte, in ascending order; node 0 is the end of longest texts."""
        self._ends = [True]
        self._known: dict[tuple[bool, bytes, tuple[int, ...]], int] = {}
        self._links: dict[int, int] = {}
        """Those of one edge at which nothing ends: by the target times 256 and the byte."""
        budget.check(1)

    def of(self, edges: dict[int, int], ends: bool) -> int:
        """The node of some edges, two at least unless it ends; it keeps the dictionary."""
        if not edges:
            return 0
        key = (ends, bytes(edges), tuple(edges.values()))
        node = self._known.get(key)
        if node is None:
            node = self._known[key] = self._new(edges, ends)
        return node

    def before(self, text: bytes, node: int) -> int:
        """The node from which a text leads to another one, and nothing else anywhere."""
        links = self._links
        for byte in reversed(text):
            key = node << 8 | byte
            found = links.get(key)
            if found is None:
                found = links[key] = self._new({byte: node}, False)
            node = found
        return node

    def _new(self, edges: dict[int, int], ends: bool) -> int:
        node = len(self._edges)
        if not node & 255:
            self._budget.check(node)
        self._edges.append(edges)
        self._ends.append(ends)
        return node

    def numbered(self, root: int) -> Plain:
        """The canonical automaton from a node on, which all others are behind."""
        self._budget.check(len(self._edges))
        order, numbers = [root], {root: 0}
        columns: dict[int, list[int]] = {}
        for source, node in enumerate(order):
            for byte, target in self._edges[node].items():
                number = numbers.get(target)
                if number is None:
                    number = numbers[target] = len(order)
                    order.append(target)
                columns.setdefault(byte, []).extend((source, number))
        return _with_classes(columns, [self._ends[node] for node in order])


def _root(texts: list[bytes], nodes: _Nodes) -> int:
    """The node that some ascending texts begin at.

    A text is added behind what it shares with the one before it. What that one does not share is
    complete then, and becomes nodes from its end on; `open_nodes` is where texts still may part.
    """
    open_nodes: list[tuple[int, dict[int, int], bool]] = [(0, {}, not texts[0])]
    before = b""
    for text in texts:
        shared = _shared(before, text)
        _close(open_nodes, shared, before, nodes)
        if text:
            open_nodes.append((len(text), {}, True))
        before = text
    _close(open_nodes, 0, before, nodes)
    _, edges, ends = open_nodes[0]
    if len(edges) == 1 and not ends:  # as all texts begin alike, the root is none of a choice
        ((byte, node),) = edges.items()
        return nodes.before(bytes([byte]), node)
    return nodes.of(edges, ends)


def _close(
    open_nodes: list[tuple[int, dict[int, int], bool]], depth: int, text: bytes, nodes: _Nodes
) -> None:
    """Make nodes of what is open below a depth of a text, which is open itself from then on."""
    while open_nodes[-1][0] > depth:
        end, edges, ends = open_nodes.pop()
        begin = open_nodes[-1][0]
        if begin < depth:
            begin = depth
            open_nodes.append((depth, {}, False))
        node = nodes.of(edges, ends)
        if end > begin + 1:
            node = nodes.before(text[begin + 1 : end], node)
        open_nodes[-1][1][text[begin]] = node


def _shared(one: bytes, two: bytes) -> int:
    """How many bytes two different texts begin with alike."""
    length = 0
    for left, right in zip(one, two, strict=False):
        if left != right:
            break
        length += 1
    return length


def _with_classes(columns: dict[int, list[int]], accepting: list[bool]) -> Plain:
    """From the edges of each byte: sources and targets by turns, sources ascending."""
    unused = next(byte for byte in range(257) if byte not in columns)
    signatures: dict[tuple[int, ...], int] = {}
    by_byte = {
        byte: signatures.setdefault(tuple(columns.get(byte, ())), len(signatures))
        for byte in sorted((*columns, unused))
        if byte < 256
    }
    classes = bytearray([by_byte.get(unused, 0)]) * 256
    for byte in columns:
        classes[byte] = by_byte[byte]
    rows: Rows = [[-1] * len(signatures) for _ in accepting]
    for signature, column in signatures.items():
        for source, target in zip(signature[::2], signature[1::2], strict=True):
            rows[source][column] = target
    return Plain(rows, accepting, bytes(classes))
