"""transformers' `generate` in 32-bit floats, eager, from PyPI in an environment of its own.

It is measured on single requests only: `transformers_server` runs one at a time. Its own server
(`transformers serve --continuous-batching`) made 35 output tokens/s of W2 on two cores, a third of
what vLLM made in the same precision.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.contestant import Contestant, Launch, Place, Say
from benchmarks.peers.environments import Venv

_RELEASE = "transformers==5.24.0"
_NEEDED = ("torch==2.13.0", "aiohttp>=3.10", "safetensors", "tokenizers>=0.22")


def contestants() -> list[Contestant]:
    """The one configuration."""
    return [Contestant("transformers", "fp32", _set_up, _launch, _RELEASE, only=("w1",))]


def _set_up(place: Place, say: Say) -> None:
    _venv(place).hold(_RELEASE, _NEEDED, say)


def _launch(place: Place, workload: str) -> Launch:
    server = Path(__file__).with_name("transformers_server.py")
    return Launch(
        (
            *(str(_venv(place).python), str(server), str(place.hf)),
            *("--port", "{port}", "--threads", str(place.threads)),
        )
    )


def _venv(place: Place) -> Venv:
    return Venv(place.environments / "transformers")
