"""Rounds in which all contestants take turns, each with a fresh server.

Owns the order of things and that a contestant which fails is left out while the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.peers.contestant import SERVED_NAME, Contestant, Launch, Place, Say
from benchmarks.peers.environments import SetupFailed
from benchmarks.peers.load import Measured, Plan, measure
from benchmarks.peers.machine import BUSY_CORES, Others
from benchmarks.peers.results import Entrant, Results, Session
from benchmarks.peers.server import PeakMemory, RunningServer, ServerFailed, running
from phloem.server.bench.client import Target
from phloem.server.openai_wire import api_base


class Rounds:
    """Contestants, and what they are to do."""

    def __init__(
        self,
        contestants: Sequence[Contestant],
        place: Place,
        plan: Plan,
        workloads: Sequence[str],
        say: Say,
        *,
        start_timeout: float,
    ) -> None:
        self._contestants = {contestant.name: contestant for contestant in contestants}
        self._place, self._plan, self._workloads = place, plan, tuple(workloads)
        self._say = say
        self._start_timeout = start_timeout
        self.results = Results(Entrant(c.name, c.precision, c.ours) for c in contestants)

    def set_up(self) -> None:
        """Set all up; leave out those that cannot be."""
        for name, contestant in tuple(self._contestants.items()):
            with self._leaving_out(name):
                contestant.set_up(self._place, self._say)
                self._say(f"{name}: set up")

    def play(self, number: int) -> None:
        """One round; every second one goes the other way round."""
        for name in tuple(self._contestants)[:: -1 if number % 2 else 1]:
            with self._leaving_out(name):
                self.results.add(name, self._session(self._contestants[name], number))

    def _session(self, contestant: Contestant, number: int) -> Session:
        """All workloads, each on the server that it wants."""
        whole: Session | None = None
        for part, (launch, workloads) in enumerate(
            contestant.launches(self._place, self._workloads)
        ):
            name = f"{contestant.name}-{number + 1}-{part + 1}.log"
            log = self._place.environments / "logs" / name
            self._say(f"\nround {number + 1}, {contestant.name}: starting")
            with running(launch, log, self._start_timeout) as server:
                self._say(f"  first answer after {server.startup_s:.1f} s")
                whole = whole or Session(number, server.startup_s)
                self._load(server, launch, workloads, whole)
        if whole is None:
            raise RuntimeError("there is no workload to run: name one")
        return whole

    def _load(
        self, server: RunningServer, launch: Launch, workloads: Sequence[str], session: Session
    ) -> None:
        target = Target(api_base(server.url), SERVED_NAME, min_tokens=launch.min_tokens)
        built = [self._plan.workload(name, session.round_number) for name in workloads]

        def done(run: Measured) -> None:
            session.runs.append(run)
            self._say(f"  {_told(run)}")

        def watch() -> Others:
            return Others(server.pid)

        with PeakMemory(server.pid) as peak:
            asyncio.run(measure(target, self._plan, built, watch, done))
        session.peak_rss_mib = max(session.peak_rss_mib, peak.rss_mib)
        pss = server.pss_mib()
        if pss is not None:
            session.pss_mib = max(session.pss_mib or 0.0, pss)

    @contextmanager
    def _leaving_out(self, name: str) -> Iterator[None]:
        """What fails is told, and takes no further part."""
        try:
            yield
        except (SetupFailed, ServerFailed, RuntimeError) as failed:
            del self._contestants[name]
            self.results.absent[name] = str(failed)
            self._say(f"{name} is left out: {failed}")


def _told(run: Measured) -> str:
    figures = run.figures
    told = (
        f"{run.name}: {figures.output_tokens_per_s:.1f} output tokens/s in {figures.wall_s:.1f} s"
    )
    if figures.failed:
        told += f", {figures.failed:.0f} failed: {figures.first_error}"
    if run.others_cores > BUSY_CORES:
        told += f" (others used {run.others_cores:.2f} cores)"
    return told
