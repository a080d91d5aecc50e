"""The streams of operations that every system gets, from seeds: the same tokens in every process.

Owns what is asked in which order, and how much the cache may hold. Knows no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
VOCABULARY = 128_000
STAGES = 10


class Turn(NamedTuple):
    """A request: match the first `prompt` tokens, lock, make room, insert all, unlock."""

    tokens: Tokens
    prompt: int


class Match(NamedTuple):
    """A lookup alone."""

    tokens: Tokens


class Evict(NamedTuple):
    """Let go of n tokens."""

    n: int


class Stage(NamedTuple):
    """Here ends a tenth of a long drain, when `left` tokens are cached."""

    left: int


Step = Turn | Match | Evict | Stage


class Workload(NamedTuple):
    """`capacity` in tokens; `steps` starts the stream anew at each call."""

    title: str
    capacity: int
    steps: Callable[[], Iterator[Step]]


def workload(name: str, scale: float) -> Workload:
    """One of `NAMES`, with `scale` times as many requests as the full size."""
    return _MAKERS[name](scale)


def _random(rng: np.random.Generator, n: int) -> Tokens:
    return rng.integers(0, VOCABULARY, n, dtype=np.int32)


def _chat(scale: float) -> Workload:
    requests = round(10_000 * scale)

    def steps() -> Iterator[Step]:
        rng = np.random.default_rng(1)
        systems = [_random(rng, 2_000) for _ in range(20)]
        for _ in range(requests):
            user = _random(rng, int(rng.integers(100, 301)))
            tokens = np.concatenate([systems[rng.integers(20)], user, _random(rng, 100)])
            yield Turn(tokens, len(tokens) - 100)

    # About half of what comes fits, so that the second half of the stream evicts.
    return Workload(f"{requests} chats, 20 prompts of 2,000", 40_000 + requests * 150, steps)


def _documents(scale: float) -> Workload:
    documents, length = round(1_000 * scale), 16_000
    # The questions about a document come close together, well before it is evicted: where the
    # systems cut a leaf differs, and what is found must not depend on it.
    delays = (0, 10, 50) if documents >= 200 else (0, 1, 3)

    def steps() -> Iterator[Step]:
        rng = np.random.default_rng(2)
        order = sorted((i + delay, i) for i in range(documents) for delay in delays)
        texts: dict[int, Tokens] = {}
        for at, i in order:
            if at == i:
                texts[i] = _random(rng, length)
            text = texts.pop(i) if at == i + delays[-1] else texts[i]
            tokens = np.concatenate([text, _random(rng, int(rng.integers(150, 251)))])
            yield Turn(tokens, len(tokens) - 100)

    title = f"{documents} documents of 16,000, {len(delays)} questions each"
    return Workload(title, documents * length // 2, steps)


def _agents(scale: float) -> Workload:
    trees, depth, width = max(2, round(25 * scale)), 40, 4

    def steps() -> Iterator[Step]:
        rng = np.random.default_rng(3)
        for _ in range(trees):
            contexts = [_random(rng, 1_000)]
            for _ in range(depth):
                parents = [contexts[rng.integers(len(contexts))] for _ in range(width)]
                contexts = [
                    np.concatenate([parent, _random(rng, int(rng.integers(100, 201)))])
                    for parent in parents
                ]
                for tokens in contexts:
                    yield Turn(tokens, len(tokens) - 50)

    title = f"{trees} agent trees, depth {depth}, {width} at each depth"
    return Workload(title, trees * depth * width * 150 // 2, steps)


def _leaves(scale: float) -> Workload:
    leaves, length = round(100_000 * scale), 64
    capacity = (leaves + leaves // 20 + 1) * length

    def steps() -> Iterator[Step]:
        rng = np.random.default_rng(4)
        parent = _random(rng, length)
        tails = _random(rng, (leaves + leaves // 20) * length).reshape(-1, length)
        # No two share a first token: every leaf is evicted whole, by every system.
        tails[:, 0] = np.arange(len(tails)) % VOCABULARY

        def leaf(i: int) -> Tokens:
            return np.concatenate([parent, tails[i]])

        for i in range(leaves):
            yield Turn(leaf(i), length)
        fresh, evictions = leaves, len(tails) + 1
        for i in range(evictions):
            yield Evict(length)
            if i % 10 == 0:
                yield Match(leaf(int(rng.integers(leaves * 9 // 10, leaves))))
            if i % 20 == 0 and fresh < len(tails):
                yield Turn(leaf(fresh), length)
                fresh += 1
            if (i + 1) * STAGES // evictions > i * STAGES // evictions:
                yield Stage((fresh - i) * length)

    return Workload(f"{leaves} leaves under one parent, evicted 64 at a time", capacity, steps)


_MAKERS: dict[str, Callable[[float], Workload]] = {
    "chat": _chat,
    "documents": _documents,
    "agents": _agents,
    "leaves": _leaves,
}
NAMES = tuple(_MAKERS)
