"""Plays a stream of operations to one system and accounts for the time of each kind of call.

Owns what is timed: key, match, read (the values of what was found), lock (and unlock), insert,
evict. Each call is timed by itself; what reading the clock costs is taken off.
"""

from __future__ import annotations

import gc
import resource
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np

from benchmarks.radix_cache.system import System
from benchmarks.radix_cache.workloads import Evict, Match, Stage, Tokens, Turn, Workload

OPERATIONS = ("key", "match", "read", "lock", "insert", "evict")
# An engine makes room for a chunk of prefill at a time; this is SGLang's default on most machines.
CHUNK = 8_192
# CPU time is that of all threads of the process: for a machine that others use meanwhile.
CLOCKS = {"wall": perf_counter_ns, "cpu": process_time_ns}


@dataclass
class Tally:
    """Of one kind of call."""

    calls: int = 0
    ns: float = 0.0
    tokens: int = 0

    def add(self, ns: float, tokens: int) -> None:
        """One more."""
        self.calls += 1
        self.ns += ns
        self.tokens += tokens


@dataclass
class Played:
    """What came of a stream.

    `hits` are lengths found, `left` is what is still cached, `tokens_crc` tells streams apart.
    `sampled_after` counts the hits before evictions began to be skipped, if they were: see `play`.
    """

    tallies: dict[str, Tally] = field(
        default_factory=lambda: {operation: Tally() for operation in OPERATIONS}
    )
    hits: list[int] = field(default_factory=list)
    evicted: int = 0
    left: int = 0
    tokens_crc: int = 0
    sampled_after: int | None = None


class _Player:
    def __init__(self, system: System, capacity: int, clock: Callable[[], int]) -> None:
        self._system = system
        self._capacity = capacity
        self._clock = clock
        self._clock_ns = median(-clock() + clock() for _ in range(1_000))
        self.played = Played()

    def turn(self, step: Turn) -> None:
        system, tokens = self._system, step.tokens
        prompt, whole = system.encode(tokens[: step.prompt]), system.encode(tokens)
        values = system.values(len(tokens))
        key = self._timed("key", step.prompt, system.key, prompt)
        found = self._found(key, step.prompt)
        n = system.length(found)
        self._timed("read", n, system.read, found)
        lock = self._timed("lock", n, system.lock, found)
        short = len(tokens) - n - (self._capacity - system.used())
        if short > 0:
            self.evict(max(short, CHUNK))
        key = self._timed("key", len(tokens) - step.prompt, system.key, whole, key)
        self._timed("insert", len(tokens), system.insert, key, values, found)
        start = self._clock()
        system.unlock(lock)
        self.played.tallies["lock"].ns += self._since(start)

    def match(self, tokens: Tokens) -> None:
        encoded = self._system.encode(tokens)
        self._found(self._timed("key", len(tokens), self._system.key, encoded), len(tokens))

    def evict(self, n: int) -> None:
        tally = self.played.tallies["evict"]
        start = self._clock()
        freed = self._system.evict(n)
        tally.add(self._since(start), freed)
        self.played.evicted += freed

    def skip_to(self, left: int) -> None:
        """Evict without account."""
        more = self._system.used() - left
        if more > 0:
            self.played.evicted += self._system.evict(more)

    def _found(self, key: Any, length: int) -> Any:
        found = self._timed("match", length, self._system.match, key)
        self.played.hits.append(self._system.length(found))
        return found

    def _timed(self, operation: str, tokens: int, call: Any, *args: Any) -> Any:
        start = self._clock()
        result = call(*args)
        self.played.tallies[operation].add(self._since(start), tokens)
        return result

    def _since(self, start: int) -> float:
        return self._clock() - start - self._clock_ns


def play(system: System, workload: Workload, sample: int | None, clock: str) -> Played:
    """Play all of a workload, by one of `CLOCKS`.

    With `sample`, of each tenth of a long drain only so many evictions (and what comes between
    them) are played and timed; then one untimed call evicts as many tokens as the tenth had left.
    As each tenth has as many evictions, the mean time of those played stands for that of all. It is
    up to a tenth too long where an eviction costs more the more leaves there are, since each tenth
    is played where it begins.
    """
    player = _Player(system, workload.capacity, CLOCKS[clock])
    played, evictions = player.played, 0
    gc.collect()
    for step in workload.steps():
        if isinstance(step, (Turn, Match)):
            played.tokens_crc = zlib.crc32(step.tokens.tobytes(), played.tokens_crc)
        if isinstance(step, Stage):
            if sample is not None and evictions > sample:
                player.skip_to(step.left)
            evictions = 0
            continue
        evictions += isinstance(step, Evict)
        if sample is not None and evictions > sample:
            if played.sampled_after is None:
                played.sampled_after = len(played.hits)
        elif isinstance(step, Turn):
            player.turn(step)
        elif isinstance(step, Match):
            player.match(step.tokens)
        else:
            player.evict(step.n)
    played.left = system.used()
    return played


def memory(create: Callable[[], System], page_size: int, nodes: int = 100_000) -> float:
    """Bytes that a node with one page of tokens adds to this process, which should be a fresh one.

    All nodes lie under the root. For a system without nodes it is a cached block.
    """
    page = np.empty(page_size, dtype=np.int32)

    def insert(system: System, first: int) -> None:
        page[:] = first
        key = system.key(system.encode(page.copy()))
        system.insert(key, system.values(page_size), system.match(key))

    insert(create(), 0)  # what is loaded or made at first use counts as no node's
    gc.collect()
    before = _resident()
    system = create()
    for i in range(nodes):
        insert(system, i)
    gc.collect()
    return (_resident() - before) / nodes


def _resident() -> int:
    """Bytes of this process in memory (Linux)."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def micro(system: System) -> dict[str, float]:
    """Microseconds to match a ready key of 16,000 tokens in one node, and to make that key."""
    tokens = np.random.default_rng(5).integers(0, 128_000, 16_000, dtype=np.int32)
    ids: list[int] = tokens.tolist()
    encoded = system.encode(tokens)
    key = system.key(encoded)
    system.insert(key, system.values(len(tokens)), system.match(key))
    return {
        "match_16000": _median_us(lambda: system.match(key)),
        "key_16000": _median_us(lambda: system.key(encoded)),
        "key_16000_from_list": _median_us(lambda: system.key_from_list(ids)),
    }


def _median_us(call: Any) -> float:
    times = []
    for _ in range(200):
        start = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - start)
    return median(times) / 1e3
