"""Compiles the native sources of the `cpu` backend into one shared library.

Owns the compiler and its flags. Where libraries are kept is `cache`'s, and loading them
`library`'s. Imports nothing outside of this folder, because wheels are also built where the
package's own requirements are not installed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from .machine import InstructionSet, processor_model, usable_cores

Variant: TypeAlias = Literal["release", "address", "thread"]
"""`address` stops at a bad memory access or undefined behaviour, `thread` tells of data races."""

NATIVE = Path(__file__).parent / "native"
LIBRARY_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")

_COMMON = (
    *("-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-pthread"),
    # Everything on wide vectors is inlined: how they would be passed to functions is no matter.
    *("-Wall", "-Wextra", "-Wno-psabi"),
)
_INSTRUCTIONS: Mapping[InstructionSet, tuple[str, ...]] = {
    "avx512vnni": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
        *("-mavx2", "-mfma", "-mf16c"),
    ),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "portable": (),
}
_TUNED = "-mtune=native"
_VARIANTS: Mapping[Variant, tuple[str, ...]] = {
    "release": (),
    "address": (
        *("-O1", "-g", "-fno-omit-frame-pointer"),
        *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    ),
    "thread": ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=thread"),
}
# What is missing shall be an error of the linker, as it is elsewhere, and not of who loads it.
_LINK = ("-shared", "-Wl,-z,defs") if sys.platform.startswith("linux") else ("-shared",)
_LAST_LINES = 15


class BuildError(RuntimeError):
    """There is no compiler, or it failed; the message says why and what helps."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler that takes the options of GCC and Clang."""

    command: tuple[str, ...]
    version: str
    """The first line of what it says of itself."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a library is made."""

    isa: InstructionSet
    compiler: Compiler
    flags: tuple[str, ...]
    sources: str
    """`source_fingerprint` of what is compiled."""

    @property
    def key(self) -> str:
        """The same for two libraries that may stand for each other on this machine."""
        tuned_for = processor_model() if _TUNED in self.flags else ""
        compiler = (*self.compiler.command, self.compiler.version)
        facts = (self.isa, *compiler, *self.flags, self.sources, tuned_for)
        return _short_hash("\0".join(facts).encode())


def recipe_for(isa: InstructionSet, variant: Variant = "release", *, tuned: bool = True) -> Recipe:
    """How to compile for `isa` here; `tuned` for this very processor.

    Raises:
        BuildError: if there is no compiler.
    """
    tuning = (_TUNED,) if tuned and isa != "portable" else ()
    flags = (*_COMMON, *_INSTRUCTIONS[isa], *tuning, *_VARIANTS[variant])
    return Recipe(isa, find_compiler(), flags, source_fingerprint())


def find_compiler() -> Compiler:
    """The compiler that the variable CXX names, else the first of c++, g++ and clang++ that runs.

    A blank CXX names none.

    Raises:
        BuildError: if there is none.
    """
    named = os.environ.get("CXX", "").strip()
    for words in [_words(named)] if named else [["c++"], ["g++"], ["clang++"]]:
        path = shutil.which(words[0])
        version = _version([path, *words[1:]]) if path else None
        if path and version is not None:
            return Compiler((path, *words[1:]), version)
    if named:
        raise BuildError(
            f"CXX names the compiler {named!r}, which does not run: correct or unset it"
        )
    raise BuildError(
        "there is no C++ compiler (c++, g++ or clang++): install one (the package g++ or clang), "
        "or name it in CXX"
    )


def source_fingerprint() -> str:
    """A hash over the native sources and headers; a library says which it was compiled from."""
    paths = sorted(path for path in NATIVE.iterdir() if path.suffix in {".cpp", ".h"})
    contents = ((path.name.encode(), path.read_bytes()) for path in paths)
    return _short_hash(b"".join(b"%s\0%d\0%s" % (n, len(data), data) for n, data in contents))


def content_hash(path: Path) -> str:
    """A hash over what a file has."""
    return _short_hash(path.read_bytes())


def compile_library(
    recipe: Recipe,
    folder: Path,
    *,
    sources: Sequence[Path] | None = None,
    jobs: int | None = None,
) -> Path:
    """Compile `sources` (None: all native ones) and link them into a library in `folder`.

    `jobs` compilers run at a time (None: one for each usable core).

    Raises:
        BuildError: if the compiler fails, with the last lines of what it said.
    """
    if sources is None:
        # The longest first, so that none is left alone at the end.
        sources = sorted(NATIVE.glob("*.cpp"), key=lambda path: (-path.stat().st_size, path.name))
    objects = [folder / f"{path.stem}.o" for path in sources]
    command = (*recipe.compiler.command, *recipe.flags)
    inputs = (f"-I{NATIVE}", f'-DPHLOEM_SOURCES="{recipe.sources}"', "-c")
    with ThreadPoolExecutor(jobs or usable_cores()) as pool:
        steps = [
            pool.submit(_run, (*command, *inputs, str(path), "-o", str(target)))
            for path, target in zip(sources, objects)
        ]
        try:
            for step in steps:
                step.result()
        except BuildError:
            pool.shutdown(cancel_futures=True)
            raise
    library = folder / f"libphloem{LIBRARY_SUFFIX}"
    _run((*command, *_LINK, *map(str, objects), "-o", str(library)))
    return library


def prebuilt_name(isa: InstructionSet) -> str:
    """What a library that a wheel carries is called."""
    return f"libphloem_{isa}_{platform_tag()}{LIBRARY_SUFFIX}"


def platform_tag() -> str:
    """This platform, as the name of a wheel has it."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def build_prebuilt(isa: InstructionSet, folder: Path, jobs: int | None = None) -> Path:
    """Compile, for every processor that has `isa`, what a wheel carries; returns the file.

    `folder` is made if it is not there.

    Raises:
        BuildError: if there is no compiler, or it fails.
    """
    recipe = recipe_for(isa, tuned=False)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
        built = compile_library(recipe, Path(scratch), jobs=jobs)
        return built.replace(folder / prebuilt_name(isa))


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise BuildError(f"the compiler {command[0]} does not run: {error}") from error
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise BuildError(
            f"the kernels do not compile: '{shlex.join(command)}' ended with code "
            f"{done.returncode}, saying\n{said}"
        )


def _words(named: str) -> list[str]:
    try:
        return shlex.split(named)
    except ValueError as error:
        raise BuildError(
            f"CXX names the compiler {named!r}, which is no command ({error}): correct or unset it"
        ) from error


def _version(command: Sequence[str]) -> str | None:
    """None: it does not run, as where macOS has the name of a compiler and no compiler."""
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError:  # it has no format that the system can run
        return None
    return done.stdout.partition("\n")[0] if done.returncode == 0 else None


def _short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]
