"""How long a prefill chunk may be so that the requests that decode beside it keep their pace.

Owns the estimate of what a step costs and the rule that follows from it (`Pace`, pure), and the
measuring (`PaceKeeper`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from phloem.scheduler.batch import ScheduleBatch

_SMOOTHING = 0.2
"""Weight of a new decode step in the mean of them: they vary, chunks are corrected at once."""
_MOST_GROWTH = 2.0
"""By which one step can make the chunk longer; a step that was short by chance proves little."""
_LEAST_SHARE = 16
"""A chunk is never shorter than the longest one over this."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known, and the chunk that follows; `after` is the rule, a pure function.

    A step is taken to cost `decode_s` and an equal time for each prompt token::

        seconds = decode_s + tokens * cost      =>      chunk = tokens * (target_s - decode_s)
                                                                       / (seconds - decode_s)

    While no step without a prompt has been seen `decode_s` counts as 0, and the same rule comes
    nearer to the target by each step. Where the target cannot be kept, as decoding alone takes
    longer, the chunk is the shortest: prompts are slowed down but go on.
    """

    target_s: float
    longest: int
    """Tokens of the longest chunk, which is where it begins."""
    chunk: float
    """Tokens of the next chunk, decoding requests not included."""
    decode_s: float | None = None
    """Mean time of a step that only decodes; None: there was none."""

    @classmethod
    def start(cls, target_s: float, longest: int) -> Pace:
        """Nothing is known yet."""
        return cls(target_s, longest, longest)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest chunk."""
        return max(self.longest // _LEAST_SHARE, 1)

    def after(self, prompt_tokens: int, decodes: int, seconds: float) -> Pace:
        """What is known after one more step.

        Args:
            prompt_tokens: that it computed.
            decodes: requests that decoded in it; without any, nobody was kept waiting.
            seconds: that it took.
        """
        if not decodes or seconds <= 0:
            return self
        if not prompt_tokens:
            before = seconds if self.decode_s is None else self.decode_s
            return replace(self, decode_s=before + _SMOOTHING * (seconds - before))
        if prompt_tokens < self.chunk / 2 and seconds <= self.target_s:
            return self  # a step of few tokens says little of whole chunks
        decode_s = self.decode_s or 0.0
        room, taken = self.target_s - decode_s, seconds - decode_s
        if room <= 0:
            return replace(self, chunk=float(self.shortest))
        fitting = prompt_tokens * room / taken if taken > 0 else float(self.longest)
        fitting = min(fitting, self.chunk * _MOST_GROWTH, self.longest)
        return replace(self, chunk=max(fitting, float(self.shortest)))


class PaceKeeper:
    """Measures steps by a clock and keeps a `Pace` of them.

    A step runs from its launch, or from the end of the step before it if that was later, until its
    result is processed; under overlap as well as without.

    Attributes:
        pace: as of the last step.
    """

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self.pace = pace
        self._clock = clock
        self._launched: deque[float] = deque()
        """When the steps in flight were, in order."""
        self._ended = -math.inf

    @property
    def chunk(self) -> int:
        """Tokens of the next chunk."""
        return int(self.pace.chunk)

    def launched(self) -> None:
        """A step begins."""
        self._launched.append(self._clock())

    def processed(self, batch: ScheduleBatch) -> None:
        """The oldest step in flight has ended."""
        start = max(self._launched.popleft(), self._ended)
        self._ended = self._clock()
        prompt_tokens = sum(row.query_len for row in batch.chunks)
        decodes = 0 if batch.decode is None else len(batch.decode)
        self.pace = self.pace.after(prompt_tokens, decodes, self._ended - start)


def pace_keeper(
    target_ms: float | None, longest: int | None, clock: Callable[[], float]
) -> PaceKeeper | None:
    """What keeps a target with chunks of at most `longest` tokens; None if either is missing."""
    if target_ms is None or longest is None:
        return None
    return PaceKeeper(Pace.start(target_ms / 1000, longest), clock)
