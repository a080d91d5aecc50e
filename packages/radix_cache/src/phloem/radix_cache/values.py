"""Value adapters: how to cut and join the opaque values that a cache keeps, one per token.

Owns the contract, the adapter for Python sequences, and the choice by name or by type. The adapters for numpy
and torch live in modules of their own, imported when first chosen, so that this package needs neither.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import chain
from typing import Any, Final, Protocol


class ValueAdapter(Protocol):
    """Cuts and joins values. What it returns shares no memory with what it was given."""

    def length(self, values: Any) -> int:
        """How many tokens `values` covers."""
        ...

    def cut(self, values: Any, start: int, stop: int) -> Any:
        """Values of the tokens [start, stop), independent of `values`."""
        ...

    def join(self, parts: Sequence[Any]) -> Any:
        """One fresh value that covers all parts in order; the empty value if there are none."""
        ...


class SequenceValues:
    """Lists, tuples and arrays. A join has the type of its first part; without parts it is that of `empty`."""

    def __init__(self, empty: list[Any] | tuple[Any, ...] | array[Any] | None = None) -> None:
        self._empty = [] if empty is None else empty

    def length(self, values: Sequence[Any]) -> int:
        """`len(values)`."""
        return len(values)

    def cut(self, values: Sequence[Any], start: int, stop: int) -> Sequence[Any]:
        """`values[start:stop]`, a copy."""
        return values[start:stop]

    def join(self, parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
        """A list, tuple or array of all items in order."""
        like = parts[0] if parts else self._empty
        if isinstance(like, array):
            joined = array(like.typecode)
            for part in parts:
                joined.extend(part)
            return joined
        items: Iterable[Any] = chain.from_iterable(parts)
        return tuple(items) if isinstance(like, tuple) else list(items)


_EXTERNAL: Final = {
    "numpy": ("phloem.radix_cache.values_numpy", "NumpyValues"),
    "torch": ("phloem.radix_cache.values_torch", "TorchValues"),
}


def named(name: str) -> ValueAdapter:
    """The adapter called "sequence", "numpy" or "torch"; imports numpy or torch only for those two."""
    return _create(name, empty=None)


def adapter_for(values: Any) -> ValueAdapter:
    """The adapter that fits the type of `values`; its empty value has the same type (and dtype and row shape)."""
    if isinstance(values, (list, tuple, array)):
        return SequenceValues(values[:0])
    for base in type(values).__mro__:
        library = base.__module__.partition(".")[0]
        if library in _EXTERNAL:
            return _create(library, empty=values[:0])
    raise TypeError(
        f"no value adapter for {type(values).__name__}: pass lists, tuples, arrays, numpy arrays or torch "
        "tensors, or give RadixCache(values=...) a ValueAdapter of your own"
    )


def _create(name: str, empty: Any) -> ValueAdapter:
    if name == "sequence":
        return SequenceValues(empty)
    if name not in _EXTERNAL:
        known = ", ".join(["sequence", *_EXTERNAL])
        raise ValueError(f"values {name!r} is unknown: use {known}, or pass a ValueAdapter")
    module, attribute = _EXTERNAL[name]
    adapter: ValueAdapter = getattr(import_module(module), attribute)(empty)
    return adapter
