"""Pictures of a tree: text for people, JSON for a page that draws it, and Graphviz.

Owns the choice of format; `snapshot` reads the tree, and one module writes each format from that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from . import document, graphviz, text
from .snapshot import Snapshot, take

if TYPE_CHECKING:
    from ..structure import Structure

_WRITERS: Final[Mapping[str, Callable[[Snapshot], str]]] = {
    "text": text.write,
    "json": document.write,
    "dot": graphviz.write,
}


def render(tree: Structure, format: str, limit: int | None, now: float) -> str:
    """See `RadixCache.render`."""
    write = _WRITERS.get(format)
    if write is None:
        raise ValueError(f"format {format!r} is not known: use one of {', '.join(_WRITERS)}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit {limit} is negative: give how many nodes to show, or None for all")
    return write(take(tree, limit, now))
