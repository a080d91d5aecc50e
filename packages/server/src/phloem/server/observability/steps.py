"""How long the scheduler's turns take, as the scheduler process counts them."""

from __future__ import annotations

from phloem.server.observability.distribution import Distribution

_SECONDS = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1,
    2.5,
)


def step_times() -> Distribution:
    """Of model steps: a decode takes some milliseconds, a long prefill on a CPU seconds."""
    return Distribution(_SECONDS)
