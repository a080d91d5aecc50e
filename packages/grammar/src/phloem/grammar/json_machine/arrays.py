"""How far into an array a text is, which items may come next, and which is the cheapest way out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from weakref import WeakValueDictionary

from phloem.grammar.errors import ConstraintTooComplex
from phloem.grammar.json_machine.weights import INFINITE
from phloem.grammar.json_schema.shape import ArrayShape, NodeId

_MOST_CELLS = 1 << 16

Step = tuple[NodeId, int, int]
"""The node of an item, then the index and the open demands after it."""


class ArrayState:
    """Some items of an array were read. One object per state: identity is equality."""

    __slots__ = ("__weakref__", "_items", "closable", "demands", "index", "machine")

    def __init__(self, machine: ArrayMachine, index: int, demands: int) -> None:
        self.machine = machine
        self.index = index
        self.demands = demands
        self.closable = not demands and index >= machine.shape.min_items
        self._items: tuple[tuple[NodeId, ArrayState], ...] | None = None

    @property
    def items(self) -> tuple[tuple[NodeId, ArrayState], ...]:
        """What the next item may be, with the state after it. An item may be there twice."""
        if self._items is None:
            machine = self.machine
            self._items = tuple(
                (node, machine.state(index, demands))
                for node, index, demands in machine.steps(self.index, self.demands)
            )
        return self._items

    @property
    def can_grow(self) -> bool:
        """Whether there may be another item."""
        return bool(self.items)

    def cheapest(self) -> tuple[NodeId, ArrayState]:
        """The next item on the cheapest way to the end, or of those that may be, once closable."""
        machine = self.machine
        node, index, demands = machine.plan(self.index, self.demands)
        return node, machine.state(index, demands)


class ArrayMachine:
    """The states of one `ArrayShape`."""

    def __init__(self, shape: ArrayShape, weights: Sequence[int]) -> None:
        """`weights` of the nodes; they may change until `settle` is called.

        Raises:
            ConstraintTooComplex: if too many sets of demands would have to be told apart.
        """
        self.shape = shape
        self._weights = weights
        self._places = len(shape.prefix)
        self._all = (1 << shape.demands) - 1
        if (self._places + 1) << shape.demands > _MOST_CELLS:
            raise ConstraintTooComplex(
                f"an array of {self._places} places with {shape.demands} demands on its items has "
                "too many states: use fewer alternatives of `contains`"
            )
        limits = [shape.max_items, self._places if shape.rest is None else None]
        self._limit = min((limit for limit in limits if limit is not None), default=None)
        self._turns = max(self._places, shape.min_items)
        self._needs = self._fewest_items() if shape.demands else []
        self._ways: list[list[int]] = []
        self._states: WeakValueDictionary[tuple[int, int], ArrayState] = WeakValueDictionary()

    @property
    def first(self) -> tuple[int, int]:
        """The index and the open demands of an empty array."""
        return 0, self._all

    @cached_property
    def start(self) -> ArrayState:
        """The state of an empty array."""
        return self.state(*self.first)

    def state(self, index: int, demands: int) -> ArrayState:
        """The one state of that many items; beyond what matters, items are not counted."""
        if self._limit is None:
            index = min(index, self._turns)
        state = self._states.get((index, demands))
        if state is None:
            state = self._states[index, demands] = ArrayState(self, index, demands)
        return state

    def steps(self, index: int, demands: int) -> list[Step]:
        """What the next item may be so that the array can still be finished."""
        return [step for step in self._options(index, demands) if self.is_live(*step[1:])]

    def is_live(self, index: int, demands: int) -> bool:
        """Whether the array can be finished from here."""
        fewest = max(self._need(index, demands), self.shape.min_items - index)
        return fewest < INFINITE and (self._limit is None or index + fewest <= self._limit)

    def _options(self, index: int, demands: int) -> list[Step]:
        shape = self.shape
        within = index < self._places
        node = shape.prefix[index] if within else shape.rest
        if node is None or (self._limit is not None and index >= self._limit):
            return []
        steps = [(node, index + 1, demands)]
        for witness in shape.witnesses:
            node = witness.prefix[index] if within else witness.rest
            if node is not None and witness.fulfils & demands:
                steps.append((node, index + 1, demands & ~witness.fulfils))
        return steps

    def _need(self, index: int, demands: int) -> int:
        return self._needs[min(index, self._places)][demands] if demands else 0

    def _fewest_items(self) -> list[list[int]]:
        """By index and open demands: the fewest items that fulfil them."""
        shape, rows = self.shape, [[INFINITE] * (self._all + 1) for _ in range(self._places + 1)]
        for index in range(self._places, -1, -1):
            for demands in range(self._all + 1):
                best = 0 if not demands else INFINITE
                if index < self._places and demands:
                    best = min(best, 1 + rows[index + 1][demands])
                for witness in shape.witnesses if demands else ():
                    within = index < self._places
                    node = witness.prefix[index] if within else witness.rest
                    if node is not None and witness.fulfils & demands:
                        after = rows[index + within][demands & ~witness.fulfils]
                        best = min(best, 1 + after)
                rows[index][demands] = min(best, INFINITE)
        return rows

    # The cheapest way, by the weights of nodes.

    def weigh(self) -> int:
        """About how many bytes the shortest array takes, by the weights as they are now."""
        self.settle()
        return (
            min(2 + self._ways[0][self._all], INFINITE) if self.is_live(0, self._all) else INFINITE
        )

    def settle(self) -> None:
        """Find the cheapest ways by the weights as they are now."""
        self._ways = [[INFINITE] * (self._all + 1) for _ in range(self._places + 1)]
        for demands in range(self._all + 1):
            count = demands.bit_count()
            room = count if self._limit is None else min(self._limit - self._places, count)
            self._ways[-1][demands] = self._weight_behind(self._places, demands, room)
        for index in range(self._places - 1, -1, -1):
            for demands in range(self._all + 1):
                if not demands and index >= self.shape.min_items:
                    self._ways[index][demands] = 0
                    continue
                for node, following, left in self.steps(index, demands):
                    weight = self._weights[node] + 1 + self._ways[following][left]
                    self._ways[index][demands] = min(self._ways[index][demands], weight)

    def _weight_behind(self, index: int, demands: int, room: int) -> int:
        """The weight of what is still needed behind the prefix, in `room` items for demands."""
        shape = self.shape
        if not demands:
            missing = shape.min_items - index
            if missing <= 0:
                return 0
            return INFINITE if shape.rest is None else missing * (self._weights[shape.rest] + 1)
        best = INFINITE
        for witness in shape.witnesses if room > 0 else ():
            if witness.rest is not None and witness.fulfils & demands:
                left = self._weight_behind(index + 1, demands & ~witness.fulfils, room - 1)
                best = min(best, self._weights[witness.rest] + 1 + left)
        return best

    def plan(self, index: int, demands: int) -> Step:
        """The next item of the cheapest way, if there can be one at all."""
        steps = self.steps(index, demands)
        if demands and index >= self._places:
            steps = [step for step in steps if step[2] != demands]

        def weight(step: Step) -> int:
            node, following, left = step
            if following <= self._places:
                return self._weights[node] + self._ways[following][left]
            room = self.shape.demands if self._limit is None else self._limit - following
            return self._weights[node] + self._weight_behind(following, left, room)

        return min(steps, key=weight)
