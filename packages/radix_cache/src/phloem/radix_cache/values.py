"""Value adapters: how to cut and join the opaque values that a cache keeps, one per token.

Owns the contract, the adapter for Python sequences, and the choice by name or by type. The adapters
for numpy and torch live in modules of their own, imported when first chosen, so that this package
needs neither.
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
    """Lists, tuples, arrays. A join has the type of its first part, or of `empty` without any."""

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


class InferredValues:
    """Chooses an adapter by the type of the first value it keeps, and is that one from then on."""

    def __init__(self) -> None:
        self._chosen: ValueAdapter | None = None
        self._type: type | None = None

    def _for(self, values: Any) -> ValueAdapter:
        if self._chosen is None:
            self._chosen = _fitting(values)
            self._type = type(values)
        return self._chosen

    def length(self, values: Any) -> int:
        """As the adapter that fits; `TypeError` if another one was chosen.

        Chooses none itself: what is only measured may be refused yet.
        """
        if type(values) is self._type:
            return self._for(values).length(values)
        fitting = _fitting(values)
        if self._chosen is not None and type(fitting) is not type(self._chosen):
            assert self._type is not None, "it is set with the adapter"
            raise TypeError(
                f"this cache holds values of type {self._type.__name__}, and "
                f"{type(values).__name__} was given: one tier holds values of one type"
            )
        return fitting.length(values)

    def cut(self, values: Any, start: int, stop: int) -> Any:
        """As the chosen adapter."""
        return self._for(values).cut(values, start, stop)

    def join(self, parts: Sequence[Any]) -> Any:
        """As the chosen adapter; `()` without parts while none is chosen."""
        if not parts and self._chosen is None:
            return ()
        return self._for(parts[0] if parts else ()).join(parts)


_EXTERNAL: Final = {
    "numpy": ("phloem.radix_cache.values_numpy", "NumpyValues"),
    "torch": ("phloem.radix_cache.values_torch", "TorchValues"),
}


def resolve(values: str | ValueAdapter | None) -> ValueAdapter:
    """The adapter of that name, the given one, or one that decides by the first value it meets.

    Imports numpy or torch only if it is the one asked for.
    """
    if values is None:
        return InferredValues()
    return _create(values, empty=None) if isinstance(values, str) else values


def _fitting(values: Any) -> ValueAdapter:
    """The adapter for the type of `values`; its empty value has that type, dtype and row shape."""
    if isinstance(values, (list, tuple, array)):
        return SequenceValues(values[:0])
    for base in type(values).__mro__:
        library = base.__module__.partition(".")[0]
        if library in _EXTERNAL:
            return _create(library, empty=values[:0])
    raise TypeError(
        f"no value adapter for {type(values).__name__}: pass lists, tuples, arrays, numpy arrays "
        "or torch tensors, or give RadixCache(values=...) a ValueAdapter of your own"
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
