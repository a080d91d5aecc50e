"""The folder where compiled libraries are kept from one process to the next.

A library's name has the key of its recipe, so what was made by other sources, flags or compilers is
never taken; and a hash of its own contents, because loading half a file can end the process. The
whole folder may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from phloem.kernels.cpu_backend.build import (
    LIBRARY_SUFFIX,
    Recipe,
    compile_library,
    content_hash,
)

try:
    import fcntl
except ImportError:  # Windows: of processes that come at once, each compiles.
    fcntl = None  # type: ignore[assignment]

UNUSED_DAYS = 30
"""For how long a library is kept that no process asks for."""

_BUILDING = ".building-"
_log = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """The user's cache folder for compiled kernels; of a user without a home, a temporary one."""
    try:
        return _caches() / "phloem" / "kernels"
    except RuntimeError:  # neither the variables nor the system know a home
        return _temporary_folder() / "kernels"


def _caches() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@functools.cache
def _temporary_folder() -> Path:
    """One that only this user writes, because what lies in it is run."""
    if sys.platform == "win32":
        return Path(tempfile.gettempdir()) / "phloem"
    folder = Path(tempfile.gettempdir()) / f"phloem-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix="phloem-"))


def find(recipe: Recipe, folder: Path) -> Path | None:
    """The library made by this recipe, if `folder` has it whole."""
    found = folder.glob(f"{recipe.isa}-{recipe.key}-*{LIBRARY_SUFFIX}")
    return next((path for path in sorted(found) if _whole(path)), None)


def ensure(recipe: Recipe, folder: Path, jobs: int | None = None) -> Path:
    """The library made by this recipe, compiled into `folder` if it is not there.

    Of processes that come at once, one compiles and the others wait. Who compiles also removes what
    was not asked for in `UNUSED_DAYS`.

    Raises:
        BuildError: if the compiler fails.
        OSError: if the folder cannot be written.
    """
    found = find(recipe, folder)
    if found:
        with contextlib.suppress(OSError):  # others may only read it
            os.utime(found)
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder):
        found = find(recipe, folder)
        if found:
            return found
        _tidy(folder)
        _log.info("compiling the kernels for %s, once, into %s", recipe.isa, folder)
        with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=folder) as scratch:
            built = compile_library(recipe, Path(scratch), jobs=jobs)
            name = f"{recipe.isa}-{recipe.key}-{content_hash(built)}{LIBRARY_SUFFIX}"
            return built.replace(folder / name)


def _tidy(folder: Path) -> None:
    """Remove libraries that have gone out of use, and what compilers left that were killed."""
    for path in _older_than(UNUSED_DAYS, folder.glob(f"*{LIBRARY_SUFFIX}")):
        with contextlib.suppress(OSError):  # Windows keeps what is loaded
            path.unlink()
    for path in _older_than(1, folder.glob(f"{_BUILDING}*")):
        shutil.rmtree(path, ignore_errors=True)


def _older_than(days: int, paths: Iterable[Path]) -> Iterator[Path]:
    limit = time.time() - days * 24 * 60 * 60
    for path in paths:
        with contextlib.suppress(OSError):  # deleted since it was listed
            if path.stat().st_mtime < limit:
                yield path


def _whole(path: Path) -> bool:
    try:
        return path.stem.rpartition("-")[2] == content_hash(path)
    except OSError:  # deleted since it was listed, or not ours to read
        return False


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for a lock that the system takes back when its process ends, however it ends."""
    if fcntl is None:
        yield
        return
    with open(folder / "lock", "w") as file:
        with contextlib.suppress(OSError):  # a network file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
