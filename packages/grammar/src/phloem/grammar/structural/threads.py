"""The places of a structural tag at which a thread may be, and which one leads to which."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from phloem.grammar.automaton import UNSPELLABLE, Automaton, Cursor, Region, TokenCost
from phloem.grammar.dfa import Dfa
from phloem.grammar.structural.free_text import FreeText
from phloem.grammar.structural.spec import StructuralTag, Tag


@dataclass(frozen=True, slots=True)
class ThreadRegion:
    """A `Region` by threads instead of cursors."""

    dfa: Dfa
    state: int
    threads: Callable[[int], tuple[Thread, ...]]
    apart: tuple[bytes, ...] = ()
    dead: tuple[bytes, ...] = ()


class Thread(Protocol):
    """One way to read the text so far. Immutable, hashable, live."""

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        ...

    def step(self, byte: int) -> tuple[Thread, ...]:
        """The threads after one more byte; none if it may not come."""
        ...

    def first_bytes(self) -> Iterable[int]:
        """The bytes that may come."""
        ...

    def region(self) -> ThreadRegion | None:
        """See `Cursor.region`."""
        ...

    def distance(self, cost: TokenCost) -> int | None:
        """See `Cursor.distance`."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """Behind the last tag: the text ends here."""

    complete: bool = True

    def step(self, byte: int) -> tuple[Thread, ...]:
        """Nothing may come."""
        return ()

    def first_bytes(self) -> bytes:
        """None."""
        return b""

    def region(self) -> None:
        """None."""
        return None

    def distance(self, cost: TokenCost) -> int:
        """0."""
        return 0


@dataclass(frozen=True, slots=True)
class AtFree:
    """In free text."""

    machine: Machine = field(compare=False, repr=False)
    state: int
    done: bool
    """Whether no tag is missing any more."""

    @property
    def complete(self) -> bool:
        """Whether no character is under way, and no tag is missing."""
        return self._free.complete[self.state] and self.done

    @property
    def _free(self) -> FreeText:
        assert self.machine.free is not None, "a thread in free text where there is none"
        return self.machine.free

    def step(self, byte: int) -> tuple[Thread, ...]:
        """More free text, or the beginning of a tag."""
        following = self._free.rows[self.state][byte]
        if following >= 0:
            return (AtFree(self.machine, following, self.done),)
        trigger = self._free.trigger_after.get((self.state, byte))
        return () if trigger is None else self.machine.after_trigger(trigger)

    def first_bytes(self) -> bytes:
        """All but those that make no UTF-8."""
        row = self._free.rows[self.state]
        after = self._free.trigger_after
        return bytes(b for b in range(256) if row[b] >= 0 or (self.state, b) in after)

    def region(self) -> ThreadRegion | None:
        """Free text, left by a trigger."""
        free = self._free
        if free.dfa is None:
            return None
        return ThreadRegion(
            free.dfa,
            free.to_dfa[self.state],
            lambda place: (AtFree(self.machine, free.of_dfa[place], self.done),),
        )

    def distance(self, cost: TokenCost) -> int | None:
        """Of the rest of a character, and of the shortest tag that may be under way, if needed."""
        rest = self._free.rest_of_character(self.state)
        if rest is None:
            return None
        if self.done:
            return cost(rest) if rest else 0
        return (cost(rest) if rest else 0) + self._distance_of_tag(self._after(rest), cost)

    def _after(self, text: bytes) -> int:
        state = self.state
        for byte in text:
            state = self._free.rows[state][byte]
        return state

    def _distance_of_tag(self, state: int, cost: TokenCost) -> int:
        prefix = self._free.prefixes[state]
        tags = self.machine.spec.tags
        under_way = [i for i, tag in enumerate(tags) if tag.begin.startswith(prefix)]
        return min(
            (self.machine.cost_of_tag(i, len(prefix), cost) for i in under_way),
            default=UNSPELLABLE,
        )


@dataclass(frozen=True, slots=True)
class AtLiteral:
    """In the begin or the end of a tag."""

    machine: Machine = field(compare=False, repr=False)
    literal: bytes
    place: int
    tag: int
    is_end: bool
    complete: bool = False

    def step(self, byte: int) -> tuple[Thread, ...]:
        """The next byte of the literal."""
        if self.literal[self.place] != byte:
            return ()
        return self.machine.in_literal(
            AtLiteral(self.machine, self.literal, self.place + 1, self.tag, self.is_end)
        )

    def first_bytes(self) -> tuple[int]:
        """The next byte of the literal."""
        return (self.literal[self.place],)

    def region(self) -> None:
        """None."""
        return None

    def distance(self, cost: TokenCost) -> int:
        """Of the rest of the tag."""
        rest = cost(self.literal[self.place :])
        if self.is_end:
            return rest
        end_of_begin = len(self.machine.tag(self.tag).begin)
        return rest + self.machine.cost_of_tag(self.tag, end_of_begin, cost)


@dataclass(frozen=True, slots=True)
class AtContent:
    """In the constrained part of a tag."""

    machine: Machine = field(compare=False, repr=False)
    tag: int
    cursor: Cursor
    complete: bool = False

    def step(self, byte: int) -> tuple[Thread, ...]:
        """The next byte of the content."""
        following = self.cursor.step(byte)
        return () if following is None else self.machine.in_content(self.tag, following)

    def first_bytes(self) -> Iterable[int]:
        """Those of the content."""
        return self.cursor.first_bytes()

    def region(self) -> ThreadRegion | None:
        """That of the content."""
        region = self.cursor.region()
        if region is None or not self.machine.keeps_region(self.tag, region):
            return None
        return ThreadRegion(
            region.dfa,
            region.state,
            lambda state: self.machine.in_content(self.tag, region.cursor(state)),
            region.apart,
            region.dead,
        )

    def distance(self, cost: TokenCost) -> int | None:
        """Of the content and the end."""
        content = self.cursor.distance(cost)
        return None if content is None else content + cost(self.machine.tag(self.tag).end)


class Machine:
    """What the threads of one structural tag share: where each thing leads to."""

    def __init__(self, spec: StructuralTag, contents: tuple[Automaton, ...]) -> None:
        self.spec = spec
        self._contents = contents
        self.free = FreeText(spec.triggers) if spec.triggers else None
        self._regions: dict[tuple[int, Dfa], bool] = {}

    @cached_property
    def start(self) -> tuple[Thread, ...]:
        """At the beginning of a text."""
        if self.free is not None:
            return (AtFree(self, 0, done=not self.spec.at_least_one),)
        begins = self._begins(range(len(self.spec.tags)), 0)
        return begins if self.spec.at_least_one else (*begins, Finished())

    def after_trigger(self, number: int) -> tuple[Thread, ...]:
        """Behind a trigger in free text."""
        trigger = self.spec.triggers[number]
        tags = [i for i, tag in enumerate(self.spec.tags) if tag.begin.startswith(trigger)]
        return self._begins(tags, len(trigger))

    def after_begin(self, tag: int) -> tuple[Thread, ...]:
        """At the start of a content."""
        return self.in_content(tag, self._contents[tag].start)

    def in_content(self, tag: int, cursor: Cursor) -> tuple[Thread, ...]:
        """Within a content, and at the end of it if it may end there."""
        inside = AtContent(self, tag, cursor)
        if not cursor.complete:
            return (inside,)
        ending = self.in_literal(AtLiteral(self, self.tag(tag).end, 0, tag, is_end=True))
        return (inside, *ending) if any(True for _ in cursor.first_bytes()) else ending

    def in_literal(self, thread: AtLiteral) -> tuple[Thread, ...]:
        """Within a begin or an end, or behind it."""
        if thread.place < len(thread.literal):
            return (thread,)
        return self.after_end() if thread.is_end else self.after_begin(thread.tag)

    def after_end(self) -> tuple[Thread, ...]:
        """Behind a tag."""
        if self.spec.stop_after_first:
            return (Finished(),)
        if self.free is not None:
            return (AtFree(self, 0, done=True),)
        return (*self._begins(range(len(self.spec.tags)), 0, self.spec.separator), Finished())

    def _begins(self, tags: Iterable[int], place: int, before: bytes = b"") -> tuple[Thread, ...]:
        found: list[Thread] = []
        for tag in tags:
            literal = AtLiteral(self, before + self.tag(tag).begin, place, tag, is_end=False)
            found.extend(self.in_literal(literal))
        return tuple(found)

    def tag(self, number: int) -> Tag:
        """A tag by its number."""
        return self.spec.tags[number]

    def keeps_region(self, tag: int, region: Region) -> bool:
        """Whether a content's region tells all: no end of the tag can begin inside of it."""
        key = (tag, region.dfa)
        if key not in self._regions:
            self._regions[key] = self._is_apart(self.tag(tag).end, region)
        return self._regions[key]

    def _is_apart(self, end: bytes, region: Region) -> bool:
        states = range(len(region.dfa.accepting))
        complete = [state for state in states if region.cursor(state).complete]
        return not complete or (
            bool(end) and all(region.dfa.step(state, end[0]) < 0 for state in complete)
        )

    def cost_of_tag(self, tag: int, written: int, cost: TokenCost) -> int:
        """The fewest tokens for the rest of a tag of whose begin some bytes are written."""
        content = self._contents[tag].start.distance(cost)
        if content is None:
            return UNSPELLABLE
        return cost(self.tag(tag).begin[written:]) + content + cost(self.tag(tag).end)
