"""The contract between automata over bytes and the one engine that turns them into token masks.

An automaton is anything that reads a text byte by byte: a regular expression, a pushdown over a
JSON schema, free text with constrained parts. Its positions are cursors. This module holds the
protocols and the hints for wide positions and for forced text; `token_engine.py` is the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from phloem.grammar.dfa import Dfa

TokenCost: TypeAlias = Callable[[bytes], int]
"""The fewest tokens of a vocabulary that spell a literal; `UNSPELLABLE` or more if none do."""

UNSPELLABLE = 1 << 30
"""A distance greater than that of any text, yet small enough to be added up."""


class Cursor(Protocol):
    """A position of an automaton: immutable, hashable, equal where the same texts may follow.

    Equality may be finer than that, but positions that come back (in a loop) must be equal, or the
    caches of masks do not hit. Hashing and equality are on the hot path: cache the hash, or intern
    and compare by identity.

    Every cursor is live: a complete text can be reached from it. `step` returns None rather than a
    dead end.
    """

    def step(self, byte: int) -> Cursor | None:
        """The position after one more byte; None if that byte may not come here."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        ...

    def first_bytes(self) -> Iterable[int]:
        """The bytes for which `step` is not None, each once, in ascending order."""
        ...

    @property
    def has_choice(self) -> bool:
        """Whether it is clear at once that there is no one byte that must come next. Where it is
        not, `first_bytes` is looked at."""
        ...

    def moves(self, among: Collection[int]) -> Iterable[tuple[int, Cursor]]:
        """Those of some bytes for which `step` is not None, in any order, with what it gives.

        Others may be told as well: a cursor that finds them all at once need not look.
        """
        ...

    def run(self) -> Run | None:
        """For a position where one byte is legal: what must come. It need not be told."""
        ...

    def region(self) -> Region | None:
        """For a position where a great many bytes are legal: a DFA that it moves within."""
        ...

    def part(self) -> Part | None:
        """For a position within a part of the text that is alike in many places; or None."""
        ...

    def distance(self, cost: TokenCost) -> int | None:
        """An upper bound of the fewest tokens to a complete text: 0 if complete, None if unknown.

        Must be consistent, or steering finds no way: where it is d > 0, some token leads to a
        cursor whose distance is at most d - 1. Spelling one fixed completion with `cost` is
        consistent if the completion of every position on it is the rest of it.
        """
        ...


class Run(NamedTuple):
    """A text that must come next, so that tokens are compared with it rather than walked."""

    text: bytes
    """Not empty; no position before its end is complete."""
    cursor: Callable[[int], Cursor]
    """The position behind so many bytes of it: `step`, as many times."""


class Region(NamedTuple):
    """Where a cursor is within a DFA that it follows until a byte that the DFA does not know.

    While bytes stay inside `dfa` (its transition is not -1) the position equals `cursor(state)`.
    For any other byte it is `cursor(state).step(byte)`, which leaves the region. So the mask of a
    string body or of free text is a sweep of the whole vocabulary through arrays, and only
    the tokens with a closing quote, a backslash or a trigger in them are walked one by one.

    Sweeps are cached by `dfa` (compared by content) and `state`: give the same object for the
    same region, whatever surrounds it.
    """

    dfa: Dfa
    """`accepting` is not looked at: `cursor(state).complete` says where a text may end."""
    state: int
    cursor: Callable[[int], Cursor]
    closed: bool = False
    """Whether no byte leaves the region, that is, all cursors of it step within `dfa` only."""
    leaving: bytes | None = None
    """All bytes that may leave it, which spares asking about others; None: any may."""
    apart: tuple[bytes, ...] = ()
    """Texts along which the cursor that gave this region tells more than `cursor` does: what leaves
    the region right here or behind any beginning of one leads where its own steps say. Such a text
    need not stay inside; to where it leads, then, its own steps say as well."""
    dead: tuple[bytes, ...] = ()
    """Beginnings of those that are not legal, although they stay inside."""
    moved: Moved | None = None
    """What `state` has in common with others, so that one sweep tells of them all."""


class Moved(NamedTuple):
    """How a state of a DFA that counts compares with that where the count begins.

    What leads from `state - by` to some state leads from `state` to the one that is `by` more; not
    at all, where that is more than `last`. No byte leads to a smaller state, and those by which a
    region is left do not depend on the state.
    """

    by: int
    last: int


class Part(Protocol):
    """Something within a text, as a value of JSON is, by itself: what may come does not depend on
    what is around it until it ends.

    The texts that may follow the position which gave it are those of `cursor()`, up to where `mark`
    is not None, followed by those of `outer` of that mark; and those that begin with one of
    `others`. So masks are found once for all places where the part may stand.
    """

    @property
    def key(self) -> tuple[object, ...]:
        """Equal where `cursor()` and all that follows from it are alike."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether the key is good for all automata, and no mark or key refers to one."""
        ...

    @property
    def others(self) -> bytes:
        """Bytes that do not belong to the part: `step` of the position itself is asked for them."""
        ...

    def holds(self, texts: Texts) -> bool:
        """Whether what is said above is true of some texts; of others it need not be."""
        ...

    def cursor(self) -> Cursor:
        """The position with nothing around the part."""
        ...

    def mark(self, cursor: Cursor) -> object | None:
        """Tells an end of the part, or a position where what is around it matters, by a hashable.

        None: neither. The part may also go on behind an end that is `complete`. Positions that a
        region or a run of the part passes have no mark.
        """
        ...

    def outer(self, mark: object) -> Cursor:
        """The position in the whole text where the part has come to a mark."""
        ...


class Texts(Protocol):
    """Texts that are asked about at once, as tokens are: a prefix tree."""

    @property
    def below(self) -> Mapping[int, Texts]:
        """By the next byte: how the texts with it go on."""
        ...


class Automaton(Protocol):
    """A set of texts as something that reads them. Immutable to its users."""

    @property
    def start(self) -> Cursor:
        """The position at the beginning of a text."""
        ...

    def farthest(self, cost: TokenCost, missing: bytes) -> int | None:
        """An upper bound of `Cursor.distance` of all cursors; None: there is none, or not known.

        While more tokens than that are left, steering has nothing to do. `missing` are the bytes
        that no token is by itself.
        """
        ...

    def serialize(self) -> bytes:
        """The compiled form; what builds this kind of automaton also reads it."""
        ...
