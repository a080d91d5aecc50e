"""The compiled kernels of one instruction set, loaded into this process.

Owns the choice between a prebuilt library, the cache and the compiler, and the declaration of C
functions.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phloem.kernels.cpu_backend.build import (
    BuildError,
    Variant,
    compile_library,
    default_cache_dir,
    ensure,
    recipe,
)
from phloem.kernels.cpu_backend.machine import InstructionSet, usable_instruction_sets


class Library:
    """One loaded library."""

    def __init__(self, path: Path, isa: InstructionSet) -> None:
        self.path = path
        self.isa: InstructionSet = isa
        self._handle = ctypes.CDLL(str(path))

    def function(self, name: str, *argtypes: Any, restype: Any = None) -> Callable[..., Any]:
        """Declare the C function `name`. A call of it lets other Python threads run.

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


def load_library(
    isa: InstructionSet | None = None,
    *,
    variant: Variant = "release",
    cache_dir: str | Path | None = None,
) -> Library:
    """The library for `isa`, or for the best that this processor has; compiled if it has to be.

    The same object for the same arguments.

    Raises:
        ValueError: if this processor does not have the instruction set.
        BuildError: if there is no prebuilt library and it cannot be compiled.
    """
    usable = usable_instruction_sets()
    if isa is not None and isa not in usable:
        raise ValueError(
            f"instruction set {isa!r} cannot run on this processor: use {', '.join(usable)}"
        )
    return _load(isa or usable[0], variant, Path(cache_dir or default_cache_dir()))


@functools.cache
def _load(isa: InstructionSet, variant: Variant, cache_dir: Path) -> Library:
    instructions = recipe(isa, variant)
    try:
        return Library(ensure(instructions, cache_dir), isa)
    except OSError as error:
        # The cache cannot be written, or what it has does not load: do without it.
        with tempfile.TemporaryDirectory(
            prefix="phloem-kernels-", ignore_cleanup_errors=True
        ) as scratch:
            try:
                return Library(compile_library(instructions, Path(scratch)), isa)
            except OSError as second:
                raise BuildError(f"the compiled library does not load: {second}") from error
