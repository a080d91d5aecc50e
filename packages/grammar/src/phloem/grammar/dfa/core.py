"""`Dfa`: a regular language over bytes, and the algebra of such languages.

Compiling a notation into one is `regex/`; following one token by token is the engine's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import compress

import numpy as np

from phloem.grammar.dfa import acyclic, literals, product, subsets
from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.minimize import EMPTY, minimal
from phloem.grammar.dfa.minimize_small import sources_of_rows
from phloem.grammar.dfa.plain import Plain, content, plain_of, table_of
from phloem.grammar.dfa.product_small import small_meet, small_product
from phloem.grammar.dfa.serial import packed, unpacked
from phloem.grammar.dfa.table import (
    Bools,
    Ints,
    Table,
    distances,
    few_distances,
    few_heights,
    heights,
)

_DEFAULT = Budget()


class Dfa:
    """A regular language: minimal, every state live, equal to any other of the same language.

    States are numbers from 0, the start; the empty language has none at all. Every operation that
    can grow takes a `Budget` and raises `ConstraintTooComplex` when it is spent.
    """

    def __init__(self, automaton: Table | Plain, budget: Budget = _DEFAULT) -> None:
        """From any automaton over bytes; it is trimmed and minimized here."""
        self._set(minimal(automaton, budget))

    @classmethod
    def of_minimal(cls, automaton: Table | Plain) -> Dfa:
        """From what is trimmed, minimal and canonically numbered already; it is not looked at."""
        dfa = cls.__new__(cls)
        dfa._set(automaton)
        return dfa

    def _set(self, automaton: Table | Plain) -> None:
        self._form = automaton
        self.states = len(automaton.accepting)
        self._firsts: dict[int, bytes] = {}

    @cached_property
    def table(self) -> Table:
        """The automaton in arrays, which must not be written to."""
        form = self._form
        table = table_of(form) if isinstance(form, Plain) else form
        for array in table:
            array.setflags(write=False)
        return table

    @cached_property
    def _plain(self) -> Plain:
        form = self._form
        return form if isinstance(form, Plain) else plain_of(form)

    # Languages to begin with.

    @classmethod
    def empty(cls) -> Dfa:
        """No text at all, not even the empty one."""
        return cls(EMPTY)

    @classmethod
    def literal(cls, literal: bytes) -> Dfa:
        """One text."""
        return cls.of_literals([literal])

    @classmethod
    def of_literals(cls, texts: Iterable[bytes], budget: Budget = _DEFAULT) -> Dfa:
        """Any of some texts. Tens of thousands are fine."""
        return cls.of_minimal(acyclic.of_literals(texts, budget) or EMPTY)

    @classmethod
    def any_text(cls) -> Dfa:
        """All well-formed UTF-8."""
        return _any_text()

    @classmethod
    def of_lengths(cls, fewest: int, most: int | None, budget: Budget = _DEFAULT) -> Dfa:
        """Well-formed UTF-8 of `fewest` to `most` characters; None: any number from `fewest`."""
        if most is not None and most < fewest:
            return cls.empty()
        return cls(literals.of_lengths(fewest, most, budget), budget)

    @classmethod
    def of_ranges(
        cls,
        edges: Iterable[tuple[int, int, int, int]],
        accepting: Sequence[bool],
        budget: Budget = _DEFAULT,
    ) -> Dfa:
        """From edges (source, first byte, last byte, target); `accepting` has one item per state.

        The edges of a state may not overlap.
        """
        return cls(literals.of_edges(edges, list(accepting)), budget)

    # The algebra.

    def union(self, other: Dfa, budget: Budget = _DEFAULT) -> Dfa:
        """Texts of either."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        return self._combined(other, product.UNION, budget)

    def intersect(self, other: Dfa, budget: Budget = _DEFAULT) -> Dfa:
        """Texts of both."""
        if self.is_empty or other.is_empty:
            return Dfa.empty()
        return self._combined(other, product.INTERSECTION, budget)

    def meets(self, other: Dfa, budget: Budget = _DEFAULT) -> bool:
        """Whether there is a text of both: `intersect`, as far as it takes to know that."""
        if self.is_empty or other.is_empty:
            return False
        if self.states * other.states <= _FEW_PAIRS:
            return small_meet(self._plain, other._plain, budget)
        return not self.intersect(other, budget).is_empty

    def difference(self, other: Dfa, budget: Budget = _DEFAULT) -> Dfa:
        """Texts of this one that are not texts of the other."""
        if self.is_empty or other.is_empty:
            return self
        return self._combined(other, product.DIFFERENCE, budget)

    def _combined(self, other: Dfa, combination: product.Combination, budget: Budget) -> Dfa:
        if self.states * other.states <= _FEW_PAIRS:
            return Dfa(small_product(self._plain, other._plain, combination, budget), budget)
        return Dfa(product.product(self.table, other.table, combination, budget), budget)

    def complement(self, budget: Budget = _DEFAULT) -> Dfa:
        """Well-formed UTF-8 that is no text of this one."""
        return Dfa.any_text().difference(self, budget)

    def concat(self, other: Dfa, budget: Budget = _DEFAULT) -> Dfa:
        """A text of this one, then one of the other."""
        if self.is_empty or other.is_empty:
            return Dfa.empty()
        return Dfa(subsets.concatenation(self._plain, other._plain, budget), budget)

    def repeat(self, fewest: int, most: int | None, budget: Budget = _DEFAULT) -> Dfa:
        """`fewest` to `most` texts of this one, one behind the other; None: any number more."""
        if most is not None and most < fewest:
            return Dfa.empty()
        if self.is_empty or most == 0:
            return Dfa.literal(b"") if fewest == 0 else Dfa.empty()
        return Dfa(subsets.repetition(self._plain, fewest, most, budget), budget)

    def without_bytes(self, left_out: bytes, budget: Budget = _DEFAULT) -> Dfa:
        """The texts that contain none of some bytes."""
        return Dfa(self._avoiding(left_out), budget)

    def lives_without(self, left_out: bytes) -> bool:
        """Whether from every state a text can be ended without some bytes."""
        table = self.table
        counts = np.bincount(table.classes, minlength=table.next.shape[1])
        gone = np.bincount(table.classes[list(left_out)], minlength=table.next.shape[1]) == counts
        if not (table.next[:, gone] >= 0).any():
            return True
        following = table.next.copy()
        following[:, gone] = -1
        return bool((distances(table._replace(next=following)) >= 0).all())

    def _avoiding(self, left_out: bytes) -> Table:
        transitions = self.transitions.copy()
        transitions[:, list(left_out)] = -1
        return Table(transitions, self.accepting, np.arange(256, dtype=np.uint8))

    def __eq__(self, other: object) -> bool:
        """Whether the languages are equal."""
        return self is other or (isinstance(other, Dfa) and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> bytes:
        """A hash of the language."""
        form = self._form
        if isinstance(form, Plain):
            return hashlib.sha256(content(form)).digest()
        return hashlib.sha256(b"".join(array.tobytes() for array in form)).digest()

    # Reading texts.

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte, or -1."""
        return self._rows[state][self._classes[byte]]

    def row(self, state: int) -> list[int]:
        """By class of bytes: the next state, or -1."""
        return self._rows[state]

    @property
    def class_bytes(self) -> bytes:
        """[256]: `table.classes` as bytes."""
        return self._classes

    def run(self, text: bytes, state: int = 0) -> int:
        """The state after some bytes, or -1."""
        rows, classes = self._rows, self._classes
        if not self.states:
            return -1
        for byte in text:
            state = rows[state][classes[byte]]
            if state < 0:
                return -1
        return state

    def accepts(self, text: bytes) -> bool:
        """Whether a text belongs to the language."""
        state = self.run(text)
        return state >= 0 and self.may_end(state)

    def first_bytes(self, state: int) -> bytes:
        """The bytes that may come next, ascending."""
        found = self._firsts.get(state)
        if found is None:
            alive = bytes([target >= 0 for target in self._rows[state]])
            found = self._firsts[state] = bytes(compress(range(256), self._classes_in(alive)))
        return found

    @cached_property
    def alphabet(self) -> bytes:
        """The bytes that any text has, ascending."""
        alive = np.any(self.table.next >= 0, axis=0)
        return np.flatnonzero(alive[self.table.classes]).astype(np.uint8).tobytes()

    def _classes_in(self, values: bytes) -> bytes:
        """By byte: the value of its class."""
        return self._classes.translate(values.ljust(256, b"\0"))

    @property
    def accepting(self) -> Bools:
        """[states]: where a text may end."""
        return self.table.accepting

    def may_end(self, state: int) -> bool:
        """Whether a text may end in a state."""
        return bool(self._form.accepting[state])

    @cached_property
    def transitions(self) -> Ints:
        """[states, 256]: `step` as an array. Large: `table` is the same in classes of bytes."""
        return self.table.next[:, self.table.classes]

    # Facts about the language.

    @property
    def is_empty(self) -> bool:
        """Whether there is no text."""
        return not self.states

    @cached_property
    def is_finite(self) -> bool:
        """Whether there are finitely many texts."""
        return self.longest is not None

    @cached_property
    def longest(self) -> int | None:
        """The bytes of the longest text; None without a limit; 0 for the empty language."""
        if self.is_empty:
            return 0
        height = self.heights[0]
        return None if height < 0 else height

    @cached_property
    def heights(self) -> list[int]:
        """[states]: the most bytes that can follow; -1 without a limit."""
        form = self._form
        if isinstance(form, Plain):
            return few_heights(sources_of_rows(form.rows))
        return heights(form).tolist()  # type: ignore[no-any-return]

    @cached_property
    def byte_distances(self) -> Ints:
        """[states]: the fewest bytes to the end of a text."""
        form = self._form
        if isinstance(form, Plain):
            return np.array(few_distances(form.accepting, sources_of_rows(form.rows)), np.int32)
        return distances(form)

    @cached_property
    def char_distances(self) -> Ints:
        """[states]: the fewest characters that begin before the end of a text.

        Continuation bytes count nothing, so within a character it is what comes after it.
        """
        following = self.table.next
        costs = np.ones(following.shape[1], np.int64)
        costs[self.table.classes[0x80:0xC0]] = 0
        mixed = np.unique(self.table.classes[np.r_[0:0x80, 0xC0:256]])
        costs[mixed] = 1  # a class of both kinds of bytes is alive only in automata of no text
        result = np.where(self.accepting, 0, np.int64(1) << 40)
        while True:
            best = (np.append(result, np.int64(1) << 40)[following] + costs).min(axis=1)
            better = np.minimum(result, best)
            if (better == result).all():
                return result.astype(np.int32)
            result = better

    def shortest(self, state: int = 0) -> bytes:
        """The rest of a shortest text from a state; from every state on it, the rest of it.

        Raises:
            ValueError: if the language is empty.
        """
        if self.is_empty:
            raise ValueError("the empty language has no shortest text: ask is_empty first")
        towards, bytes_towards = self._ways
        path = bytearray()
        while towards[state] >= 0:
            path.append(bytes_towards[state])
            state = towards[state]
        return bytes(path)

    @cached_property
    def way_bytes(self) -> frozenset[int]:
        """All bytes of the texts that `shortest` gives for the states."""
        ways = zip(*self._ways, strict=True)
        return frozenset(byte for following, byte in ways if following >= 0)

    @cached_property
    def _ways(self) -> tuple[list[int], bytes]:
        """By state: the next one on the way to the nearest end (-1 there), and a byte to it."""
        _, firsts = np.unique(self.table.classes, return_index=True)
        far = np.append(self.byte_distances, np.iinfo(np.int32).max)[self.table.next]
        columns = far.argmin(axis=1)
        following = self.table.next[np.arange(self.states), columns]
        towards = np.where(self.accepting, -1, following)
        return towards.tolist(), firsts[columns].astype(np.uint8).tobytes()

    @cached_property
    def _rows(self) -> list[list[int]] | _RowsByBlock:
        form = self._form
        if isinstance(form, Plain):
            return form.rows
        return form.next.tolist() if self.states <= _BLOCK else _RowsByBlock(form.next)

    @cached_property
    def _classes(self) -> bytes:
        form = self._form
        return form.classes if isinstance(form, Plain) else form.classes.tobytes()

    # Compiled form.

    def serialize(self) -> bytes:
        """A compact form that `deserialize` reads."""
        return packed(self.table)

    @classmethod
    def deserialize(cls, data: bytes) -> Dfa:
        """What `serialize` gave.

        Raises:
            GrammarError: if the bytes are damaged.
        """
        return _deserialized_once(data) if len(data) <= _OFTEN else _deserialized(data)


class _RowsByBlock(dict[int, list[int]]):
    """The rows of a large table by state, made lists a block at a time when one is asked for."""

    def __init__(self, table: Ints) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, state: int) -> list[int]:
        begin = state - state % _BLOCK
        block = self._table[begin : begin + _BLOCK].tolist()
        self.update(zip(range(begin, begin + _BLOCK), block, strict=False))
        return block[state - begin]  # type: ignore[no-any-return]


_BLOCK = 512
_FEW_PAIRS = 1 << 14
"""So few pairs of states are combined faster without arrays."""


def _deserialized(data: bytes) -> Dfa:
    return Dfa.of_minimal(unpacked(data))


_OFTEN = 1024
_deserialized_once = lru_cache(maxsize=256)(_deserialized)
"""Small ones are in many constraints; what was found out about them is kept with them."""


@lru_cache(maxsize=1)
def _any_text() -> Dfa:
    return Dfa.of_lengths(0, None)
