"""A tiny language model in numpy over a paged KV cache: two layers of attention, random weights.

What it says next follows from the keys and values that it reads through the block table, so a table
with a wrong block changes the text.
"""

from __future__ import annotations

import zlib

import numpy as np

VOCABULARY = 211
WIDTH = 32
LAYERS = 2


class PagedModel:
    """The weights, and the pool of blocks `[layer, block, offset, WIDTH]` for keys and values."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        random = np.random.default_rng(7)
        self._block_size = block_size
        self._embedding = random.normal(size=(VOCABULARY, WIDTH))
        self._weights = random.normal(size=(LAYERS, 4, WIDTH, WIDTH)) / WIDTH**0.5
        pool = (LAYERS, num_blocks * block_size, WIDTH)
        self._keys, self._values = np.full(pool, np.nan), np.full(pool, np.nan)

    def forward(self, tokens: list[int], start: int, table: list[int], lora: str | None) -> int:
        """Compute the tokens at positions `start` and on; returns the likeliest token after them.

        Writes their keys and values into the blocks of `table`, and reads all before them there.
        """
        stop = start + len(tokens)
        positions = np.arange(stop)
        slots = np.array(table)[positions // self._block_size] * self._block_size
        slots += positions % self._block_size
        hidden = self._embedding[tokens] + _adapter(lora) + _rotation(positions[start:])
        future = positions[None, :] > positions[start:, None]
        for layer, (to_query, to_key, to_value, to_out) in enumerate(self._weights):
            normal = hidden / np.linalg.norm(hidden, axis=1, keepdims=True) * WIDTH**0.5
            self._keys[layer, slots[start:]] = normal @ to_key
            self._values[layer, slots[start:]] = normal @ to_value
            scores = normal @ to_query @ self._keys[layer, slots].T / WIDTH**0.5
            scores[future] = -np.inf
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            hidden = hidden + shares @ self._values[layer, slots] @ to_out * 4
        return int(np.argmax(self._embedding @ hidden[-1]))


def _adapter(lora: str | None) -> np.ndarray:
    """What an adapter adds to every embedding, `[WIDTH]`."""
    if lora is None:
        return np.zeros(WIDTH)
    return np.random.default_rng(zlib.crc32(lora.encode())).normal(size=WIDTH)


def _rotation(positions: np.ndarray) -> np.ndarray:
    """Sinusoidal position embeddings, `[len(positions), WIDTH]`."""
    angles = positions[:, None] / 10000 ** (np.arange(WIDTH // 2) * 2 / WIDTH)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
