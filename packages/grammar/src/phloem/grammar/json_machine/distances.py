"""How many tokens suffice to end a text from each cursor, for one vocabulary.

Every cursor has one completion in mind, the cheapest way by weights, and a cost for it that is the
sum of the costs of its pieces. The completion of every cursor along it is the rest of it, in the
same pieces; so there is always a token that comes nearer to the end by one, and a text
that is steered by distances ends in time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatchmethod
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from phloem.grammar.automaton import UNSPELLABLE, TokenCost
from phloem.grammar.json_machine.arrays import ArrayMachine, ArrayState
from phloem.grammar.json_machine.cursors import (
    CLOSING,
    After,
    Candidates,
    Close,
    Indent,
    JsonCursor,
    Member,
)
from phloem.grammar.json_machine.layout import SPACE
from phloem.grammar.json_machine.levels import Container, Level
from phloem.grammar.json_machine.name_cursors import NameCursor, NamePlace
from phloem.grammar.json_machine.nodes import FILLER, NumberMachine, StringMachine
from phloem.grammar.json_machine.objects import (
    UNKNOWN,
    ObjectMachine,
    ObjectState,
    numbers_of,
)
from phloem.grammar.json_machine.spelling import SHORT_ESCAPES, spelled, unicode_escape
from phloem.grammar.json_machine.text_cursors import StringCursor
from phloem.grammar.json_machine.value_cursors import Colon, Number, Value, Word
from phloem.grammar.json_schema.shape import NodeId

if TYPE_CHECKING:
    from phloem.grammar.json_machine.machine import JsonMachine

_Longs: TypeAlias = npt.NDArray[np.int64]

_PIECE = 64
"""Strings longer than so many bytes of content are spelled in pieces, cut from their end."""
_MOST_KNOWN = 1 << 14


class Distances:
    """The distances of the cursors of one machine."""

    def __init__(self, machine: JsonMachine, cost: TokenCost) -> None:
        self.cost_of_literal = cost
        self._machine = machine
        self._literals: dict[bytes, int] = {}
        self._ways: dict[type[JsonCursor], Callable[[Distances, Any], int]] = {}
        self._rests: dict[tuple[StringMachine | NumberMachine, int, int], int] = {}
        self._levels: WeakKeyDictionary[Level, int] = WeakKeyDictionary()
        self._declared: dict[ObjectMachine, tuple[_Longs, _Longs]] = {}
        self._sums: dict[ArrayMachine, list[int]] = {}
        self._states: WeakKeyDictionary[Container, int] = WeakKeyDictionary()
        self.nodes = [UNSPELLABLE] * len(machine.nodes)
        """By node: the tokens of its cheapest value."""
        self._node_costs = np.array(self.nodes, np.int64)
        """The same, for sums of many."""
        for node in sorted(range(len(self.nodes)), key=machine.weights.__getitem__):
            self.nodes[node] = self._node_costs[node] = self._of_node(node)

    def of(self, cursor: JsonCursor) -> int:
        """The tokens that suffice from a cursor."""
        kind = type(cursor)
        way = self._ways.get(kind)
        if way is None:
            # Asking the dispatcher each time would take longer than most of the ways do.
            way = self._ways[kind] = type(self).__dict__["_of"].dispatcher.dispatch(kind)
        return way(self, cursor)

    @singledispatchmethod
    def _of(self, cursor: JsonCursor) -> int:
        raise TypeError(f"{type(cursor).__name__} is no cursor of a JSON text")

    def literal(self, literal: bytes) -> int:
        """The fewest tokens of a literal."""
        known = self._literals.get(literal)
        if known is None:
            if len(self._literals) >= _MOST_KNOWN:
                self._literals.clear()
            known = self._literals[literal] = min(self.cost_of_literal(literal), UNSPELLABLE)
        return known

    # Between strings.

    @_of.register
    def _(self, cursor: Value) -> int:
        return self._of_candidates(cursor.candidates)

    @_of.register
    def _(self, cursor: Word) -> int:
        return self.literal(cursor.rest) + self.after(cursor.level)

    @_of.register
    def _(self, cursor: Number) -> int:
        return min(
            self._rest_of_number(number, state) + self.after(level)
            for number, state, level in cursor.places
        )

    @_of.register
    def _(self, cursor: After) -> int:
        return self.after(cursor.level)

    @_of.register
    def _(self, cursor: Close) -> int:
        return self._closing(cursor.level)

    @_of.register
    def _(self, cursor: Colon) -> int:
        return self.literal(b":") + self._of_candidates(cursor.candidates)

    @_of.register
    def _(self, cursor: Member) -> int:
        ways = [self._closing(cursor.level)] if cursor.can_close else []
        growing = cursor.growing
        if growing is not None:
            ways += [
                self._of_member(state, b"") + self.after(around)
                for state, around in growing.entries
            ]
        return min(ways)

    @_of.register
    def _(self, cursor: Indent) -> int:
        if not cursor.missing:
            return self.of(cursor.ended)
        blank = cursor.layout.blank or cursor.blank or SPACE
        step, missing = cursor, cursor.missing
        for _ in range(missing):
            step = step.step(blank)  # type: ignore[assignment]
        return self.literal(bytes([blank]) * missing) + self.of(step.ended)

    def _of_candidates(self, candidates: Candidates) -> int:
        return min(self.nodes[node] + self.after(level) for node, level in candidates)

    def _closing(self, level: Level) -> int:
        around = self._machine.levels.after(level)
        if around is None:
            return UNSPELLABLE
        return self.literal(bytes([CLOSING[level.kind]])) + self.after(around)

    # Levels: what is still open.

    def after(self, level: Level) -> int:
        """The tokens from behind a value in a level to the end of the text."""
        pending = [level]
        while pending:
            level = pending[-1]
            if level in self._levels:
                pending.pop()
                continue
            unknown = [around for _, around in level.entries if around not in self._levels]
            if unknown:
                pending += unknown
                continue
            ways = [self._finish(state) + self._levels[around] for state, around in level.entries]
            self._levels[level] = min(ways, default=0)
            pending.pop()
        return self._levels[level]

    def _finish(self, state: Container) -> int:
        """From behind a member of a container to behind its closing bracket."""
        if isinstance(state, ArrayState):
            return self._finish_array(state)
        known = self._states.get(state)
        if known is None:
            known = self._states[state] = self._finish_object(state)
        return known

    def _finish_object(self, state: ObjectState) -> int:
        total = self.literal(b"}")
        if state.closable:
            return total
        machine = state.machine
        declared, others = machine.needed(state)
        if declared:
            keys, nodes = self.declared_of(machine)
            numbers = numbers_of(declared, len(keys))
            total += int(keys[numbers].sum() + self._node_costs[nodes[numbers]].sum())
        used = state.names
        for number in others:
            name = machine.unused_name(number, 0, used)
            total += self._key(machine, used, b",", name) + self.nodes[machine.others[number][1]]
            used |= {name}
        return total

    def declared_of(self, machine: ObjectMachine) -> tuple[_Longs, _Longs]:
        """Of each declared property: the tokens of its name behind a comma, and its node."""
        known = self._declared.get(machine)
        if known is None:
            keys = [self.literal(b',"' + spelled(name) + b'":') for name in machine.names]
            known = np.array(keys, np.int64), np.array(machine.nodes, np.int64)
            self._declared[machine] = known
        return known

    def _finish_array(self, state: ArrayState) -> int:
        total, comma = 0, self.literal(b",")
        machine = state.machine
        while not state.closable:
            if not state.demands:
                total += self.items_from(machine, state.index)
                break
            node, state = state.cheapest()
            total += comma + self.nodes[node]
        return total + self.literal(b"]")

    def items_from(self, machine: ArrayMachine, index: int) -> int:
        """The items from one on that an array without demands has at least, with their commas."""
        shape, comma = machine.shape, self.literal(b",")
        sums = self._sums.get(machine)
        if sums is None:
            # What is summed is what the shortest array has, so it is known before the array is.
            costs = [comma + self.nodes[node] for node in shape.prefix[: shape.min_items]]
            sums = self._sums[machine] = [0, *accumulate(costs)]
        total = sums[-1] - sums[min(index, len(sums) - 1)]
        missing = shape.min_items - max(index, len(shape.prefix))
        if missing > 0:
            total += missing * (comma + (0 if shape.rest is None else self.nodes[shape.rest]))
        return total

    def _of_member(self, state: Container, before: bytes) -> int:
        """The next member by the cheapest way, behind `before`, and the rest of the container."""
        if isinstance(state, ArrayState):
            node, following = state.cheapest()
            return (self.literal(before) if before else 0) + self._of_rest(node, following)
        name, node, after = state.cheapest()
        key = self._key(state.machine, state.names, before, name)
        return key + self._of_rest(node, after)

    def _key(
        self, machine: ObjectMachine, used: frozenset[bytes], before: bytes, name: bytes
    ) -> int:
        """A name of the cheapest way, behind `before` and with its colon."""
        others = machine.alternatives(used, name)
        return max(self.literal(before + b'"' + spelled(each) + b'":') for each in others)

    def _of_rest(self, node: NodeId, state: Container) -> int:
        return self.nodes[node] + self._finish(state)

    # Nodes: whole values.

    def _of_node(self, number: NodeId) -> int:
        node = self._machine.nodes[number]
        ways = [self.literal(word) for word in node.words.values()]
        if node.number is not None:
            ways.append(self._rest_of_number(node.number, 0))
        ways += [self._of_string(string) for string in node.strings]
        if node.containers:
            ways.append(self._of_container(min(node.containers, key=_weight)))
        return min(ways)

    def _of_container(self, machine: ArrayMachine | ObjectMachine) -> int:
        brackets = b"[]" if isinstance(machine, ArrayMachine) else b"{}"
        if machine.start.closable:
            return self.literal(brackets)
        return self._of_member(machine.start, brackets[:1])

    # Strings and numbers.

    def _of_string(self, string: StringMachine) -> int:
        head, rest = self._pieces(string, 0, 0)
        return self.literal(b'"' + head) + rest

    def _pieces(self, string: StringMachine, state: int, count: int) -> tuple[bytes, int]:
        """The first piece of the rest of a string with its quote, and the cost of the others."""
        length = string.rest_length(state, count)
        if length <= _PIECE:
            return spelled(string.rest(state, count, length)[0]) + b'"', 0
        head, state, count = string.rest(state, count, length % _PIECE or _PIECE)
        return spelled(head), self._later_pieces(string, state, count)

    def _later_pieces(self, string: StringMachine, state: int, count: int) -> int:
        passed = []
        while (string, state, count) not in self._rests:
            length = string.rest_length(state, count)
            if not string.paths.lengths[state]:
                self._rests[string, state, count] = self._filled(length)
                break
            most = length if length <= _PIECE else _PIECE
            head, following, after = string.rest(state, count, most)
            if most == length:
                self._rests[string, state, count] = self.literal(spelled(head) + b'"')
                break
            passed.append(((string, state, count), self.literal(spelled(head))))
            state, count = following, after
        total = self._rests[string, state, count]
        for key, cost in reversed(passed):
            total += cost
            self._rests[key] = total
        return total

    def _filled(self, length: int) -> int:
        """The pieces of so much filler, and the quote behind it."""
        last = length % _PIECE or min(length, _PIECE)
        pieces = (length - last) // _PIECE
        return pieces * self.literal(FILLER * _PIECE) + self.literal(FILLER * last + b'"')

    def _rest_of_number(self, number: NumberMachine, state: int) -> int:
        known = self._rests.get((number, state, 0))
        if known is None:
            path = number.paths.shortest(state)
            known = self._rests[number, state, 0] = self.literal(path) if path else 0
        return known

    @_of.register
    def _(self, cursor: StringCursor) -> int:
        skipped, found = len(cursor.pending), []
        for string, state, count, level in cursor.places:
            head, rest = self._pieces(string, state, count)
            if head.startswith(cursor.pending.lower()):
                found.append(self.literal(head[skipped:]) + rest + self.after(level))
        return min(found) if found else self._by_escape(cursor)

    @_of.register
    def _(self, cursor: NameCursor) -> int:
        skipped, found = len(cursor.pending), []
        for place in cursor.places:
            for contents, node, after in _endings(place):
                keys = [spelled(content) + b'":' for content in contents]
                if all(key.startswith(cursor.pending.lower()) for key in keys):
                    rest = self._of_rest(node, after) + self.after(place[1])
                    found.append(max(self.literal(key[skipped:]) for key in keys) + rest)
        return min(found) if found else self._by_escape(cursor)

    def _by_escape(self, cursor: StringCursor | NameCursor) -> int:
        """Of an unfinished escape that no cheapest way has: the first character that it can be."""
        ways = []
        if len(cursor.pending) == 1:
            shortly = [(byte, cursor.step(byte)) for byte in SHORT_ESCAPES]
            ways = [
                self.literal(bytes([byte])) + self.of(after)
                for byte, after in shortly
                if after is not None
            ]
        point = cursor.first_point(cursor.pending + b"u"[: 2 - len(cursor.pending)])
        if point is not None:
            places = cursor.places
            for byte in chr(point).encode():
                places = cursor.fed(places, byte)  # type: ignore[arg-type]
            rest = unicode_escape(point)[len(cursor.pending) :]
            ways.append(self.literal(rest) + self.of(cursor.at(places)))
        return min(ways, default=UNSPELLABLE)


def _weight(machine: ArrayMachine | ObjectMachine) -> int:
    return machine.weigh()


def _endings(place: NamePlace) -> list[tuple[list[bytes], NodeId, ObjectState]]:
    """The rests of names that a cursor has in mind, with the node and the state behind them.

    Where there are two rests, it is not known which of them is unused.
    """
    state, _, tree, states, name = place
    machine, found = state.machine, []
    if tree is not None:
        number = machine.cheapest_below(state, tree.below & state.choices)
        content = machine.names[number][tree.depth :]
        found.append(([content], machine.nodes[number], machine.after_declared(state, number)))
    for number, at in zip(state.classes, states, strict=True):
        if at >= 0:
            contents = machine.rests(number, at, name, state.names)
            whole = UNKNOWN if name.startswith(UNKNOWN) else name + contents[0]
            after = machine.after_other(state, number, whole)
            found.append((contents, machine.others[number][1], after))
    return found
