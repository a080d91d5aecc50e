"""The normal form of a JSON schema: a graph of nodes without boolean operators left to solve.

This is the contract between the normalizer (`normalize`), which makes it, and the machines that
follow JSON text by it. It holds no behaviour beyond what the data says about itself.

What a maker guarantees, so that a machine need not look for dead ends between nodes:

- every node is satisfiable (there is a finite JSON value that it accepts), also through recursion;
- every alternative in a node's `strings`, `arrays` and `objects` is satisfiable by itself;
- alternatives of one node may overlap: a machine follows them side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from phloem.grammar.dfa import Dfa

NodeId: TypeAlias = int
"""An index into `SchemaGraph.nodes`."""


@dataclass(frozen=True, slots=True)
class StringShape:
    """Strings whose decoded content, as UTF-8, is in `dfa`, of a bounded number of characters.

    The content is text of Unicode scalar values: a lone surrogate is never legal. The bounds are
    used only beside `Dfa.any_text()`; elsewhere they are 0 and None, and `dfa` holds them.
    """

    dfa: Dfa
    min_chars: int = 0
    max_chars: int | None = None


@dataclass(frozen=True, slots=True)
class Witness:
    """A stricter way to write an item, which fulfils some demands of its array.

    An item at place i < len(ArrayShape.prefix) is a witness if it meets `prefix[i]`, a later one if
    it meets `rest`; None where no item can be one. The nodes already hold what the array asks of
    every item there.
    """

    fulfils: int
    """Bit set of the demands."""
    prefix: tuple[NodeId | None, ...]
    """As long as the array's."""
    rest: NodeId | None


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Arrays whose item i meets `prefix[i]`, and every later one `rest`.

    Without `rest`, an array has at most `len(prefix)` items. A place of the prefix that no item can
    take ends the prefix (with `rest` None), so every node here is satisfiable. `max_items`, where
    given, is never below `len(prefix)`. `prefix` is not the least number of items: `min_items` is.

    All of the demands 0 .. demands - 1 must be fulfilled by items; one item may be a witness once,
    of any one `Witness`. An item that could be a witness need not count as one. There is always a
    way to fulfil all of them within `max_items`.
    """

    prefix: tuple[NodeId, ...]
    rest: NodeId | None
    min_items: int = 0
    max_items: int | None = None
    demands: int = 0
    witnesses: tuple[Witness, ...] = ()


@dataclass(frozen=True, slots=True)
class Property:
    """A declared property: its name (decoded), the node of its value, and whether it must be."""

    name: str
    node: NodeId
    required: bool


@dataclass(frozen=True, slots=True)
class OtherProperties:
    """Undeclared properties whose names (decoded, as UTF-8) are in `names`; values meet `node`."""

    names: Dfa
    node: NodeId
    fulfils: int = 0
    """Bit set of the object's demands that one such property fulfils; `names` is then infinite."""


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """Objects with distinct names, each declared or in a class of `others`; no other is legal.

    `properties` are in the order of the schema. No class contains a declared name. Classes with
    `fulfils` 0 are disjoint from each other; a class with demands lies within those, as a stricter
    way to write such a property. All of the demands 0 .. demands - 1 must be fulfilled.
    Names suffice to reach `min_properties`, and `max_properties` is not below what is required;
    but a class may be finite, so its names can run out.
    """

    properties: tuple[Property, ...]
    others: tuple[OtherProperties, ...]
    min_properties: int = 0
    max_properties: int | None = None
    demands: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """The values that one place of a document may hold: the union of all of this."""

    null: bool
    booleans: frozenset[bool]
    numbers: Dfa | None
    """Over JSON texts of numbers, in ASCII; None: no number is legal."""
    strings: tuple[StringShape, ...]
    arrays: tuple[ArrayShape, ...]
    objects: tuple[ObjectShape, ...]


@dataclass(frozen=True, slots=True)
class SchemaGraph:
    """Nodes that refer to each other, and the one for the whole document."""

    nodes: tuple[Node, ...]
    root: NodeId
