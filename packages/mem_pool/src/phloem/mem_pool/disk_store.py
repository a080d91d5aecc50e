"""`DiskStore`: blocks of KV as files in a folder; implements `Store`.

The folder is the only index, so any number of processes may use one at the same time: a block is
there if its file is, and the time at which a file was last used is its modification time. Files
appear whole, by renaming. What a block means is not its business.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from phloem.mem_pool.block_file import HEADER_BYTES, content, header
from phloem.mem_pool.tier_ports import Bytes

log = logging.getLogger(__name__)

QUEUE_BYTES = 256 << 20
"""Bytes that wait to be written; more is dropped."""
_REST_SECONDS = 30.0
"""How long nothing is written after the disk refused."""
_STALE_SECONDS = 3600.0
"""Age of a temporary file whose writer must have died."""
_KEPT_SHARE = 0.9
"""What is kept when there is too much, so that it is not too much again at once."""
_UNCOUNTED_SHARE = 1 / 16
"""What is written at most before the folder is looked through again."""
_SUFFIX = ".kv"
_TEMPORARY = ".tmp"


@dataclass(slots=True)
class DiskStats:
    """What a store did since it was made, in blocks."""

    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    """Files that were not what their name says: cut short, changed, or not ours. Left alone."""
    written: int = 0
    dropped: int = 0
    """Not written: too much was waiting, or the disk had just refused."""
    refused: int = 0
    """Writes that failed, on a full disk say."""
    evicted: int = 0


class _Waiting(NamedTuple):
    """A block to write."""

    name: bytes
    data: Bytes
    replace: bool


class DiskStore:
    """Blocks as files `xx/name.kv`, at most so many bytes of them; the one unused longest goes.

    `find` and `get` are for one thread, `put` may come from any; one thread of its own writes.

    Args:
        folder: made if it is not there.
        capacity: bytes that all files of the folder may take, whichever process wrote them.
        idle_ttl: seconds after which a block that was not used is gone; None: never.
        queue_bytes: bytes that may wait to be written.
        clock: seconds since the epoch, as files have them.

    Raises:
        ValueError: nothing can be written to the folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        capacity: int,
        *,
        idle_ttl: float | None = None,
        queue_bytes: int = QUEUE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = Path(folder)
        self.capacity = capacity
        self.stats = DiskStats()
        self._idle_ttl = idle_ttl
        self._queue_bytes = queue_bytes
        self._clock = clock
        self._serial = itertools.count()
        self._corrupt: set[bytes] = set()
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._stored_bytes = 0
        self._tidy_at = capacity
        self._rest_until = 0.0
        self._closing = False
        self._changed = threading.Condition()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self._temporary(self.folder)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ValueError(
                f"the folder {str(self.folder)!r} cannot hold a cache: {error.strerror}; give a "
                "folder that this user may write to"
            ) from error
        self._writer = threading.Thread(target=self._run, name="phloem-disk", daemon=True)
        self._writer.start()

    def counts(self) -> dict[str, int]:
        """`stats` by name."""
        return asdict(self.stats)

    def find(self, names: Sequence[bytes]) -> int:
        """How many of `names` are there, counted from the first without a gap."""
        found = 0
        for name in names:
            if name in self._corrupt or not self._is_there(self._path(name)):
                break
            found += 1
        return found

    def get(self, name: bytes) -> memoryview | None:
        """A block as it was put; None if it is not there. Counts as its use."""
        path = self._path(name)
        try:
            file = path.read_bytes()
            os.utime(path, (self._clock(), self._clock()))
        except OSError:
            self.stats.misses += 1
            return None
        data = content(name, file)
        if data is None:
            log.warning("%s is damaged or not ours: it is left alone", path)
            self._corrupt.add(name)
            self.stats.corrupt += 1
            return None
        self.stats.hits += 1
        return data

    def put(self, name: bytes, data: Bytes, *, replace: bool = False) -> None:
        """Have a block written soon; dropped, and counted, if too much is waiting already."""
        with self._changed:
            full = self._queued_bytes + len(data) > self._queue_bytes
            if full or self._closing or self._clock() < self._rest_until:
                self.stats.dropped += 1
                return
            self._queue.append(_Waiting(name, data, replace))
            self._queued_bytes += len(data)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until what was put is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queued_bytes)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join()

    # In the writing thread.

    def _run(self) -> None:
        self._tidy()
        pause = None if self._idle_ttl is None else self._idle_ttl / 4
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing, timeout=pause)
                block = self._queue.popleft() if self._queue else None
                if block is None and self._closing:
                    return
            if block is not None:
                self._write(block)
                with self._changed:
                    self._queued_bytes -= len(block.data)
                    self._changed.notify_all()
            if block is None or self._stored_bytes > self._tidy_at:
                self._tidy()

    def _write(self, block: _Waiting) -> None:
        name, data = block.name, block.data
        size = HEADER_BYTES + len(data)
        path = self._path(name)
        known = self._is_there(path) and name not in self._corrupt and not block.replace
        if known or size > self.capacity:
            return
        temporary = self._temporary(path.parent)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(header(name, data))
                file.write(data)
            os.utime(temporary, (self._clock(), self._clock()))
            temporary.replace(path)
        except OSError as error:
            log.warning("a block of the prefix cache was not written: %s", error)
            with suppress(OSError):
                temporary.unlink()
            self.stats.refused += 1
            self._rest_until = self._clock() + _REST_SECONDS
            return
        self._corrupt.discard(name)
        self.stats.written += 1
        self._stored_bytes += size

    def _tidy(self) -> None:
        """Count what is stored, by whomever, and remove what is too old or too much."""
        now = self._clock()
        found = sorted(self._files(now))
        total = sum(size for _, size, _ in found)
        keep = self.capacity if total <= self.capacity else int(self.capacity * _KEPT_SHARE)
        for used, size, path in found:
            if total <= keep and not self._is_idle(used):
                break
            with suppress(OSError):
                os.unlink(path)
                self.stats.evicted += 1
            total -= size
        self._stored_bytes = total
        # Others write to the folder too: their blocks are counted from time to time.
        self._tidy_at = min(self.capacity, total + int(self.capacity * _UNCOUNTED_SHARE))

    def _files(self, now: float) -> Iterator[tuple[float, int, str]]:
        """When each block was used last, its bytes and its path; removes what dead writers left."""
        for shard in _listed(self.folder):
            if len(shard.name) != 2 or not shard.is_dir(follow_symlinks=False):
                continue
            for entry in _listed(shard.path):
                # Another process may remove it at any time.
                with suppress(OSError):
                    stat = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(_SUFFIX):
                        yield stat.st_mtime, stat.st_size, entry.path
                    elif entry.name.endswith(_TEMPORARY) and stat.st_mtime < now - _STALE_SECONDS:
                        os.unlink(entry.path)

    def _is_there(self, path: Path) -> bool:
        try:
            return not self._is_idle(os.stat(path).st_mtime)
        except OSError:
            return False

    def _is_idle(self, used: float) -> bool:
        return self._idle_ttl is not None and used < self._clock() - self._idle_ttl

    def _path(self, name: bytes) -> Path:
        word = name.hex()
        return self.folder / word[:2] / f"{word}{_SUFFIX}"

    def _temporary(self, folder: Path) -> Path:
        return folder / f"{os.getpid()}-{id(self):x}-{next(self._serial)}{_TEMPORARY}"


def _listed(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
