"""The prefixes that save most: which stretches of prompts are found again, and how often.

Owns a mark for each node of the tree at which a request's cached prefix ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..key import Namespace
from ..node import Node
from .report import SharedPrefix
from .units import PAGE_WORDS, Unit

_SHOWN_BYTES: Final = 256
_SAME_CROWD: Final = 0.9
_WORTH_A_LINE: Final = 0.001


@dataclass(frozen=True, slots=True)
class _Mark:
    namespace: Namespace
    head: bytes
    tail: bytes


class SharedPrefixes:
    """Remembers how each shared prefix begins and ends. Bounded by the nodes of the tree."""

    def __init__(self) -> None:
        self._marks: dict[Node, _Mark] = {}
        self._prune_at = 1024

    def add(self, node: Node, data: bytes, found: int, namespace: Namespace) -> None:
        """A request had its first `found` packed bytes in the cache; they end at `node`."""
        if not found or node in self._marks:
            return
        if len(self._marks) >= self._prune_at:
            self._marks = {node: self._marks[node] for node in self._alive()}
            self._prune_at = 2 * len(self._marks) + 1024
        head = min(found, _SHOWN_BYTES)
        self._marks[node] = _Mark(
            namespace, data[:head], data[max(head, found - _SHOWN_BYTES) : found]
        )

    def largest(self, limit: int, page_size: int, unit: Unit) -> tuple[SharedPrefix, ...]:
        """The stretches that saved most, each at least a thousandth of all that was saved.

        A node continues its parent's stretch if at least nine tenths of the hits on the parent went
        on to it, so a system prompt stays in one piece though a few requests left it half way.
        """
        nodes = self._alive()
        continued = {node.parent for node in nodes if _continues(node)}
        stretches = [_stretch(node) for node in nodes if node not in continued]
        least = _WORTH_A_LINE * sum(saved for _, _, saved in stretches)
        stretches.sort(key=lambda stretch: (-stretch[2], stretch[0].end))
        page_words = PAGE_WORDS
        listed = []
        for node, top, saved in stretches[:limit]:
            if saved < least:
                break
            mark = self._marks[node]
            listed.append(
                SharedPrefix(
                    start=top.start // page_words * page_size,
                    end=node.end // page_words * page_size,
                    requests=node.hits + 1,
                    saved=saved // page_words * page_size,
                    namespace=mark.namespace,
                    begins=unit.show(mark.head),
                    ends=unit.show(mark.tail),
                )
            )
        return tuple(listed)

    def _alive(self) -> list[Node]:
        return [node for node in self._marks if node.parent is not None]


def _continues(node: Node) -> bool:
    parent = node.parent
    return (
        parent is not None and parent.parent is not None and node.hits >= _SAME_CROWD * parent.hits
    )


def _stretch(node: Node) -> tuple[Node, Node, int]:
    """A node, the top of its stretch, and the words that hits on the stretch saved."""
    top, saved = node, node.hits * node.length
    while _continues(top) and top.parent is not None:
        top = top.parent
        saved += top.hits * top.length
    return node, top, saved
