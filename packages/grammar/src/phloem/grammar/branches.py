"""Places of the token trie as a walk sees them: several nodes below which tokens go on alike.

Tokens that leave a region by the same byte (all those with a closing quote, say) differ in what
comes before it, not in what may come after it, so a walk goes through what is behind it once.
"""

from __future__ import annotations

from collections.abc import Sequence

from phloem.grammar.token_trie import TokenTrie


class Branch:
    """Some nodes of a trie, and what is below any of them. Identity is equality: keep the root."""

    __slots__ = ("_below", "_trie", "is_leaf", "nodes", "size", "tokens")

    def __init__(self, trie: TokenTrie, nodes: Sequence[int]) -> None:
        self._trie = trie
        self.nodes = tuple(nodes)
        self.size = sum(trie.size_below(node) for node in nodes)
        """The nodes in and below it."""
        self.is_leaf = self.size == len(nodes)
        self.tokens = tuple(token for node in nodes for token in trie.tokens_at(node))
        """The tokens that end here."""
        self._below: dict[int, Branch] | None = None

    @property
    def below(self) -> dict[int, Branch]:
        """By byte, ascending if it is one node: where it leads."""
        if self._below is None:
            trie, by_byte = self._trie, dict[int, list[int]]()
            labels = trie.label_bytes
            for node in self.nodes:
                for child in trie.children(node):
                    by_byte.setdefault(labels[child], []).append(child)
            self._below = {byte: Branch(trie, nodes) for byte, nodes in by_byte.items()}
        return self._below

    def others(self, nodes: Sequence[int]) -> Branch:
        """One of other nodes of the trie."""
        return Branch(self._trie, nodes)

    def all_below(self) -> tuple[list[int], list[int]]:
        """The nodes in and below it, and the tokens that end there."""
        trie, nodes = self._trie, list(self.nodes)
        for node in nodes:
            nodes += trie.children(node)
        return nodes, [token for node in nodes for token in trie.tokens_at(node)]
