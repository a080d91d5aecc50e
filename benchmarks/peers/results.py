"""What the rounds come to: medians, whose texts are right, who is best, and how we compare.

Owns which figures are compared and which contestants count. Prints and draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from benchmarks.peers.load import Measured, Texts
from phloem.server.bench.figures import Figures, medians

EXACT = "fp32"
REFERENCES = ("llama.cpp-f32", "vllm", "phloem-fp32")
"""Whose texts are taken for what 32-bit floats say: the first of these that was measured."""
JUDGED_BY = "w2"
"""The workload whose texts decide whether a contestant counts: many, and all different."""
LEAST_EQUAL = 1 / 8
"""Share of texts equal to the reference's below which weights must be computed wrongly. Rounding to
8 bits leaves about two fifths of them as they are.
"""


class Metric(NamedTuple):
    """A figure that is compared."""

    name: str
    more_is_better: bool


METRICS = (
    Metric("output_tokens_per_s", True),
    Metric("ttft_p50_ms", False),
    Metric("ttft_p99_ms", False),
    Metric("itl_p50_ms", False),
    Metric("itl_p99_ms", False),
)


class Agreement(NamedTuple):
    """Texts that are equal to the reference's, of all that the reference gave."""

    equal: int
    of: int


class Entrant(NamedTuple):
    """Of a contestant, what matters for comparisons."""

    name: str
    precision: str
    ours: bool


@dataclass
class Session:
    """A server from its start to its end, in one round."""

    round_number: int
    startup_s: float
    peak_rss_mib: float = 0.0
    pss_mib: float | None = None
    """After the last workload."""
    runs: list[Measured] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Standing:
    """Medians of a contestant over all rounds."""

    figures: Mapping[str, Figures]
    """By workload."""
    agreement: Mapping[str, Agreement]
    others_cores: Mapping[str, float]
    """The most of any run."""
    startup_s: float
    peak_rss_mib: float
    pss_mib: float | None
    counts: bool
    """Its texts are right, or nobody knows."""


class Results:
    """All sessions so far."""

    def __init__(self, entrants: Iterable[Entrant]) -> None:
        self.entrants = {entrant.name: entrant for entrant in entrants}
        self.absent: dict[str, str] = {}
        """Why a contestant is not there, or not in all rounds."""
        self._sessions: dict[str, list[Session]] = {}

    def add(self, name: str, session: Session) -> None:
        """A session that ended as it should."""
        self._sessions.setdefault(name, []).append(session)

    @property
    def reference(self) -> str | None:
        """Whose texts the others' are compared with."""
        return next((name for name in REFERENCES if name in self._sessions), None)

    def standings(self) -> dict[str, Standing]:
        """Of all that were measured, in the order of the entrants."""
        measured = [name for name in self.entrants if name in self._sessions]
        return {name: self._standing(name) for name in measured}

    def _standing(self, name: str) -> Standing:
        sessions = self._sessions[name]
        runs: dict[str, list[Measured]] = {}
        for session in sessions:
            for run in session.runs:
                runs.setdefault(run.name, []).append(run)
        pss = [session.pss_mib for session in sessions if session.pss_mib is not None]
        agreement = self._agreement(name)
        return Standing(
            {workload: medians([run.figures for run in of]) for workload, of in runs.items()},
            agreement,
            {workload: max(run.others_cores for run in of) for workload, of in runs.items()},
            median(session.startup_s for session in sessions),
            max(session.peak_rss_mib for session in sessions),
            max(pss, default=None),
            _is_right(agreement.get(JUDGED_BY)),
        )

    def _agreement(self, name: str) -> dict[str, Agreement]:
        """Over the rounds that both it and the reference finished."""
        if self.reference is None:
            return {}
        theirs, said = self._texts(self.reference), self._texts(name)
        sums: dict[str, Agreement] = {}
        for (workload, number), texts in said.items():
            reference = theirs.get((workload, number))
            if reference is not None:
                equal, of = sums.get(workload, (0, 0))
                more = compare(texts, reference)
                sums[workload] = Agreement(equal + more.equal, of + more.of)
        return sums

    def _texts(self, name: str) -> dict[tuple[str, int], Texts]:
        return {
            (run.name, session.round_number): run.texts
            for session in self._sessions[name]
            for run in session.runs
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything but the texts, as JSON has it."""
        standings = self.standings()
        return {
            "reference": self.reference,
            "absent": self.absent,
            "contestants": {
                name: {**_plain(standing), "sessions": list(map(_session, self._sessions[name]))}
                for name, standing in standings.items()
            },
            "ratios": ratios(standings, self.entrants),
        }


def compare(texts: Texts, reference: Texts) -> Agreement:
    """How many of the reference's prompts have the same text.

    A prompt that holds earlier answers is another one after answers that differ.
    """
    return Agreement(
        sum(texts.get(prompt) == text for prompt, text in reference.items()), len(reference)
    )


def ratios(
    standings: Mapping[str, Standing], entrants: Mapping[str, Entrant]
) -> dict[str, dict[str, dict[str, dict[str, dict[str, Any]]]]]:
    """How many times better we are than the best peer, and than the best that is exact.

    By workload, configuration of ours, rivals (`all`, `fp32`) and metric: the best rival's name and
    the ratio; above 1 we are better. A peer counts where its texts are right and no request failed.
    """
    found: dict[str, dict[str, dict[str, dict[str, dict[str, Any]]]]] = {}
    workloads = dict.fromkeys(w for standing in standings.values() for w in standing.figures)
    peers = {n: s for n, s in standings.items() if not entrants[n].ours and s.counts}
    for workload in workloads:
        for name, standing in standings.items():
            if not entrants[name].ours or workload not in standing.figures:
                continue
            rivals = {
                n: s.figures[workload]
                for n, s in peers.items()
                if workload in s.figures and not s.figures[workload].failed
            }
            exact = {n: f for n, f in rivals.items() if entrants[n].precision == EXACT}
            found.setdefault(workload, {})[name] = {
                kind: _against(standing.figures[workload], of)
                for kind, of in (("all", rivals), (EXACT, exact))
            }
    return found


def _against(ours: Figures, rivals: Mapping[str, Figures]) -> dict[str, dict[str, Any]]:
    against: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        mine = getattr(ours, metric.name)
        values = {name: getattr(figures, metric.name) for name, figures in rivals.items()}
        known = {name: value for name, value in values.items() if value}
        if not mine or not known:
            continue
        best = (max if metric.more_is_better else min)(known, key=lambda name: known[name])
        ratio = mine / known[best] if metric.more_is_better else known[best] / mine
        against[metric.name] = {"best": best, "ratio": ratio}
    return against


def _is_right(agreement: Agreement | None) -> bool:
    return agreement is None or agreement.equal >= LEAST_EQUAL * agreement.of


def _plain(standing: Standing) -> dict[str, Any]:
    return {
        "counts": standing.counts,
        "startup_s": standing.startup_s,
        "peak_rss_mib": standing.peak_rss_mib,
        "pss_mib": standing.pss_mib,
        "median": {workload: f.as_dict() for workload, f in standing.figures.items()},
        "agreement": {workload: a._asdict() for workload, a in standing.agreement.items()},
    }


def _session(session: Session) -> dict[str, Any]:
    return {
        "round": session.round_number,
        "startup_s": session.startup_s,
        "peak_rss_mib": session.peak_rss_mib,
        "pss_mib": session.pss_mib,
        "runs": [
            {"workload": run.name, "others_cores": run.others_cores, **run.figures.as_dict()}
            for run in session.runs
        ],
    }
