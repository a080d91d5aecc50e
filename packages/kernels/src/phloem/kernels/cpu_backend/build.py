"""Compiles the native sources into one shared library and keeps it in a cache.

Owns the compiler, its flags, and the files of the cache. Loading a library is `library`'s.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from phloem.kernels.cpu_backend.machine import InstructionSet, processor_model, usable_cores

try:
    import fcntl
except ImportError:  # Windows: processes that come at once each compile.
    fcntl = None  # type: ignore[assignment]

Variant: TypeAlias = Literal["release", "address", "thread"]
"""`address` finds bad memory accesses and undefined behaviour, `thread` data races."""

NATIVE = Path(__file__).parent / "native"
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")

_COMMON = (
    *("-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-pthread"),
    *("-Wall", "-Wextra"),
)
_INSTRUCTIONS: Mapping[InstructionSet, tuple[str, ...]] = {
    "avx512vnni": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
        *("-mavx2", "-mfma", "-mf16c"),
    ),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "portable": (),
}
_VARIANTS: Mapping[Variant, tuple[str, ...]] = {
    "release": (),
    "address": (
        *("-g", "-O1", "-fno-omit-frame-pointer"),
        *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    ),
    "thread": ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=thread"),
}
_LAST_LINES = 15


class BuildError(RuntimeError):
    """There is no compiler, or it failed; the message says why and what helps."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler of the GCC or Clang kind."""

    command: tuple[str, ...]
    identity: str
    """Its path and the first line of its `--version`."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a library is made, and so what it is called in the cache."""

    isa: InstructionSet
    compiler: Compiler
    flags: tuple[str, ...]
    sources: str
    """`source_fingerprint` of what is compiled."""

    @property
    def key(self) -> str:
        """The same for two libraries that may stand for each other on this machine."""
        facts = (self.isa, self.compiler.identity, *self.flags, self.sources, processor_model())
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]


def find_compiler() -> Compiler:
    """The compiler that `CXX` names, else the first of c++, g++ and clang++.

    Raises:
        BuildError: if there is none, or it does not start.
    """
    named = os.environ.get("CXX")
    candidates = [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]
    for words in candidates:
        path = shutil.which(words[0]) if words else None
        if path:
            return Compiler((path, *words[1:]), f"{path} {_version([path, *words[1:]])}")
    if named:
        raise BuildError(f"CXX names {named!r}, which is not there: correct or unset it")
    raise BuildError(
        "there is no C++ compiler (c++, g++ or clang++): install one, such as the packages g++ or "
        "clang, or name it in CXX"
    )


def recipe(isa: InstructionSet, variant: Variant = "release", *, tuned: bool = True) -> Recipe:
    """How to compile for `isa` here. Not `tuned`, it is for other machines than this one too.

    Raises:
        BuildError: if there is no compiler.
    """
    tuning = ("-mtune=native",) if tuned and isa != "portable" else ()
    flags = (*_COMMON, *_INSTRUCTIONS[isa], *tuning, *_VARIANTS[variant])
    return Recipe(isa, find_compiler(), flags, source_fingerprint())


def source_fingerprint() -> str:
    """A hash over all native sources and headers."""
    digest = hashlib.sha256()
    for path in sorted(NATIVE.iterdir()):
        if path.suffix in {".cpp", ".h"}:
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def default_cache_dir() -> Path:
    """The user's cache folder for compiled kernels."""
    if sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "phloem" / "kernels"


def cached(recipe: Recipe, folder: Path) -> Path | None:
    """The library made by this recipe, if `folder` has it whole; broken ones are removed.

    A library's name ends in a hash of its contents: loading half a file can end the process.
    """
    for path in sorted(folder.glob(f"{recipe.isa}-{recipe.key}-*{SUFFIX}")):
        with contextlib.suppress(OSError):
            if path.stem.rpartition("-")[2] == _content_hash(path):
                return path
            path.unlink()
    return None


def ensure(recipe: Recipe, folder: Path, jobs: int | None = None) -> Path:
    """The library made by this recipe, compiled into `folder` if it is not there.

    Of processes that come at once, one compiles and the others wait.

    Raises:
        BuildError: if the compiler fails.
        OSError: if the folder cannot be written.
    """
    found = cached(recipe, folder)
    if found:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        found = cached(recipe, folder)
        if found:
            return found
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
            built = compile_library(recipe, Path(scratch), jobs)
            name = f"{recipe.isa}-{recipe.key}-{_content_hash(built)}{SUFFIX}"
            return built.replace(folder / name)


def compile_library(recipe: Recipe, folder: Path, jobs: int | None = None) -> Path:
    """Compile all sources, `jobs` at a time (None: one for each usable core), and link them.

    Raises:
        BuildError: if the compiler fails, with the last lines of what it said.
    """
    command = (*recipe.compiler.command, *recipe.flags)
    fingerprint = f'-DPHLOEM_SOURCES="{recipe.sources}"'
    sources = sorted(NATIVE.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(jobs or usable_cores()) as pool:
        steps = [
            pool.submit(_run, (*command, fingerprint, "-c", str(source), "-o", str(target)))
            for source, target in zip(sources, objects)
        ]
        for step in steps:
            step.result()
    library = folder / f"libphloem{SUFFIX}"
    _run((*command, "-shared", *map(str, objects), "-o", str(library)))
    return library


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise BuildError(
            f"the compiler ended with code {done.returncode}: {shlex.join(command)}\n{said}"
        )


def _version(command: Sequence[str]) -> str:
    done = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} --version ended with code {done.returncode}")
    return done.stdout.partition("\n")[0]


def _content_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Alone in `folder` among those that lock it; the system lets go when a process ends."""
    if fcntl is None:
        yield
        return
    with open(folder / "lock", "w") as file:
        # Some network file systems have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
