"""What is measured: a server that can be set up and started.

Owns the contract that every peer and every variant of ours keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

Say = Callable[[str], None]
SERVED_NAME = "m"
"""What every server's API calls the model."""
AT_ONCE = 16
"""Requests that a server must be able to run at once; no workload has more."""
CONTEXT = 2048
"""Tokens of the longest prompt and output, rounded up."""


class Place(NamedTuple):
    """Where contestants are set up, and from what."""

    environments: Path
    gguf: Path
    """The model as it is distributed."""
    hf: Path
    """The same weights as a Hugging Face folder."""
    threads: int
    """To compute with."""
    jobs: int
    """To compile with."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server; `{port}` in the command stands for its port."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to that of the benchmark."""
    min_tokens: bool = False
    """It needs `min_tokens` beside `ignore_eos` to give outputs of full length."""

    def at(self, port: int) -> list[str]:
        """The command for a port."""
        return [part.replace("{port}", str(port)) for part in self.command]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server in one configuration."""

    name: str
    precision: str
    """What the weights are computed in; `fp32` is exact."""
    set_up: Callable[[Place, Say], None]
    """Makes what it needs where that is not there yet. Raises `SetupFailed`."""
    launch: Callable[[Place, str], Launch]
    """How it is started for a workload."""
    about: str
    """What it is: a release, or our flags."""
    ours: bool = False
    only: tuple[str, ...] = ()
    """The workloads that it is measured on; none named: all."""

    def runs(self, workload: str) -> bool:
        """Whether it is measured on a workload."""
        return not self.only or workload in self.only

    def launches(self, place: Place, workloads: Sequence[str]) -> list[tuple[Launch, list[str]]]:
        """Servers to start one after the other, each with all workloads that it is to run."""
        servers: list[tuple[Launch, list[str]]] = []
        for workload in filter(self.runs, workloads):
            launch = self.launch(place, workload)
            for started, of in servers:
                if started == launch:
                    of.append(workload)
                    break
            else:
                servers.append((launch, [workload]))
        return servers
