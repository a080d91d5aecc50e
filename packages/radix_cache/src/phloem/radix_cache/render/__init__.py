"""Pictures of a tree: text for people, JSON for a page that draws it, and Graphviz.

Owns the choice of format; `snapshot` reads the tree, and one module writes each format from that.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from .snapshot import Snapshot, take

if TYPE_CHECKING:
    from ..structure import Structure

# Imported when first chosen: a program that draws no trees does not pay for it.
_WRITERS: Final = {"text": ".text", "json": ".document", "dot": ".graphviz"}


def render(tree: Structure, format: str, limit: int | None, now: float) -> str:
    """See `RadixCache.render`."""
    module = _WRITERS.get(format)
    if module is None:
        raise ValueError(f"format {format!r} is not known: use one of {', '.join(_WRITERS)}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit {limit} is negative: give how many nodes to show, or None for all")
    write: Callable[[Snapshot], str] = import_module(module, __package__).write
    return write(take(tree, limit, now))
