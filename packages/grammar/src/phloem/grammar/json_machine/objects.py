"""How far into an object a text is, which properties may come next, and the cheapest way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from phloem.grammar.dfa import Dfa
from phloem.grammar.errors import ConstraintTooComplex, GrammarError
from phloem.grammar.json_machine.name_tree import NameTree
from phloem.grammar.json_machine.paths import Paths, ShortestTexts
from phloem.grammar.json_machine.weights import INFINITE
from phloem.grammar.json_schema.shape import NodeId, ObjectShape
from phloem.grammar.json_schema.values import is_unicode

_MOST_FREE_NAMES = 64
_MOST_KNOWN = 256
UNKNOWN = b"\xff"
"""Stands for a name that was used and is not known; it is no UTF-8, so no name equals it."""

Member = tuple[bytes, NodeId, "ObjectState"]
"""A name, as content, the node of its value, and the state after it."""


class ObjectState:
    """Some properties of an object were read. One object per state: identity is equality."""

    __slots__ = (
        "__weakref__",
        "_choices",
        "_classes",
        "closable",
        "count",
        "demands",
        "machine",
        "names",
        "open",
    )

    def __init__(
        self, machine: ObjectMachine, open: int, count: int, names: frozenset[bytes], demands: int
    ) -> None:
        self.machine = machine
        self.open = open
        """Bit set of the declared properties that may still come, each by itself."""
        self.count = count
        """How many were read, as far as that matters."""
        self.names = names
        """The undeclared names that were used."""
        self.demands = demands
        enough = count >= machine.fewest
        self.closable = enough and not demands and not machine.required & open
        self._choices = -1
        self._classes: tuple[int, ...] | None = None

    @property
    def choices(self) -> int:
        """Bit set of the declared properties that may come next."""
        if self._choices < 0:
            self._choices = self.machine.choices(self)
        return self._choices

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes of undeclared properties of which one may come next."""
        if self._classes is None:
            self._classes = self.machine.classes(self)
        return self._classes

    @property
    def can_grow(self) -> bool:
        """Whether there may be another property."""
        return bool(self.choices or self.classes)

    def cheapest(self) -> Member:
        """The next property on the cheapest way, or of those that may be, once closable."""
        return self.machine.plan(self)


class ObjectMachine:
    """The states of one `ObjectShape`, for one order of properties."""

    def __init__(self, shape: ObjectShape, weights: Sequence[int], is_free: bool) -> None:
        """`weights` of the nodes; they may change until the first cheapest way is asked for.

        Raises:
            ConstraintTooComplex: if too many sets of demands or names would have to be told apart.
            GrammarError: if a required name can be written in no text.
        """
        self.shape = shape
        self._weights = weights
        self._is_free = is_free
        self.names = [prop.name.encode("utf-8", "surrogatepass") for prop in shape.properties]
        self.nodes = [prop.node for prop in shape.properties]
        self.required = 0
        self._declared = 0
        for number, prop in enumerate(shape.properties):
            if is_unicode(prop.name):
                self._declared |= 1 << number
                self.required |= prop.required << number
            elif prop.required:
                raise GrammarError(
                    f"the required name {prop.name!r} has half of a surrogate pair: it can be "
                    "written in no text; leave it out"
                )
        implied = shape.min_properties <= self.required.bit_count()
        self.fewest = 0 if implied else shape.min_properties
        """How many properties there have to be, where that is more than the required ones."""
        self.others = [(other.names, other.node, other.fulfils) for other in shape.others]
        self.paths = [Paths(names) for names, _, _ in self.others]
        missing = shape.min_properties - self.required.bit_count()
        if self.others and missing > _MOST_FREE_NAMES:
            raise ConstraintTooComplex(
                f"an object of at least {shape.min_properties} properties has too many states: "
                f"demand at most {_MOST_FREE_NAMES} properties beyond the required ones where "
                "names that are not declared are allowed"
            )
        self._limited = bool(self.fewest or shape.demands) or (shape.max_properties is not None)
        self.needs_names = bool(self.others) and bool(self.fewest or shape.demands)
        """Whether the way to the end may have undeclared names, which are not those used before."""
        self._shortest: dict[tuple[int, int], ShortestTexts] = {}
        self._along: dict[int, bool] = {}
        self._states: WeakValueDictionary[tuple[object, ...], ObjectState] = WeakValueDictionary()

    @cached_property
    def start(self) -> ObjectState:
        """The state of an empty object."""
        return self._state(self._declared, 0, frozenset(), (1 << self.shape.demands) - 1)

    @cached_property
    def tree(self) -> NameTree:
        """The declared names."""
        return NameTree.of(self.names)

    def _state(self, open: int, count: int, names: frozenset[bytes], demands: int) -> ObjectState:
        if self.shape.max_properties is None:
            count = min(count, self.fewest)
        key = (open, count, names, demands)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = ObjectState(self, open, count, names, demands)
        return state

    def after_declared(self, state: ObjectState, number: int) -> ObjectState:
        """The state after a declared property."""
        return self._state(
            self._open_after(state.open, number), state.count + 1, state.names, state.demands
        )

    def after_other(self, state: ObjectState, number: int, name: bytes) -> ObjectState:
        """The state after an undeclared property of a class."""
        open = state.open if self._is_free else 0
        demands = state.demands & ~self.others[number][2]
        return self._state(open, state.count + 1, state.names | {name}, demands)

    def is_live(self) -> bool:
        """Whether there is any such object, by the counts alone."""
        return self._can_finish(
            self._declared, 0, self._names_left(frozenset()), (1 << self.shape.demands) - 1
        )

    # What may come next.

    def choices(self, state: ObjectState) -> int:
        """Bit set of the declared properties that may come next."""
        open = state.open
        first = self.required & open & -(self.required & open)
        if first and not self._is_free:
            open &= (first << 1) - 1
        if not self._limited:
            return open
        left = self._names_left(state.names)
        found = 0
        for number in _bits(open):
            after = self._open_after(state.open, number)
            if self._can_finish(after, state.count + 1, left, state.demands):
                found |= 1 << number
        return found

    def classes(self, state: ObjectState) -> tuple[int, ...]:
        """The classes of undeclared properties of which one may come next."""
        if not self.others or (self.required & state.open and not self._is_free):
            return ()
        open = state.open if self._is_free else 0
        left = self._names_left(state.names)
        return tuple(
            number
            for number, (_, _, fulfils) in enumerate(self.others)
            if self.has_names(number, 0, b"", state.names)
            and self._can_finish(open, state.count + 1, left - 1, state.demands & ~fulfils)
        )

    def has_names(self, number: int, at: int, prefix: bytes, used: frozenset[bytes]) -> bool:
        """Whether a name of a class that begins with `prefix`, which led to `at`, is unused."""
        paths = self.paths[number]
        if not used or paths.unbounded or paths.heights[at] < 0:
            return True
        dfa = self.others[number][0]
        taken = _taken(dfa, [name for name in used if name.startswith(prefix) or name == UNKNOWN])
        return paths.words(at) > taken

    def goes_along(self, number: int) -> bool:
        """Whether names of a class may begin with any beginning of any declared name."""
        known = self._along.get(number)
        if known is None:
            dfa = self.others[number][0]
            known = self._along[number] = all(dfa.run(name) >= 0 for name in self.names)
        return known

    def _open_after(self, open: int, number: int) -> int:
        return open & ~(1 << number) if self._is_free else open >> (number + 1) << (number + 1)

    def _names_left(self, used: frozenset[bytes]) -> int:
        """How many undeclared names are unused."""
        left = 0
        for (names, _, fulfils), paths in zip(self.others, self.paths, strict=True):
            if names.is_finite and not fulfils:
                left += paths.words(0) - _taken(names, used)
            elif not names.is_finite:
                return INFINITE
        return left

    def _can_finish(self, open: int, count: int, names_left: int, demands: int) -> bool:
        required = (self.required & open).bit_count()
        fewest = required + self._fewest_others[demands]
        limit = self.shape.max_properties
        if fewest >= INFINITE or (limit is not None and count + fewest > limit):
            return False
        missing = self.fewest - count
        return missing <= fewest or missing <= open.bit_count() + names_left

    @cached_property
    def _fewest_others(self) -> list[int]:
        """By open demands: the fewest undeclared properties that fulfil them."""
        fewest = [0]
        for demands in range(1, 1 << self.shape.demands):
            counts = [
                fewest[demands & ~fulfils] + 1 for _, _, fulfils in self.others if fulfils & demands
            ]
            fewest.append(min(counts, default=INFINITE))
        return fewest

    # The cheapest way, by the weights of nodes.

    def weigh(self) -> int:
        """About how many bytes the smallest object takes, by the weights as they are now."""
        if not self.is_live():
            return INFINITE
        declared, others = self._needed(self.start, self._cheapest_first())
        total = 2 + sum(self._declared_weight(number) for number in _bits(declared))
        total += sum(self._other_weight(number) for number in others)
        return min(total, INFINITE)

    def plan(self, state: ObjectState) -> Member:
        """The next property of the cheapest way, if there can be one at all."""
        if state.closable:
            declared, others = self._cheapest_extra(state)
        else:
            declared, others = self.needed(state)
        if declared:
            number = (declared & -declared).bit_length() - 1
            return self.names[number], self.nodes[number], self.after_declared(state, number)
        number = others[0]
        name = self.unused_name(number, 0, state.names)
        return name, self.others[number][1], self.after_other(state, number, name)

    def cheapest_below(self, state: ObjectState, choices: int) -> int:
        """Of some declared properties that may come next, the one that a way by them takes."""
        if not state.closable:
            needed, _ = self.needed(state)
            first = needed & -needed
            if first & choices:
                return first.bit_length() - 1
        among = numbers_of(choices, len(self.names))
        return int(among[self._declared_weights[among].argmin()])

    @cached_property
    def _declared_weights(self) -> npt.NDArray[np.int64]:
        return np.array([self._declared_weight(number) for number in range(len(self.names))])

    @cached_property
    def _settled_order(self) -> npt.NDArray[np.intp]:
        return self._cheapest_first()

    def _cheapest_first(self) -> npt.NDArray[np.intp]:
        """The declared properties that are not required, by their weights as they are now."""
        optional = numbers_of(self._declared & ~self.required, len(self.names))
        weights = [self._declared_weight(number) for number in optional.tolist()]
        return optional[np.argsort(np.array(weights, np.int64), kind="stable")]

    def needed(self, state: ObjectState) -> tuple[int, list[int]]:
        """The declared properties and the classes of others that the cheapest way has.

        Declared ones come first, in their order. A rest of the way is the way from there: the
        extra ones are the first in one fixed order.
        """
        return self._needed(state, self._settled_order)

    def _needed(self, state: ObjectState, order: npt.NDArray[np.intp]) -> tuple[int, list[int]]:
        declared = self.required & state.open
        others = self._cover(state.demands, self._room(state) - declared.bit_count())
        missing = self.fewest - state.count - declared.bit_count() - len(others)
        if missing <= 0:
            return declared, others
        is_open = np.zeros(len(self.names), bool)
        is_open[numbers_of(state.open, len(self.names))] = True
        extra = order[is_open[order]][:missing].tolist()
        free = []
        for number, (names, _, fulfils) in enumerate(self.others):
            if not fulfils:
                left = missing
                if names.is_finite:
                    left = self.paths[number].words(0) - _taken(names, state.names)
                free += [(self._other_weight(number), 1, number)] * min(left, missing)
        if free:
            ranked = sorted([*((self._declared_weight(n), 0, n) for n in extra), *free])[:missing]
            extra = [number for _, is_other, number in ranked if not is_other]
            others += [number for _, is_other, number in ranked if is_other]
        for number in extra:
            declared |= 1 << number
        return declared, others

    def _cheapest_extra(self, state: ObjectState) -> tuple[int, list[int]]:
        ranked = [(self._declared_weight(number), 0, number) for number in _bits(state.choices)]
        ranked += [(self._other_weight(number), 1, number) for number in state.classes]
        _, is_other, number = min(ranked)
        return (0, [number]) if is_other else (1 << number, [])

    def _cover(self, demands: int, room: int) -> list[int]:
        """The classes, in at most `room` properties, that fulfil demands most cheaply."""
        return self._covers(demands, min(room, demands.bit_count()))[1] if demands else []

    def _covers(self, demands: int, room: int) -> tuple[int, list[int]]:
        if not demands:
            return 0, []
        best: tuple[int, list[int]] = (INFINITE, [])
        for number, (_, _, fulfils) in enumerate(self.others):
            left = demands & ~fulfils
            if left != demands and self._fewest_others[left] < room:
                weight, rest = self._covers(left, room - 1)
                weight += self._other_weight(number)
                if weight < best[0] or not best[1]:
                    best = (weight, [number, *rest])
        return best

    def _room(self, state: ObjectState) -> int:
        limit = self.shape.max_properties
        return self.shape.demands + len(self.names) if limit is None else limit - state.count

    def _declared_weight(self, number: int) -> int:
        return len(self.names[number]) + 4 + self._weights[self.nodes[number]]

    def _other_weight(self, number: int) -> int:
        return self.paths[number].lengths[0] + 4 + self._weights[self.others[number][1]]

    def alternatives(self, used: frozenset[bytes], name: bytes) -> list[bytes]:
        """A name that `plan` tells, and the one that it would be if an unknown name was that."""
        if UNKNOWN not in used:
            return [name]
        classes = [n for n, (names, _, _) in enumerate(self.others) if names.accepts(name)]
        rests = [rest for number in classes for rest in self.rests(number, 0, b"", used)]
        return rests or [name]

    def rests(self, number: int, at: int, name: bytes, used: frozenset[bytes]) -> list[bytes]:
        """How an unfinished name, which led to `at`, can become an unused one most shortly.

        Where a used name is not known, it may be the first of these; then it is the second.
        """
        known = frozenset(other[len(name) :] for other in used if other.startswith(name))
        first = self.unused_name(number, at, known)
        if UNKNOWN not in used:
            return [first]
        second = self.unused_name(number, at, known | {first})
        return [first, second or first]

    def unused_name(self, number: int, at: int, used: frozenset[bytes]) -> bytes:
        """The shortest rest of a name from state `at` of a class that is none of `used` rests.

        From every state on its way, it is the rest of it.
        """
        if not used:
            return self.paths[number].shortest(at)
        texts = self._shortest.get((number, at))
        if texts is None:
            if len(self._shortest) >= _MOST_KNOWN:
                self._shortest.clear()
            texts = self._shortest[number, at] = ShortestTexts(self.paths[number], at)
        return texts.first_without(used)


def _taken(names: Dfa, used: Iterable[bytes]) -> int:
    """How many of the used names are of a class; one that is not known counts everywhere."""
    return sum(1 for name in used if name == UNKNOWN or names.accepts(name))


def numbers_of(mask: int, count: int) -> npt.NDArray[np.intp]:
    """The numbers below `count` of the bits of a set, ascending."""
    packed = np.frombuffer(mask.to_bytes((count + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
