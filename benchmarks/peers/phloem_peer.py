"""Our own server, in as many configurations as there are sets of flags."""

from __future__ import annotations

import shlex
import sys

from benchmarks.peers.contestant import SERVED_NAME, Contestant, Launch, Place, Say

DEFAULT = "phloem"
EXACT = "phloem-fp32"
_SERVE = "from phloem.server.cli import main; main()"


def contestants() -> list[Contestant]:
    """The default configuration, and the exact one."""
    return [contestant(DEFAULT, ""), contestant(EXACT, "--quantization none")]


def contestant(name: str, flags: str) -> Contestant:
    """`phloem serve` with these flags."""
    options = tuple(shlex.split(flags))

    def launch(place: Place, workload: str) -> Launch:
        return Launch(
            (
                *(sys.executable, "-c", _SERVE, "serve", "--model", str(place.gguf)),
                *("--served-model-name", SERVED_NAME, "--port", "{port}", *options),
            )
        )

    exact = "--quantization none" in flags.replace("=", " ")
    return Contestant(name, "fp32" if exact else "", _nothing, launch, flags, ours=True)


def _nothing(place: Place, say: Say) -> None:
    """It is installed where the benchmark runs, and its model is converted already."""
