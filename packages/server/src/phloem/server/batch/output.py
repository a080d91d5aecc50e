"""The output of a batch: one result a line, appended as they come, and none of them twice.

Owns the file, from its repair after a run that was killed to its way to the disk. A line is written
by one call, so that a killed process leaves whole lines, or at most a beginning of the last.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from phloem.server.batch.lines import RESULT_ID, Key

_BEGINNING = f'{{"id":"{RESULT_ID}'.encode()
"""Of each line that is written here."""
_FOR_NOW = (408, 429)
"""Statuses below 500 that say nothing of the request itself."""


class _Response(msgspec.Struct):
    status_code: int


class _Error(msgspec.Struct):
    code: Any = None
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

    @property
    def of_bad_line(self) -> bool:
        return self.error is not None and self.error.code == "invalid_line"

    @property
    def failed_for_now(self) -> bool:
        status = 0 if self.response is None else self.response.status_code
        return status >= 500 or status in _FOR_NOW


class OutputFile:
    """A file that results are appended to, by one run at a time."""

    def __init__(
        self,
        path: Path,
        expected: Mapping[Key, str],
        sync_seconds: float,
        retry_failed: bool = False,
    ) -> None:
        """Open it; what an earlier run left is kept, a line that it did not complete is cut off.

        What became of a line that was no request is left out, where the input has another now.

        Args:
            path: made if it is not there.
            expected: the keys that results may have, with the ids of these.
            sync_seconds: after so long at most, written lines are on the disk; 0: each at once.
            retry_failed: leave out results that say nothing of the request (5xx, 429, 408).

        Raises:
            ValueError: it has other lines than results of this input, is no regular file, or
                another run writes it; it is as it was.
            OSError: it cannot be opened.
        """
        self.done: set[Key] = set()
        """Keys that have their result."""
        self.failed = 0
        """Of these, the results that are no success."""
        self._sync_seconds = sync_seconds
        self._synced = time.monotonic()
        self._failure: OSError | None = None
        self._path = path.resolve()
        if path.exists() and not path.is_file():
            raise ValueError(f"{path.name} is no regular file: results need one, or a new name")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock(self._fd)
            self._read(expected, retry_failed)
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

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The other one may have put a new file in its place, and ended.
            ours = os.path.samestat(os.fstat(fd), self._path.stat())
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if not ours:
            raise ValueError(
                f"{self._path.name} is written by another run: wait for it, or give another file"
            )

    def _read(self, expected: Mapping[Key, str], retry_failed: bool) -> None:
        """Take in what there is; nothing is changed before all of it is known to be ours."""
        kept: list[tuple[int, int]] = []
        """Where lines begin and end that stay."""
        end = torn = 0
        left_out = completed = False
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                written = _parsed(line)
                if written is None:
                    if line.endswith(b"\n") or not _is_torn(line, expected, number > 1):
                        raise self._foreign(number, "is no result of a batch")
                    torn = len(line)
                    break
                key = written.key
                if written.of_bad_line and expected.get(key or 0) != written.id:
                    stays = False
                else:
                    self._check(number, key, written, expected)
                    stays = not (retry_failed and written.failed_for_now)
                if stays:
                    assert key is not None, "it is expected"
                    self.done.add(key)
                    self.failed += not written.ok
                    kept.append((end, end + len(line)))
                left_out |= not stays
                completed |= not line.endswith(b"\n")
                end += len(line)
        if left_out:
            self._rewrite(kept)
        elif torn:
            os.ftruncate(self._fd, end)
        if completed and kept and kept[-1][1] == end:
            _write(self._fd, b"\n")

    def _check(
        self, number: int, key: Key | None, written: _Written, expected: Mapping[Key, str]
    ) -> None:
        if key is None or key not in expected:
            raise self._foreign(number, "has a custom_id that the input does not have")
        if expected[key] != written.id:
            raise self._foreign(number, f"answers another request of custom_id {key!r}")
        if key in self.done:
            raise self._foreign(number, f"is a second result of {key!r}")

    def _foreign(self, number: int, what: str) -> ValueError:
        return ValueError(
            f"line {number} of {self._path.name} {what}: give the output of this input, or a new "
            "file"
        )

    def _rewrite(self, kept: list[tuple[int, int]]) -> None:
        """Put a file with these pieces in its place, at once and wholly on the disk."""
        with tempfile.NamedTemporaryFile(
            dir=self._path.parent, prefix=self._path.name, delete=False
        ) as made:
            try:
                for begin, end in kept:
                    made.write(os.pread(self._fd, end - begin, begin))
                made.flush()
                os.fsync(made.fileno())
                os.fchmod(made.fileno(), stat.S_IMODE(os.fstat(self._fd).st_mode))
                fd = os.open(made.name, os.O_RDWR | os.O_APPEND)
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.replace(made.name, self._path)
            except BaseException:
                os.unlink(made.name)
                raise
        os.close(self._fd)
        self._fd = fd


def _parsed(line: bytes) -> _Written | None:
    try:
        return msgspec.json.decode(line, type=_Written)
    except (ValueError, RecursionError):
        return None


def _is_torn(line: bytes, expected: Mapping[Key, str], after_ours: bool) -> bool:
    """Whether it is the beginning of a result that one of our runs did not write to its end.

    Zeros are what a file has that grew before its data reached the disk.
    """
    begun = line.rstrip(b"\0")
    if len(begun) <= len(_BEGINNING):
        return _BEGINNING.startswith(begun) and (begun != b"" or after_ours)
    id = (RESULT_ID.encode() + begun[len(_BEGINNING) :]).partition(b'"')[0]
    return begun.startswith(_BEGINNING) and any(
        each.encode().startswith(id) for each in expected.values()
    )


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
