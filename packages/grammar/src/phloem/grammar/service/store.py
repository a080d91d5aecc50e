"""Compiled constraints on disk, from one process to the next.

A file's name is a hash of all that its contents follow from, the sources of this package included,
so what other code made is never read; and it begins with a hash of its contents, so what is damaged
is not either. The whole folder may be deleted at any time, and any number of processes may share
it.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

_SUFFIX = ".grammar"
_DIGEST_BYTES = 32
_ABANDONED = ".writing-"
_log = logging.getLogger(__name__)


class Store:
    """A folder of compiled constraints up to a number of bytes; used by one thread at a time.

    Where the folder cannot be written, which is logged once, it only gives what is there.
    """

    def __init__(self, folder: Path, limit_bytes: int, backend: str, fingerprint: str) -> None:
        """For what `backend` compiles for the vocabulary with that `fingerprint`."""
        self._folder = folder
        self._limit = limit_bytes
        self._scope = "\0".join((_made_by(), backend, fingerprint))
        self._bytes: int | None = None
        """What the folder held when it was last looked at, and what we wrote since."""
        self._writable = True

    def get(self, key: str) -> bytes | None:
        """What was put for a constraint's key; a file that is damaged is removed."""
        path = self._path(key)
        try:
            found = path.read_bytes()
        except OSError:
            return None
        data = found[_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != found[:_DIGEST_BYTES]:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # it counts as used; others may only read it
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep what a constraint was compiled to, and let those go that were read longest ago."""
        size = len(data) + _DIGEST_BYTES
        if not self._writable or size > self._limit:
            return
        try:
            self._write(self._path(key), hashlib.sha256(data).digest() + data)
            if self._bytes is not None:
                self._bytes += size
            if self._bytes is None or self._bytes > self._limit:
                self._bytes = self._tidy()
        except OSError as error:
            self._writable = False
            _log.warning("compiled constraints are not kept on disk: %s", error)

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(f"{self._scope}\0{key}".encode()).hexdigest()
        return self._folder / f"{name}{_SUFFIX}"

    def _write(self, path: Path, contents: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_ABANDONED, dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(contents)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

    def _tidy(self) -> int:
        """Remove what is too much; returns the bytes that remain."""
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        total = sum(status.st_size for _, status in files)
        for path, status in files:
            if total <= self._limit:
                break
            with suppress(OSError):
                path.unlink()
                total -= status.st_size
        return total

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        # What a killed process was writing is found by its name, and goes by its age as the rest.
        for pattern in (f"*{_SUFFIX}", f"{_ABANDONED}*"):
            for path in self._folder.glob(pattern):
                with suppress(OSError):  # deleted since it was listed
                    yield path, path.stat()


@functools.cache
def _made_by() -> str:
    """A hash of this package's sources, and the versions of the libraries that it wraps."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    for name in ("xgrammar", "llguidance"):
        with suppress(metadata.PackageNotFoundError):
            digest.update(f"{name} {metadata.version(name)}".encode())
    return digest.hexdigest()
