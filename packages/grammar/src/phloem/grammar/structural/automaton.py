"""A structural tag as an automaton: threads through free text, begins, contents and ends.

Where a content could go on with the bytes of its end, both ways are followed side by side, so a
cursor is a set of threads; nearly always of one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator

from phloem.grammar.automaton import UNSPELLABLE, Automaton, Region, TokenCost
from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import GrammarError, UnsupportedConstraint
from phloem.grammar.structural.spec import Tag, parse_structural_tag
from phloem.grammar.structural.threads import Machine, Thread


def compile_structural_tag(
    constraint: Constraint, compile_content: Callable[[Constraint], Automaton]
) -> StructuralTagAutomaton:
    """The automaton of a constraint of the kind `structural_tag`.

    Args:
        compile_content: compiles the regular expressions, schemas and choices of tags.

    Raises:
        UnsupportedConstraint, GrammarError: of the structural tag, or of a content; then the
            pointer leads through the tag.
        ConstraintTooComplex: if a limit was reached.
    """
    tags = parse_structural_tag(constraint).tags
    return StructuralTagAutomaton(constraint, [_content(tag, compile_content) for tag in tags])


def _content(tag: Tag, compile_content: Callable[[Constraint], Automaton]) -> Automaton:
    try:
        return compile_content(tag.content)
    except UnsupportedConstraint as refusal:
        # A regular expression's pointer is an offset; the way to the expression says more.
        inner = refusal.pointer if refusal.pointer.startswith("/") else ""
        raise UnsupportedConstraint(
            tag.pointer + inner, refusal.keyword, refusal.reason
        ) from refusal


def read_structural_tag(
    data: bytes, read_content: Callable[[str, bytes], Automaton]
) -> StructuralTagAutomaton:
    """What `serialize` of a structural tag's automaton gave.

    Args:
        read_content: what `serialize` of an automaton for a constraint of a kind gave.

    Raises:
        GrammarError: if the bytes are damaged.
    """
    line, _, body = data.partition(b"\n")
    try:
        header = json.loads(line)
        constraint = Constraint(**header["constraint"])
        lengths = [int(length) for length in header["lengths"]]
        tags = parse_structural_tag(constraint).tags
        contents, start = [], 0
        for tag, length in zip(tags, lengths, strict=True):
            contents.append(read_content(tag.content.kind, body[start : start + length]))
            start += length
    except (ValueError, TypeError, KeyError) as error:
        raise GrammarError("a serialized structural tag is damaged: compile it again") from error
    return StructuralTagAutomaton(constraint, contents)


class StructuralTagAutomaton:
    """Free text in which a trigger leads to a tag, or tags one behind the other.

    Args:
        contents: of the tags, in their order.
    """

    def __init__(self, constraint: Constraint, contents: Iterable[Automaton]) -> None:
        self._constraint = constraint
        self._contents = tuple(contents)
        self._machine = Machine(parse_structural_tag(constraint), self._contents)

    @property
    def start(self) -> TagCursor:
        """The position at the beginning of a text."""
        return TagCursor(self._machine, self._machine.start)

    def farthest(self, cost: TokenCost, missing: bytes) -> None:
        """None: a tag may have any content."""
        return None

    def serialize(self) -> bytes:
        """The compiled form."""
        bodies = [content.serialize() for content in self._contents]
        options = self._constraint
        header = {
            "constraint": {
                "kind": options.kind,
                "source": options.source,
                "whitespace": options.whitespace,
                "property_order": options.property_order,
                "formats": options.formats,
            },
            "lengths": [len(body) for body in bodies],
        }
        return json.dumps(header).encode() + b"\n" + b"".join(bodies)


class TagCursor:
    """A position: the threads that may be under way, in a fixed order, each once."""

    __slots__ = ("_hash", "_machine", "complete", "threads")

    def __init__(self, machine: Machine, threads: Iterable[Thread]) -> None:
        self._machine = machine
        self.threads = tuple(dict.fromkeys(threads))
        self.complete = any(thread.complete for thread in self.threads)
        self._hash = hash(self.threads)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TagCursor):
            return NotImplemented
        return self._machine is other._machine and self.threads == other.threads

    def step(self, byte: int) -> TagCursor | None:
        """The position after one more byte."""
        threads = [after for thread in self.threads for after in thread.step(byte)]
        return TagCursor(self._machine, threads) if threads else None

    def first_bytes(self) -> bytes:
        """The bytes that may come next."""
        return bytes(sorted({byte for thread in self.threads for byte in thread.first_bytes()}))

    @property
    def has_choice(self) -> bool:
        """False: it takes looking at all threads."""
        return False

    def moves(self, among: Collection[int]) -> Iterator[tuple[int, TagCursor]]:
        """Those of some bytes that may, each with the position after it."""
        for byte in self.first_bytes():
            after = self.step(byte) if byte in among else None
            if after is not None:
                yield byte, after

    def run(self) -> None:
        """None: literals are short."""
        return None

    def region(self) -> Region | None:
        """That of the only thread, if it has one."""
        inner = self.threads[0].region() if len(self.threads) == 1 else None
        if inner is None:
            return None
        machine = self._machine

        def cursor(state: int) -> TagCursor:
            return TagCursor(machine, inner.threads(state))

        return Region(inner.dfa, inner.state, cursor, apart=inner.apart, dead=inner.dead)

    def part(self) -> None:
        """None: contents are walked through with what is around them."""
        return None

    def distance(self, cost: TokenCost) -> int | None:
        """The least of the threads' distances; None if one of them does not know."""
        least = UNSPELLABLE
        for thread in self.threads:
            distance = thread.distance(cost)
            if distance is None:
                return None
            least = min(least, distance)
        return least
