"""Whether the processes behind the API are awake: a message that each of them passes on.

Owns who was heard of, and when. A beat goes the way of all news, from the API process over the
scheduler and the detokenizer back to it, and is taken up between two steps: a process that hangs
or stands still does not pass it on. It comes once in a while, so that no step pays for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from phloem.server.frontend import ServiceUnavailable
from phloem.server.messages import Beat, Heard

PROCESSES = ("scheduler", "detokenizer")
"""In the order in which a beat comes by them."""

log = logging.getLogger(__name__)


class Silence(NamedTuple):
    """A process that has not passed on a beat yet."""

    process: str
    seconds: float


class Heartbeat:
    """Sends beats, and knows who has not answered the last one."""

    def __init__(
        self, send: Callable[[Beat], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send = send
        self._clock = clock
        self._number = 0
        self._sent = 0.0
        self._silent: list[str] = []
        """Who has not passed on the last beat."""

    def beat(self) -> None:
        """Send a beat, unless one is under way still."""
        if not self._silent:
            self._number += 1
            self._sent = self._clock()
            self._silent = list(PROCESSES)
            self._send(Beat(self._number))

    def take(self, heard: Heard) -> None:
        """A process has passed a beat on."""
        if heard.number == self._number:
            self._silent = [name for name in self._silent if name != heard.process]

    @property
    def silence(self) -> Silence | None:
        """The first process that has not passed the last beat on; None: all have."""
        return Silence(self._silent[0], self._clock() - self._sent) if self._silent else None

    def check(self, timeout: float) -> None:
        """Refuse if a process has been silent for too long.

        Raises:
            ServiceUnavailable: one has not answered for more than `timeout` seconds.
        """
        silence = self.silence
        if silence is not None and silence.seconds > timeout:
            raise ServiceUnavailable(
                f"the {silence.process} process has not answered for {silence.seconds:.1f} s: a "
                "step takes that long, or it hangs"
            )

    async def run(self, timeout: float) -> None:
        """Beat often enough to know who is silent for `timeout` seconds; log who is."""
        logged: Silence | None = None
        while True:
            self.beat()
            await asyncio.sleep(min(1.0, timeout / 4))
            silence = self.silence
            if logged is None and silence is not None and silence.seconds > timeout:
                logged = silence
                log.warning("the %s process has not answered for %.1f s", *silence)
            elif logged is not None and silence is None:
                log.warning("the %s process answers again", logged.process)
                logged = None
