"""Pictures of a tree for people. Only reads nodes, so it may run beside the writing thread."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from .key import TOKEN_BYTES
from .node import Node, Root

_SHOWN_TOKENS = 6


def text(roots: Iterable[Root]) -> str:
    """Indented text: the range of positions, the first tokens, locks and hits of every node."""
    lines: list[str] = []
    for root in roots:
        lines.append(f"namespace {root.namespace!r}")
        stack = [(child, 1) for child in reversed(list(root.children.values()))]
        while stack:
            node, depth = stack.pop()
            lines.append("  " * depth + _line(node))
            stack.extend((child, depth + 1) for child in reversed(list(node.children.values())))
    return "\n".join(lines)


def _line(node: Node) -> str:
    data, end = node.data, node.end
    length = len(data) // TOKEN_BYTES
    shown = " ".join(map(str, array("i", data[: _SHOWN_TOKENS * TOKEN_BYTES])))
    locks = 0 if node.device is None else node.device.locks
    more = " ..." if length > _SHOWN_TOKENS else ""
    return f"[{end - length}, {end}) {shown}{more}  locks={locks} hits={node.hits}"
