"""How few tokens spell a literal: what distances to the end of a text are measured in."""

from __future__ import annotations

from phloem.grammar.automaton import UNSPELLABLE
from phloem.grammar.token_trie import TokenTrie


class TokenCosts:
    """The fewest tokens of a vocabulary that spell a literal, by dynamic programming from its end.

    Literals come as the rests of one another while a text is steered along one of them, so the
    costs of all rests of recent literals are kept.
    """

    def __init__(self, trie: TokenTrie) -> None:
        self._trie = trie
        self._recent: dict[bytes, list[int]] = {}

    def __call__(self, literal: bytes) -> int:
        """The fewest tokens, or at least `UNSPELLABLE` if no tokens spell the literal."""
        for known, costs in self._recent.items():
            if known.endswith(literal):
                return costs[len(known) - len(literal)]
        if len(self._recent) >= _RECENT:
            del self._recent[next(iter(self._recent))]
        costs = self._recent[literal] = self._of_rests(literal)
        return costs[0]

    def _of_rests(self, literal: bytes) -> list[int]:
        trie = self._trie
        costs = [0] * (len(literal) + 1)
        for start in range(len(literal) - 1, -1, -1):
            best, node, end = UNSPELLABLE, 0, start
            while end < len(literal):
                node = trie.child(node, literal[end])
                if node < 0:
                    break
                end += 1
                if costs[end] + 1 < best and trie.tokens_at(node):
                    best = costs[end] + 1
            costs[start] = best
        return costs


_RECENT = 16
