"""`JsonMachine`, which makes and interns the parts of cursors, and `JsonAutomaton` around it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypeVar
from weakref import ref

from phloem.grammar.automaton import TokenCost
from phloem.grammar.dfa import Budget
from phloem.grammar.errors import GrammarError
from phloem.grammar.json_machine.arrays import ArrayState
from phloem.grammar.json_machine.cursors import Candidates, JsonCursor
from phloem.grammar.json_machine.distances import Distances
from phloem.grammar.json_machine.farthest import farthest
from phloem.grammar.json_machine.layout import UNDECIDED, Layout
from phloem.grammar.json_machine.levels import Container, Kind, Level, Levels
from phloem.grammar.json_machine.name_cursors import NameCursor
from phloem.grammar.json_machine.nodes import NodeMachine, parts
from phloem.grammar.json_machine.objects import ObjectState
from phloem.grammar.json_machine.regions import Regions
from phloem.grammar.json_machine.serial import Compiled, packed, unpacked
from phloem.grammar.json_machine.text_cursors import StringCursor
from phloem.grammar.json_machine.value_cursors import Value
from phloem.grammar.json_machine.weights import INFINITE, least_fixpoint
from phloem.grammar.json_schema.shape import NodeId, SchemaGraph

AnyCursor = TypeVar("AnyCursor", bound=JsonCursor)


class JsonAutomaton:
    """The JSON texts of a schema, as an `Automaton`. Used by one thread."""

    def __init__(self, compiled: Compiled, nodes: list[NodeMachine] | None = None) -> None:
        """From the compiled form; `of` compiles. `nodes` are the form's, if there are some yet."""
        self._compiled = compiled
        self._nodes = nodes

    @classmethod
    def of(
        cls, graph: SchemaGraph, budget: Budget, *, is_compact: bool, is_free: bool
    ) -> JsonAutomaton:
        """The texts of a normal form.

        Args:
            is_compact: no blanks outside of strings; otherwise `layout` says where.
            is_free: properties come in any order; otherwise declared ones in theirs, then others.

        Raises:
            ConstraintTooComplex: if arrays or objects would have too many states, or time is over.
            GrammarError: if no value meets the schema.
        """
        weights = [INFINITE] * len(graph.nodes)
        nodes = [NodeMachine(node, weights, is_free) for node in graph.nodes]
        least_fixpoint(
            len(nodes),
            lambda number: nodes[number].weigh(),
            lambda number: list(parts(graph.nodes[number])),
            weights,
            budget,
        )
        if weights[graph.root] >= INFINITE:
            raise GrammarError("no finite JSON value meets the schema: relax what it demands")
        return cls(Compiled(graph, tuple(weights), is_compact, is_free), nodes)

    @property
    def start(self) -> JsonCursor:
        """The position at the beginning of a text."""
        return self._machine.start

    def farthest(self, cost: TokenCost, missing: bytes) -> int | None:
        """See `automaton.Automaton`: known where nothing recurs."""
        return self._machine.farthest(cost, missing)

    @cached_property
    def _machine(self) -> JsonMachine:
        return JsonMachine(self._compiled, self._nodes)

    def serialize(self) -> bytes:
        """The compiled form, which `deserialize` reads."""
        return packed(self._compiled)

    @classmethod
    def deserialize(cls, data: bytes) -> JsonAutomaton:
        """What `serialize` gave.

        Raises:
            GrammarError: if the bytes are damaged.
        """
        return cls(unpacked(data))


class JsonMachine:
    """Makes cursors, and has what they share."""

    def __init__(self, compiled: Compiled, nodes: list[NodeMachine] | None) -> None:
        graph, self.weights = compiled.graph, compiled.weights
        self.is_compact = compiled.is_compact
        self.nodes = nodes or [
            NodeMachine(node, self.weights, compiled.is_free) for node in graph.nodes
        ]
        for node in self.nodes:
            for array in node.arrays:
                array.settle()
        self.levels = Levels()
        self.regions = Regions(self)
        for string in (string for node in self.nodes for string in node.strings):
            if string.dfa.states > _MANY_STATES:
                # What takes long of it is found out now, rather than for the first mask.
                string.prepare()
                self.regions.prepare(string.dfa)
        self._cursors: dict[tuple[object, ...], ref[JsonCursor]] = {}
        self._most_cursors = _FEW_CURSORS
        self._items: dict[Level, Candidates] = {}
        self._distances: Distances | None = None
        self._root = graph.root

    @property
    def start(self) -> JsonCursor:
        """The cursor at the beginning of a text."""
        return self.value(UNDECIDED, ((self._root, self.levels.text),))

    def cursor(self, kind: type[AnyCursor], layout: Layout, *content: Any) -> AnyCursor:
        """The one cursor of some content; `content` is what `kind` takes."""
        # A WeakValueDictionary would do the same, at several times the cost of making a cursor.
        key = (kind, layout, content)
        known = self._cursors.get(key)
        cursor = None if known is None else known()
        if cursor is None:
            cursor = kind(self, layout, *content)
            self._cursors[key] = ref(cursor)
            if len(self._cursors) > self._most_cursors:
                self._forget_dead_cursors()
        return cursor  # type: ignore[return-value]

    def _forget_dead_cursors(self) -> None:
        self._cursors = {key: known for key, known in self._cursors.items() if known() is not None}
        self._most_cursors = max(2 * len(self._cursors), _FEW_CURSORS)

    def distances(self, cost: TokenCost) -> Distances:
        """The distances by the costs of a vocabulary; those of the last one asked for are kept."""
        if self._distances is None or self._distances.cost_of_literal != cost:
            self._distances = Distances(self, cost)
        return self._distances

    def farthest(self, cost: TokenCost, missing: bytes) -> int | None:
        """See `automaton.Automaton`."""
        return farthest(self, self.distances(cost), self._root, missing)

    def candidates(self, found: Iterable[tuple[NodeId, Level]]) -> Candidates:
        """What a value may be, in the one order, each node once."""
        found = tuple(found)
        if len(found) == 1:
            return found
        levels: dict[NodeId, list[Level]] = {}
        for node, level in found:
            levels.setdefault(node, []).append(level)
        return tuple(sorted((node, self.levels.union(levels[node])) for node in levels))

    def within(self, kind: Kind, state: Container, around: Level) -> Level:
        """The level of one entry."""
        return self.levels.single(kind, state, around)

    def items(self, level: Level) -> Candidates:
        """What the next item of an array may be; asked for again and again at one place."""
        known = self._items.get(level)
        if known is None:
            known = self.candidates(
                (node, self.within("array", after, around))
                for state, around in level.entries
                if isinstance(state, ArrayState)
                for node, after in state.items
            )
            if len(self._items) >= _MOST_ITEMS:
                self._items.clear()
            self._items[level] = known
        return known

    def opened(self, candidates: Candidates, kind: Kind) -> Level | None:
        """The level within a container that a value begins with; None if none can."""
        entries: list[tuple[Container, Level]] = []
        for number, level in candidates:
            node = self.nodes[number]
            machines = node.arrays if kind == "array" else node.objects
            entries += [(machine.start, level) for machine in machines]
        if len(entries) == 1:
            return self.levels.single(kind, *entries[0])
        return self.levels.of(kind, entries)

    def value(self, layout: Layout, candidates: Candidates) -> Value:
        """The cursor in front of a value, behind blanks if there are any."""
        return self.cursor(Value, layout, candidates, False)

    def string(self, layout: Layout, candidates: Candidates) -> StringCursor | None:
        """The cursor behind the opening quote of a value."""
        places = tuple(
            (string, 0, 0, level)
            for node, level in candidates
            for string in self.nodes[node].strings
        )
        return self.cursor(StringCursor, layout, places, b"") if places else None

    def name(self, layout: Layout, level: Level) -> NameCursor:
        """The cursor behind the opening quote of a name."""
        places = tuple(
            (
                state,
                around,
                state.machine.tree if state.choices else None,
                (0,) * len(state.classes),
                b"",
            )
            for state, around in level.entries
            if isinstance(state, ObjectState)
        )
        return self.cursor(NameCursor, layout, places, b"")


_FEW_CURSORS = 1024
_MANY_STATES = 512
_MOST_ITEMS = 64
