"""How far from its end a text can be, at most: an upper bound of all distances of a machine.

Told where nothing recurs and no counts or demands decide what is still needed, which is so of most
schemas that people write. Then a text with more tokens left needs no steering yet, and nobody asks
where each token of a mask would lead.

A cursor has one piece of its way begun, whose rest is counted in bytes, for each may take a token;
what comes behind that is whole pieces, which cost what `Distances` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from phloem.grammar.automaton import UNSPELLABLE
from phloem.grammar.json_machine.arrays import ArrayMachine
from phloem.grammar.json_machine.distances import Distances
from phloem.grammar.json_machine.layout import MOST_SPACES
from phloem.grammar.json_machine.nodes import NodeMachine, NumberMachine, StringMachine
from phloem.grammar.json_machine.objects import ObjectMachine, numbers_of
from phloem.grammar.json_machine.paths import Paths
from phloem.grammar.json_machine.spelling import PLAIN, spelled
from phloem.grammar.json_schema.shape import NodeId

if TYPE_CHECKING:
    from phloem.grammar.json_machine.machine import JsonMachine

_ESCAPE = 12
"""The most bytes of an escape that is begun."""
_WORD = 4
"""The most bytes of a word that is begun."""
_BRANCHES = 64
_LONGER = 8
"""Where a name may end behind so many bytes more wherever it may end, one that was not used yet is
at most so much longer than the shortest: there are 64 of one byte more and up, then some of six
that are escapes, then 4,096 of two and up."""
_DEEP = 32
_MANY, _MANY_NAMES = 1024, 128
"""Of more states or names it would take long to find out."""
_NOT_PLAIN = frozenset(range(256)) - frozenset(PLAIN)
_PLAIN_ASCII = np.array([byte for byte in PLAIN if byte < 0x80])


class _NotKnown(Exception):
    """There is no bound."""


def farthest(
    machine: JsonMachine, distances: Distances, root: NodeId, missing: bytes
) -> int | None:
    """The most tokens that suffice from any cursor; `missing` are bytes that no token is."""
    bounds = _Bounds(machine.nodes, distances, frozenset(missing))
    try:
        inner, depth = bounds.of(root)
    except _NotKnown:
        return None
    total = inner if machine.is_compact else inner + _blanks(distances, depth)
    return total if total < UNSPELLABLE else None


def _blanks(distances: Distances, depth: int) -> int:
    """Of an indentation that is begun."""
    lines = [b" " * count for count in range(MOST_SPACES * depth, 0, -1)]
    lines += [b"\t" * count for count in range(depth, 0, -1)]
    return max(map(distances.literal, lines), default=0)


class _Bounds:
    """Of the values of each node, from anywhere within one to its end; with their depths."""

    def __init__(
        self, nodes: Sequence[NodeMachine], distances: Distances, missing: frozenset[int]
    ) -> None:
        self._nodes = nodes
        self._missing = missing
        self._distances = distances
        self._found: dict[NodeId, tuple[int, int]] = {}

    def of(self, root: NodeId) -> tuple[int, int]:
        """The bound and the depth of a node. Raises `_NotKnown`."""
        found, entered, pending = self._found, set[NodeId](), [root]
        while pending:
            number = pending[-1]
            unknown = [part for part in self._parts(number) if part not in found]
            if number in found or not unknown:
                pending.pop()
                found[number] = self._of_node(number)
            elif number in entered:
                raise _NotKnown
            else:
                entered.add(number)
                pending += unknown
        return found[root]

    def _parts(self, number: NodeId) -> Iterator[NodeId]:
        node = self._nodes[number]
        for array in node.arrays:
            yield from _items(array)
        for item in node.objects:
            yield from item.nodes
            yield from (other for _, other, _ in item.others)

    def _of_node(self, number: NodeId) -> tuple[int, int]:
        node = self._nodes[number]
        ways = [self._distances.nodes[number], _WORD if node.words else 0]
        if node.number is not None:
            ways.append(_of_number(node.number))
        ways += map(self._of_string, node.strings)
        ways += map(self._of_array, node.arrays)
        ways += map(self._of_object, node.objects)
        below = [self._found[part][1] for part in self._parts(number)]
        depth = 1 + max(below, default=0) if node.containers else 0
        if depth > _DEEP:
            raise _NotKnown
        return max(ways), depth

    def _begun(self, number: NodeId) -> int:
        """From in front of a value, or from within it."""
        return max(self._distances.nodes[number], self._found[number][0])

    def _of_array(self, array: ArrayMachine) -> int:
        if array.shape.demands:
            raise _NotKnown
        finish = self._distances.items_from(array, 0) + 1
        return finish + max(map(self._begun, _items(array)), default=0)

    def _of_object(self, item: ObjectMachine) -> int:
        if item.shape.demands or item.fewest or len(item.names) > _MANY_NAMES:
            raise _NotKnown
        costs = self._distances.nodes
        keys, _ = self._distances.declared_of(item)
        required: list[int] = numbers_of(item.required, len(keys)).tolist()
        finish = 1 + sum(int(keys[number]) + costs[item.nodes[number]] for number in required)
        members = [
            self._of_member(self._spelled_length(name), node)
            for name, node in zip(item.names, item.nodes, strict=True)
        ]
        members += [
            self._of_member(self._of_name(paths), node)
            for paths, (_, node, _) in zip(item.paths, item.others, strict=True)
        ]
        return finish + max(members, default=0)

    def _of_member(self, name: int, node: NodeId) -> int:
        """From in front of a name of so many bytes, or from within what comes then."""
        key = 1 + _ESCAPE + name + 2
        return max(key + self._distances.nodes[node], 1 + self._begun(node))

    def _of_string(self, string: StringMachine) -> int:
        return _ESCAPE + self._way_length(string.paths) + string.fewest + 1

    def _of_name(self, paths: Paths) -> int:
        """Of the shortest name of a class that was not used."""
        most = self._way_length(paths)
        following, classes = paths.dfa.table.next, paths.dfa.table.classes
        ends = np.append(paths.dfa.accepting, False)
        plain = np.bincount(classes[_PLAIN_ASCII], minlength=following.shape[1])
        if (ends[following[ends[:-1]]] @ plain < _BRANCHES).any():
            raise _NotKnown
        # Of equally long names one that is spelled longer may come, or cannot be spelled.
        longer = classes[[*(_NOT_PLAIN | self._missing)]]
        if (following[~ends[:-1]][:, longer] >= 0).any():
            raise _NotKnown
        return most + _LONGER

    def _way_length(self, paths: Paths) -> int:
        if len(paths.lengths) > _MANY:
            raise _NotKnown
        most, some = paths.longest_spelled
        return self._known(most, some)

    def _spelled_length(self, name: bytes) -> int:
        text = spelled(name)
        return self._known(len(text), text)

    def _known(self, length: int, some: Iterable[int]) -> int:
        """The length of something of some bytes, if each of these is a token."""
        if not self._missing.isdisjoint(some):
            raise _NotKnown
        return length


def _items(array: ArrayMachine) -> list[NodeId]:
    rest = array.shape.rest
    return [*array.shape.prefix, *(() if rest is None else (rest,))]


def _of_number(number: NumberMachine) -> int:
    return max(number.paths.lengths)
