"""Crash dumps: a file that tells what was in flight when a part of the engine failed.

Owns the files: what is in them, that they are few and for the operator's eyes, and that no trouble
in writing them makes anything worse. When there is something to tell is for others to say.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from phloem.server.in_flight import Flight, described

KEPT_FILES = 10
"""In a folder; the oldest go first."""
_KEPT_LINES = 100
_SECONDS_BETWEEN = 60.0
"""Failures after which the engine lives on, such as of a model's step, may come in great numbers.
"""
_PATTERN = "phloem-crash-*.json"
_PARTS = "phloem-crash-*.part"
_SECONDS_TO_WRITE = 60.0
"""A part that is older is nobody's any more."""

log = logging.getLogger(__name__)


def prepare_folder(folder: Path) -> None:
    """Make a folder for dumps where it is missing, and remove what a killed writer left in it.

    Raises:
        ValueError: it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"crash_dump_dir {str(folder)!r} cannot be written to "
            f"({os.strerror(error.errno or 0)}): give a folder that this user may write to"
        ) from error
    for part in folder.glob(_PARTS):
        with suppress(OSError):  # another server may share the folder
            if time.time() - part.stat().st_mtime > _SECONDS_TO_WRITE:
                part.unlink()


class LastLines(logging.Handler):
    """Keeps the last lines of the log, without fields and traces, which may have texts."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        bare = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None})
        self.lines.append(self.format(bare))


class CrashDumps:
    """Writes dumps into a folder, which must exist (`prepare_folder`).

    Args:
        folder: where to; None: nothing is written.
        texts: whether they have prompts and outputs.
        about: what is the same in all: version, model, options, without secrets.
        clock: in seconds.
    """

    def __init__(
        self,
        folder: Path | None,
        texts: bool,
        about: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.texts = texts and folder is not None
        self._folder = folder
        self._about = about
        self._clock = clock
        self._lines = LastLines()
        self._next = 0.0
        """When the next dump of an engine that lives on may be written."""
        self._writing: set[asyncio.Future[None]] = set()

    def __enter__(self) -> CrashDumps:
        if self._folder is not None:
            logging.getLogger().addHandler(self._lines)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self._lines)

    def report(self, reason: str, flights: Sequence[Flight], dead: bool) -> None:
        """Write a dump, in a thread; implements `Report`. From a running asyncio loop.

        Args:
            reason: a sentence.
            flights: the requests in flight.
            dead: whether the engine is; if not, there is at most one dump a minute.
        """
        now = self._clock()
        if self._folder is None or (not dead and now < self._next):
            return
        if not dead:
            self._next = now + _SECONDS_BETWEEN
        lines = list(self._lines.lines)
        writing = asyncio.ensure_future(
            asyncio.to_thread(self._write, self._folder, reason, flights, lines, now)
        )
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def written(self) -> None:
        """Wait for what is being written."""
        if self._writing:
            await asyncio.wait(self._writing)

    def _write(
        self, folder: Path, reason: str, flights: Sequence[Flight], lines: list[str], now: float
    ) -> None:
        moment = datetime.now(timezone.utc)
        content = {
            "reason": reason,
            "time": moment.isoformat(timespec="milliseconds"),
            **self._about,
            "requests": [described(flight, now, self.texts) for flight in flights],
            "log": lines,
        }
        try:
            file = _write_file(folder, moment, content)
        except (OSError, ValueError, TypeError) as error:
            log.error("no crash dump could be written to %s: %s", folder, error)
        else:
            what = "1 request" if len(flights) == 1 else f"{len(flights)} requests"
            log.error("a crash dump of %s is in %s", what, file)


def _write_file(folder: Path, moment: datetime, content: Mapping[str, Any]) -> Path:
    """Write a file whole or not at all, and remove the oldest ones."""
    file = folder / f"phloem-crash-{moment:%Y%m%dT%H%M%S%f}-{os.getpid()}.json"
    part = file.with_suffix(".part")
    data = json.dumps(content, indent=1, default=str).encode()
    try:
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as opened:
            opened.write(data)
        part.replace(file)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise
    for old in sorted(folder.glob(_PATTERN))[:-KEPT_FILES]:
        with suppress(OSError):  # another server may share the folder
            old.unlink()
    return file
