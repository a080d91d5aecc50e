"""How much compiling one constraint may take."""

from __future__ import annotations

import time
from dataclasses import dataclass

from phloem.grammar.errors import ConstraintTooComplex


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the states of any one automaton, and on the time of all of a compilation."""

    max_states: int = 100_000
    deadline: float | None = None
    """On the clock of `time.thread_time()`, the processor time of the thread that compiles: a
    worker that has to wait for others refuses nothing for it. None: no limit."""

    @classmethod
    def of_seconds(cls, seconds: float, max_states: int = 100_000) -> Budget:
        """A budget whose time begins now, in this thread."""
        return cls(max_states, time.thread_time() + seconds)

    def check(self, states: int) -> None:
        """Raise if an automaton of that many states, or any further work, is over the limit.

        Raises:
            ConstraintTooComplex: naming the limit.
        """
        if states > self.max_states:
            raise ConstraintTooComplex(
                f"the constraint needs more than {self.max_states} states: use smaller counts in "
                "repetitions, or fewer alternatives"
            )
        if self.deadline is not None and time.thread_time() > self.deadline:
            raise ConstraintTooComplex(
                "compiling the constraint took longer than its time limit: use smaller counts in "
                "repetitions, or fewer alternatives that begin alike"
            )
