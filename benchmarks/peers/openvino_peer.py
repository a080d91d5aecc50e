"""OpenVINO GenAI on 8-bit weights, from PyPI in an environment of its own.

It comes without an OpenAI-compatible server that loads a GGUF file, so `openvino_server` is one.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers import llama_cpp_peer
from benchmarks.peers.contestant import AT_ONCE, Contestant, Launch, Place, Say
from benchmarks.peers.environments import Venv

_RELEASE = "openvino-genai==2026.4.1"
_NEEDED = ("aiohttp>=3.10", "numpy", "tokenizers>=0.22")
_KV_GB = 2
_WEIGHTS = "Q8_0"


def contestants() -> list[Contestant]:
    """The one configuration."""
    return [Contestant("openvino", "q8_0", _set_up, _launch, _RELEASE)]


def _set_up(place: Place, say: Say) -> None:
    _venv(place).hold(_RELEASE, _NEEDED, say)
    llama_cpp_peer.quantized(place, _WEIGHTS, say)


def _launch(place: Place, workload: str) -> Launch:
    server = Path(__file__).with_name("openvino_server.py")
    return Launch(
        (
            *(str(_venv(place).python), str(server), str(llama_cpp_peer.weights(place, _WEIGHTS))),
            *("--tokenizer", str(place.hf / "tokenizer.json"), "--port", "{port}"),
            *("--cache-gb", str(_KV_GB), "--at-once", str(AT_ONCE)),
            *("--threads", str(place.threads)),
        )
    )


def _venv(place: Place) -> Venv:
    return Venv(place.environments / "openvino")
