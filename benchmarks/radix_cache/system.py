"""What a system must do to be measured, and where each one runs.

A system holds keys and values in the form that its own engine would: `encode` and `values` make
that form and are not timed, all else is.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple, Protocol

from benchmarks.radix_cache.workloads import Tokens


class System(Protocol):
    """One empty prefix cache, and the calls that its engine would make."""

    def __init__(self, page_size: int, capacity: int) -> None: ...

    def encode(self, tokens: Tokens) -> Any:
        """The token ids as the engine has them before it makes a key."""
        ...

    def values(self, n: int) -> Any:
        """Slots or blocks of n tokens."""
        ...

    def key(self, encoded: Any, earlier: Any = None) -> Any:
        """A key; `earlier` is that of the first part of the same sequence."""
        ...

    def key_from_list(self, ids: list[int]) -> Any:
        """The same key from a list of ints."""
        ...

    def match(self, key: Any) -> Any:
        """Find the longest cached prefix."""
        ...

    def length(self, found: Any) -> int:
        """How many tokens were found."""
        ...

    def read(self, found: Any) -> Any:
        """Where the KV of the found tokens is."""
        ...

    def lock(self, found: Any) -> Any:
        """Keep it."""
        ...

    def unlock(self, lock: Any) -> None:
        """Keep it no more."""
        ...

    def insert(self, key: Any, values: Any, found: Any) -> None:
        """Publish a sequence, of which `found` was there."""
        ...

    def evict(self, n: int) -> int:
        """Let go of n tokens or the least more that the system can; returns how many."""
        ...

    def used(self) -> int:
        """Tokens cached."""
        ...


class Place(NamedTuple):
    """The module and class of a system, whether it is a peer's, and what is asked of it.

    `sample`: how many evictions of each tenth of a long drain are played; None for all.
    """

    module: str
    name: str
    peer: bool
    page_sizes: tuple[int, ...] = (1, 16)
    sample: int | None = None


# SGLang's trees order all their leaves anew at each eviction: 100,000 of them would take an hour in
# Python, and minutes in Rust.
SYSTEMS = {
    "phloem": Place("phloem_system", "Phloem", peer=False),
    "phloem-torch": Place("phloem_system", "PhloemTorch", peer=False),
    "sglang-python": Place("sglang_system", "SglangPython", peer=True, sample=4),
    "sglang-rust": Place("sglang_system", "SglangRust", peer=True, sample=100),
    "sglang-rust-core": Place("sglang_system", "SglangRustCore", peer=True, sample=100),
    "vllm": Place("vllm_system", "Vllm", peer=True, page_sizes=(16,)),
}


def load(name: str) -> type[System]:
    """The class of a system; imports what it needs, in this process."""
    place = SYSTEMS[name]
    module = import_module(f"benchmarks.radix_cache.{place.module}")
    system: type[System] = getattr(module, place.name)
    return system
