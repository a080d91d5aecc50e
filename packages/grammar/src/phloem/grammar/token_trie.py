"""The tokens of a vocabulary as a prefix tree in arrays, and sweeps of it through a DFA.

A sweep answers, for all tokens at once, where each of them leads within a region; what leaves the
region is told, and left to the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phloem.grammar.dfa import Dfa
from phloem.grammar.dfa.table import Ints, Longs, spans
from phloem.grammar.narrow_trie import NarrowTrie, Sweep


class TokenTrie:
    """Nodes are numbered level by level; the children of a node are adjacent, by ascending byte.

    The root is 0. Building takes a few passes over arrays, about 0.1 s for 50,000 tokens.
    """

    def __init__(self, tokens: Sequence[bytes | None]) -> None:
        ids = sorted((id for id, token in enumerate(tokens) if token), key=tokens.__getitem__)  # type: ignore[arg-type]
        spelled = [tokens[id] or b"" for id in ids]
        text = np.frombuffer(b"".join(spelled), np.uint8)
        lengths = np.array([len(token) for token in spelled], np.int64)
        offsets = np.cumsum(lengths) - lengths
        nodes = np.zeros(len(ids), np.int64)
        labels, parents, count = [np.zeros(1, np.uint8)], [np.full(1, -1, np.int64)], 1
        levels = [0, 1]
        for depth in range(int(lengths.max(initial=0))):
            reach = np.flatnonzero(lengths > depth)
            keys = nodes[reach] * 256 + text[offsets[reach] + depth]
            # Tokens are sorted, so those that share a node are adjacent.
            is_first = np.append(True, keys[1:] != keys[:-1])
            nodes[reach] = count + np.cumsum(is_first) - 1
            labels.append((keys[is_first] % 256).astype(np.uint8))
            parents.append(keys[is_first] // 256)
            count += int(is_first.sum())
            levels.append(count)
        self.labels = np.concatenate(labels)
        """uint8 [nodes]: the byte that leads to each node."""
        self.label_bytes = self.labels.tobytes()
        self.parents = np.concatenate(parents).astype(np.int32)
        self.levels = levels
        """Where the nodes of each depth begin, and the end."""
        self.child_counts = np.bincount(self.parents[1:], minlength=count)
        self.first_children = np.cumsum(self.child_counts) - self.child_counts + 1
        self.token_counts = np.bincount(nodes, minlength=count)
        self.first_tokens = np.cumsum(self.token_counts) - self.token_counts
        order = np.argsort(nodes, kind="stable")
        self.tokens = np.array(ids, np.int32)[order]
        """int32: token ids by ascending node, in the ranges that the two arrays before tell."""
        self.subtree_sizes = np.ones(count, np.int64)
        for start, end in zip(levels[-2:0:-1], levels[:1:-1], strict=True):
            np.add.at(self.subtree_sizes, self.parents[start:end], self.subtree_sizes[start:end])
        self._narrow: dict[bytes, NarrowTrie] = {}
        self._first_children: list[int] = self.first_children.tolist()
        self._child_counts: list[int] = self.child_counts.tolist()
        self._first_tokens: list[int] = self.first_tokens.tolist()
        self._token_counts: list[int] = self.token_counts.tolist()
        self._tokens: list[int] = self.tokens.tolist()
        self._sizes: list[int] = self.subtree_sizes.tolist()

    def children(self, node: int) -> range:
        """The nodes one byte further."""
        first = self._first_children[node]
        return range(first, first + self._child_counts[node])

    def has_children(self, node: int) -> bool:
        """Whether longer tokens begin with what a node spells."""
        return self._child_counts[node] > 0

    def child(self, node: int, byte: int) -> int:
        """The node one given byte further, or -1."""
        first = self._first_children[node]
        return self.label_bytes.find(byte, first, first + self._child_counts[node])

    def tokens_at(self, node: int) -> list[int]:
        """The tokens that end at a node: none, one, or more where the vocabulary has doubles."""
        first = self._first_tokens[node]
        return self._tokens[first : first + self._token_counts[node]]

    def size_below(self, node: int) -> int:
        """How many nodes there are in and below a node."""
        return self._sizes[node]

    def sweep(
        self, dfa: Dfa, state: int, nodes: Sequence[int] = (0,), leaving: bytes | None = None
    ) -> Sweep:
        """Run every token below some nodes through a DFA that is in `state` at all of them.

        Exits by other bytes than `leaving` are not told; None: all are.
        """
        narrow = self._part_of(dfa.alphabet) if tuple(nodes) == (0,) else None
        if narrow is None:
            alive, most = self._alive(dfa, state, nodes), len(self.labels)
        else:
            alive, most = narrow.alive(dfa, state), len(narrow)
        if 8 * alive > most and alive > _FEW and tuple(nodes) == (0,):
            narrow = narrow or self._cut_out(dfa.alphabet)
        if narrow is not None and (8 * alive > most or len(narrow) <= _FEW):
            return narrow.sweep(dfa, state, leaving)
        if alive <= _FEW:
            found = self._sweep_few(dfa, state, nodes)
        else:
            found = self._sweep_alive(dfa, state, nodes)
        return found if leaving is None else found.leaving_by(leaving)

    def _alive(self, dfa: Dfa, state: int, nodes: Sequence[int]) -> int:
        """How many nodes are below those that a first byte leads to."""
        row, classes = dfa.row(state), dfa.class_bytes
        alive = 0
        for node in nodes:
            for child in self.children(node):
                if row[classes[self.label_bytes[child]]] >= 0:
                    alive += self._sizes[child]
        return alive

    def _part_of(self, alphabet: bytes) -> NarrowTrie | None:
        """The part that was cut out for these bytes and maybe others, if one was."""
        within = _within(alphabet)
        if within not in self._narrow:
            return None
        # The parts used last are the last ones.
        narrow = self._narrow[within] = self._narrow.pop(within)
        return narrow

    def _cut_out(self, alphabet: bytes) -> NarrowTrie:
        """The part that some bytes lead to; few are kept, those used last."""
        if len(self._narrow) >= _MOST_NARROW:
            del self._narrow[next(iter(self._narrow))]
        within = _within(alphabet)
        narrow = self._narrow[within] = NarrowTrie(self, within)
        return narrow

    def _sweep_few(self, dfa: Dfa, state: int, nodes: Sequence[int]) -> Sweep:
        """A sweep node by node: fastest where few are alive."""
        classes, labels = dfa.class_bytes, self.label_bytes
        tokens: list[int] = []
        ends: list[int] = []
        exits: list[int] = []
        exit_states: list[int] = []
        pending = [(node, state) for node in nodes]
        while pending:
            node, source = pending.pop()
            row = dfa.row(source)
            for child in self.children(node):
                target = row[classes[labels[child]]]
                if target < 0:
                    exits.append(child)
                    exit_states.append(source)
                    continue
                count = self._token_counts[child]
                if count:
                    tokens += self.tokens_at(child)
                    ends += [target] * count
                if self._child_counts[child]:
                    pending.append((child, target))
        return self._swept(
            np.array(tokens, np.int32),
            np.array(ends, np.int32),
            np.array(exits, np.int64),
            np.array(exit_states, np.int64),
        )

    def _sweep_alive(self, dfa: Dfa, state: int, start: Sequence[int]) -> Sweep:
        """A sweep that goes on from the nodes that are alive."""
        classes, flat = dfa.table.classes, dfa.table.next.ravel()
        width = dfa.table.next.shape[1]
        nodes, states = np.array(start), np.full(len(start), state)
        met_nodes, met_states, exits, exit_states = [], [], [], []
        while len(nodes):
            counts = self.child_counts[nodes]
            children = spans(self.first_children[nodes], counts)
            sources = np.repeat(states, counts)
            targets = flat[sources * width + classes[self.labels[children]]]
            inside = targets >= 0
            exits.append(children[~inside])
            exit_states.append(sources[~inside])
            nodes, states = children[inside], targets[inside]
            met_nodes.append(nodes)
            met_states.append(states)
        all_nodes = np.concatenate(met_nodes)
        counts = self.token_counts[all_nodes]
        return self._swept(
            self.tokens[spans(self.first_tokens[all_nodes], counts)],
            np.repeat(np.concatenate(met_states), counts),
            np.concatenate(exits),
            np.concatenate(exit_states),
        )

    def _swept(
        self, tokens: Ints, ends: Ints | Longs, exits: Longs, exit_states: Ints | Longs
    ) -> Sweep:
        return Sweep.of(tokens, ends, exits, exit_states, self.labels[exits])


_FEW = 256
_MOST_NARROW = 8
_ALL_BYTES = bytes(range(256))
_NARROW_ALPHABET = 128
"""Of more bytes: these lead to most of a vocabulary, and one part serves all that do."""


def _within(alphabet: bytes) -> bytes:
    return alphabet if len(alphabet) <= _NARROW_ALPHABET else _ALL_BYTES
