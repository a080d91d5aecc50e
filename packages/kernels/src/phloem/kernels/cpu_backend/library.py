"""The compiled kernels of one instruction set, loaded into this process.

Owns the choice between a prebuilt library, the cache and the compiler, and the declaration of C
functions.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phloem.kernels.cpu_backend.build import (
    BuildError,
    Recipe,
    Variant,
    compile_library,
    prebuilt_name,
    recipe_for,
    source_fingerprint,
)
from phloem.kernels.cpu_backend.cache import default_cache_dir, ensure, find
from phloem.kernels.cpu_backend.machine import InstructionSet, usable_instruction_sets

PREBUILT = Path(__file__).parent / "prebuilt"
"""Where a wheel for one platform has its libraries."""

_log = logging.getLogger(__name__)


class Library:
    """One loaded library."""

    def __init__(self, path: Path, isa: InstructionSet) -> None:
        """Load the file at `path`; raises OSError if it cannot be."""
        self.path = path
        self.isa: InstructionSet = isa
        self._handle = ctypes.CDLL(str(path))

    def function(self, name: str, *argtypes: Any, restype: Any = None) -> Callable[..., Any]:
        """Declare the C function `name`. During a call of it other Python threads run.

        Raises:
            ValueError: if the library has no such function.
        """
        try:
            function = self._handle[name]
        except AttributeError:
            raise ValueError(f"{self.path} has no function {name!r}") from None
        function.argtypes = argtypes
        function.restype = restype
        return function


@dataclass(frozen=True, slots=True)
class LibraryStatus:
    """Whether `load_library` can be expected to give a library, and where it has it from."""

    usable: bool
    reason: str


def load_library(
    isa: str | None = None,
    *,
    variant: Variant = "release",
    cache_dir: str | Path | None = None,
) -> Library:
    """The library for `isa` (None: the best that this processor has), compiled if it has to be.

    A prebuilt library is taken before one in the cache (None: `default_cache_dir()`), and where
    neither is there and nothing can be compiled, None takes a prebuilt one for less than the best.
    The same arguments give the same object, and what did not compile is not compiled again.

    Raises:
        ValueError: if this processor does not have the instruction set.
        BuildError: if there is no prebuilt library and none can be compiled.
    """
    usable = usable_instruction_sets()
    chosen = next((name for name in usable if isa in {name, None}), None)
    if chosen is None:
        raise ValueError(
            f"instruction set {isa!r} does not run on this processor: use {', '.join(usable)}"
        )
    try:
        return _load(chosen, variant, Path(cache_dir or default_cache_dir()))
    except BuildError:
        lesser = () if isa or variant != "release" else usable[1:]
        for library in filter(None, map(_load_prebuilt, lesser)):
            return library
        raise


def library_status(cache_dir: str | Path | None = None) -> LibraryStatus:
    """What `load_library()` would do. Compiles nothing."""
    cache = Path(cache_dir or default_cache_dir())
    usable = usable_instruction_sets()
    if _load_prebuilt(usable[0]):
        return LibraryStatus(True, f"{usable[0]}, prebuilt")
    try:
        recipe = recipe_for(usable[0])
    except BuildError as error:
        for other in usable[1:]:
            if _load_prebuilt(other):
                return LibraryStatus(True, f"{other}, prebuilt; for {usable[0]}, {error}")
        return LibraryStatus(False, str(error))
    path = find(recipe, cache)
    where = f"cached in {path}" if path else f"to be compiled at first use into {cache}"
    return LibraryStatus(True, f"{recipe.isa}, {recipe.compiler.version}, {where}")


@functools.cache
def _load(isa: InstructionSet, variant: Variant, cache: Path) -> Library:
    library = _load_prebuilt(isa) if variant == "release" else None
    if library:
        return library
    made = _made_by(recipe_for(isa, variant), cache)
    if isinstance(made, str):
        raise BuildError(made)
    return made


@functools.cache
def _made_by(recipe: Recipe, cache: Path) -> Library | str:
    """Or why there is none: a compiler that failed took its time, and would fail again."""
    try:
        return _make(recipe, cache)
    except BuildError as error:
        return str(error)


def _make(recipe: Recipe, cache: Path) -> Library:
    try:
        path = ensure(recipe, cache)
    except OSError as error:
        _log.warning(
            "the kernels are compiled for this process alone, because the cache folder %s "
            "cannot be used (%s): make it one that can be written",
            cache,
            error,
        )
        with tempfile.TemporaryDirectory(
            prefix="phloem-kernels-", ignore_cleanup_errors=True
        ) as scratch:
            return _load_compiled(compile_library(recipe, Path(scratch)), recipe.isa)
    return _load_compiled(path, recipe.isa)


def _load_compiled(path: Path, isa: InstructionSet) -> Library:
    try:
        return Library(path, isa)
    except OSError as error:
        raise BuildError(f"what the compiler made does not load: {error}") from error


@functools.cache
def _load_prebuilt(isa: InstructionSet) -> Library | None:
    """The library that the package carries, if it has one of its own sources that loads here."""
    path = PREBUILT / prebuilt_name(isa)
    if not path.is_file():
        return None
    try:
        library = Library(path, isa)
        sources = library.function("phloem_sources", restype=ctypes.c_char_p)()
    except (OSError, ValueError) as error:
        _log.warning("the prebuilt kernels do not load: %s", error)
        return None
    return library if sources == source_fingerprint().encode() else None
