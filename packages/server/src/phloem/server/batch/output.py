"""The output of a batch: one result a line, appended as they come, and none of them twice.

Owns the file, from its repair after a run that was killed to its way to the disk. A line is written
by one call, so that a killed process leaves whole lines, or at most a beginning of the last.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from phloem.server.batch.lines import Key


class _Response(msgspec.Struct):
    status_code: int


class _Error(msgspec.Struct):
    line: int | None = None


class _Written(msgspec.Struct):
    id: str
    custom_id: str | None
    response: _Response | None
    error: _Error | None

    @property
    def key(self) -> Key | None:
        if self.custom_id is not None:
            return self.custom_id
        return None if self.error is None else self.error.line

    @property
    def ok(self) -> bool:
        return self.response is not None and 200 <= self.response.status_code < 300


class OutputFile:
    """A file that results are appended to, by one run at a time."""

    def __init__(self, path: Path, expected: Collection[Key], sync_seconds: float) -> None:
        """Open it; what an earlier run left is kept, a line that it did not complete is cut off.

        Args:
            path: made if it is not there.
            expected: the keys that results may have.
            sync_seconds: after so long at most, written lines are on the disk; 0: each at once.

        Raises:
            ValueError: it has other lines than results of this input, or another run writes it.
            OSError: it cannot be opened.
        """
        self.done: set[Key] = set()
        """Keys that have their result."""
        self.failed = 0
        """Of these, the results that are no success."""
        self._sync_seconds = sync_seconds
        self._synced = time.monotonic()
        self._failure: OSError | None = None
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock(path)
            self._read(path, expected)
        except BaseException:
            os.close(self._fd)
            raise

    async def append(self, key: Key, record: Any, ok: bool) -> None:
        """Add a result.

        Raises:
            OSError: it cannot be written; nor can any after it, which would join a torn line.
        """
        if self._failure is not None:
            raise self._failure
        try:
            _write(self._fd, msgspec.json.encode(record) + b"\n")
        except OSError as error:
            self._failure = error
            raise
        self.done.add(key)
        self.failed += not ok
        now = time.monotonic()
        if now - self._synced >= self._sync_seconds:
            self._synced = now
            await asyncio.to_thread(os.fsync, self._fd)

    def close(self) -> None:
        """Bring everything to the disk, and let others write."""
        try:
            os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{path.name} is written by another run: wait for it, or give another file"
            ) from error

    def _read(self, path: Path, expected: Collection[Key]) -> None:
        whole = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                complete = line.endswith(b"\n")
                try:
                    written = msgspec.json.decode(line, type=_Written)
                except ValueError as error:
                    if complete:
                        raise _foreign(path, number, "is no result of a batch") from error
                    break
                key = written.key
                if key is None or key not in expected:
                    raise _foreign(path, number, "has a custom_id that the input does not have")
                self.done.add(key)
                self.failed += not written.ok
                whole += len(line)
                if not complete:
                    _write(self._fd, b"\n")
                    return
        os.ftruncate(self._fd, whole)


def _foreign(path: Path, number: int, what: str) -> ValueError:
    return ValueError(
        f"line {number} of {path.name} {what}: give the output of this input, or a new file"
    )


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
