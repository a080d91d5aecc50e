"""The nodes of a schema as what a cursor needs to know of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

from phloem.grammar.dfa import Dfa
from phloem.grammar.errors import ConstraintTooComplex
from phloem.grammar.json_machine.arrays import ArrayMachine
from phloem.grammar.json_machine.objects import ObjectMachine
from phloem.grammar.json_machine.paths import Paths
from phloem.grammar.json_machine.spelling import QUOTE, forced_part
from phloem.grammar.json_machine.weights import INFINITE
from phloem.grammar.json_schema.shape import Node, NodeId, StringShape

FILLER = b"a"
"""The character of which the shortest strings of some length are made."""
_MOST_OPEN = 32
"""Each of them is followed through each of the names, so a mask takes as many times as long."""


class NumberMachine:
    """The texts of the numbers of a node."""

    def __init__(self, dfa: Dfa) -> None:
        self.dfa = dfa
        self.paths = Paths(dfa)
        self._moves: dict[int, list[tuple[int, bytes]]] = {}

    def moves(self, state: int) -> list[tuple[int, bytes]]:
        """The states after one more character, each with the characters that lead there."""
        known = self._moves.get(state)
        if known is None:
            by_target: dict[int, list[int]] = {}
            for byte in self.dfa.first_bytes(state):
                by_target.setdefault(self.dfa.step(state, byte), []).append(byte)
            known = [(target, bytes(firsts)) for target, firsts in by_target.items()]
            self._moves[state] = known
        return known


class StringMachine:
    """The contents of the strings of one shape. A state of it is a state of the DFA and a count."""

    def __init__(self, shape: StringShape) -> None:
        self.dfa = shape.dfa
        self.paths = Paths(shape.dfa)
        self.fewest = shape.min_chars
        self.most = shape.max_chars
        self.is_counted = bool(shape.min_chars) or shape.max_chars is not None
        self._firsts: dict[tuple[int, bool], frozenset[int]] = {}
        self._forced: dict[int, bytes] = {}

    def prepare(self) -> None:
        """Find out how far each state is from where nothing can follow, if that matters."""
        if self.most is None:
            _ = self.paths.heights

    def step(self, state: int, count: int, byte: int) -> tuple[int, int] | None:
        """The state after one more byte of content; the count is of characters begun."""
        state = self.dfa.step(state, byte)
        if state < 0:
            return None
        if self.is_counted and byte & 0xC0 != 0x80:
            if self.most is None:
                count = min(count + 1, self.fewest)
            elif count < self.most:
                count += 1
            else:
                return None
        return state, count

    def accepts(self, state: int, count: int) -> bool:
        """Whether the content may end here."""
        return count >= self.fewest and not self.paths.lengths[state]

    def first_bytes(self, state: int, count: int) -> frozenset[int]:
        """The bytes of content that may come next."""
        is_full = self.is_counted and count == self.most
        firsts = self._firsts.get((state, is_full))
        if firsts is None:
            found = self.dfa.first_bytes(state)
            firsts = frozenset(b for b in found if not is_full or b & 0xC0 == 0x80)
            self._firsts[state, is_full] = firsts
        return firsts

    def is_finite(self, state: int) -> bool:
        """Whether finitely many contents can follow."""
        return self.most is not None or self.paths.heights[state] >= 0

    def forced(self, state: int) -> bytes:
        """What must come next of a string: of its content, and the quote if that is all of it."""
        known = self._forced.get(state)
        if known is None:
            known = self._forced[state] = self._find_forced(state)
        return known

    def _find_forced(self, state: int) -> bytes:
        if self.is_counted or self.paths.heights[state] < 0:
            return b""
        text, lengths = bytearray(), self.paths.lengths
        while True:
            firsts = self.dfa.first_bytes(state)
            if not firsts:
                text.append(QUOTE)
                break
            if len(firsts) > 1 or not lengths[state] or not forced_part(firsts):
                break
            text += firsts
            state = self.dfa.step(state, firsts[0])
        return bytes(text)

    def alike(self, state: int, count: int) -> tuple[object, ...]:
        """Equal where the same may follow: with a limit, that is so of strings of other limits."""
        if self.most is None:
            return self, state, count
        return self.dfa, state, self.most - count, max(self.fewest - count, 0)

    def rest_length(self, state: int, count: int) -> int:
        """The bytes of the shortest rest."""
        return self.paths.lengths[state] + max(self.fewest - count, 0)

    def rest(self, state: int, count: int, most: int) -> tuple[bytes, int, int]:
        """The first `most` bytes, or all, of the shortest rest, and the state after them."""
        head, state = self.paths.walk(state, min(most, self.paths.lengths[state]))
        filler = min(max(self.fewest - count, 0), most - len(head))
        return head + FILLER * filler, state, count + filler


_number_machine = lru_cache(maxsize=64)(NumberMachine)
_string_machine = lru_cache(maxsize=64)(StringMachine)
"""Many schemas have the same ones; what was found out about them is kept with them."""


class NodeMachine:
    """One node."""

    def __init__(self, node: Node, weights: Sequence[int], is_free: bool) -> None:
        """Raises `ConstraintTooComplex` and `GrammarError` as the machines of its containers do."""
        words = [b"null"] if node.null else []
        words += [b"true" if value else b"false" for value in sorted(node.booleans)]
        self.words = {word[0]: word for word in words}
        self.number = None if node.numbers is None else _number_machine(node.numbers)
        self.strings = tuple(map(_string_machine, node.strings))
        arrays = (ArrayMachine(shape, weights) for shape in node.arrays)
        self.arrays = tuple(array for array in arrays if array.is_live(*array.first))
        objects = (ObjectMachine(shape, weights, is_free) for shape in node.objects)
        self.objects = tuple(item for item in objects if item.is_live())
        if sum(bool(item.start.classes) for item in self.objects) > _MOST_OPEN:
            raise ConstraintTooComplex(
                f"more than {_MOST_OPEN} alternatives at one place are objects that any name can "
                "begin: set 'additionalProperties' to false in them, or require what tells them "
                "apart and let properties come in their order"
            )

    @cached_property
    def first_bytes(self) -> bytes:
        """The bytes that its values begin with, ascending."""
        digits = b"" if self.number is None else self.number.dfa.first_bytes(0)
        return bytes(sorted((*digits, *self.other_first_bytes)))

    @cached_property
    def other_first_bytes(self) -> bytes:
        """Those of its values that are no numbers."""
        firsts = list(self.words)
        if self.strings:
            firsts.append(QUOTE)
        if self.arrays:
            firsts.append(ord("["))
        if self.objects:
            firsts.append(ord("{"))
        return bytes(firsts)

    @cached_property
    def content(self) -> tuple[object, ...]:
        """Equal for nodes of the same values up to the first name or item, whatever schemas they
        are of."""
        starts = [item.start for item in self.objects]
        opened = (any(at.closable for at in starts), any(at.can_grow for at in starts))
        arrays = bool(self.arrays)
        return (*self.words, self.number, self.strings, arrays, opened if starts else None)

    def weigh(self) -> int:
        """About how many bytes its smallest value takes, by the weights as they are now."""
        weights = [len(word) for word in self.words.values()]
        if self.number is not None:
            weights.append(self.number.paths.lengths[0])
        weights += [2 + string.rest_length(0, 0) for string in self.strings]
        weights += [container.weigh() for container in self.containers]
        return min(weights, default=INFINITE)

    @cached_property
    def containers(self) -> tuple[ArrayMachine | ObjectMachine, ...]:
        """Its arrays and objects."""
        return (*self.arrays, *self.objects)


def parts(node: Node) -> Iterator[NodeId]:
    """The nodes that the containers of a node refer to."""
    for array in node.arrays:
        yield from array.prefix
        if array.rest is not None:
            yield array.rest
        for witness in array.witnesses:
            yield from (place for place in (*witness.prefix, witness.rest) if place is not None)
    for item in node.objects:
        yield from (prop.node for prop in item.properties)
        yield from (other.node for other in item.others)
