"""A tree in the language of Graphviz."""

from __future__ import annotations

from ..tier import Tier
from .snapshot import Snapshot, View
from .text import first_tokens, hidden, tier_names


def write(snapshot: Snapshot) -> str:
    """A digraph: an ellipse for each namespace, a box for each node.

    Boxes of locked nodes are bold, those of nodes that only the host tier has are dashed.
    """
    many = len(snapshot.tiers) > 1
    lines = [
        "digraph radix_cache {",
        "  rankdir=LR;",
        '  node [shape=box, fontname="monospace"];',
    ]
    for at, space in enumerate(snapshot.spaces):
        label = _quoted(f"namespace {space.namespace!r}", hidden(space.top).strip())
        lines.append(f"  top{at} [shape=ellipse, label={label}];")
        for view in space.nodes:
            lines.append(f"  n{view.id} [label={_label(view, many)}{_style(view)}];")
            above = view.parent
            parent = f"top{at}" if above is None or not above.depth else f"n{above.id}"
            lines.append(f"  {parent} -> n{view.id};")
    lines.append("}")
    return "\n".join(lines)


def _label(view: View, many_tiers: bool) -> str:
    return _quoted(
        f"[{view.start}, {view.end})",
        first_tokens(view),
        f"locks={view.locks[Tier.DEVICE] or 0} hits={view.hits}",
        "+".join(tier_names(view)) if many_tiers else "",
        hidden(view).strip(),
    )


def _style(view: View) -> str:
    if view.locks[Tier.DEVICE] is None:
        return ", style=dashed"
    return ", style=bold" if any(view.locks) else ""


def _quoted(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines if line)
    return '"' + "\\n".join(escaped) + '"'
