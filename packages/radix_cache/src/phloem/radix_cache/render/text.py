"""A tree as indented text, a line for each node."""

from __future__ import annotations

from array import array
from typing import Final

from ..tier import Tier
from .snapshot import SHOWN_TOKENS, Snapshot, View

DEEPEST_INDENT: Final = 40
"""Levels that are shown by indentation. Deeper ones are named: the whole text would otherwise grow
with the square of the depth."""


def write(snapshot: Snapshot) -> str:
    """The range of positions, the first tokens, locks and hits of every node.

    With a host tier also which tiers have it; `locks` are those on the device. Nodes are indented
    by depth, and deeper than `DEEPEST_INDENT` they say it.
    """
    many = len(snapshot.tiers) > 1
    lines: list[str] = []
    for space in snapshot.spaces:
        lines.append(f"namespace {space.namespace!r}{hidden(space.top)}")
        lines.extend(_line(view, many) for view in space.nodes)
    return "\n".join(lines)


def first_tokens(view: View) -> str:
    """The first tokens of a node, with dots if there are more."""
    shown = " ".join(map(str, array("i", view.data)))
    return shown + (" ..." if view.end - view.start > SHOWN_TOKENS else "")


def tier_names(view: View) -> list[str]:
    """The tiers that have a copy."""
    return [tier.name.lower() for tier in Tier if view.locks[tier] is not None]


def hidden(view: View) -> str:
    """What is below a node and is not shown, in words; empty if nothing is."""
    if not view.hidden_nodes:
        return ""
    return f"  and {view.hidden_nodes} nodes more below, of {view.hidden_tokens} tokens"


def _line(view: View, many_tiers: bool) -> str:
    tiers = f" tiers={'+'.join(tier_names(view))}" if many_tiers else ""
    indent = "  " * min(view.depth, DEEPEST_INDENT)
    depth = f"(depth {view.depth}) " if view.depth > DEEPEST_INDENT else ""
    return (
        f"{indent}{depth}[{view.start}, {view.end}) {first_tokens(view)}"
        f"  locks={view.locks[Tier.DEVICE] or 0} hits={view.hits}{tiers}{hidden(view)}"
    )
