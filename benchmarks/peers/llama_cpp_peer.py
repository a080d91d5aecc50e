"""llama.cpp's server, built for this machine from the sources that `llama-cpp-python` carries.

Owns the build, the weights in other formats that its quantizer makes of ours, and its flags.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from functools import partial
from pathlib import Path

from benchmarks.peers.contestant import (
    AT_ONCE,
    CONTEXT,
    SERVED_NAME,
    Contestant,
    Launch,
    Place,
    Say,
)
from benchmarks.peers.environments import SetupFailed, checked, stamped
from benchmarks.peers.machine import cpu_model

_RELEASE = "llama-cpp-python==0.3.36"
_FLAGS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON"),
    *("-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"),
)
_TARGETS = ("llama-server", "llama-quantize")
_OWN_CACHE_EACH = ("w2", "w3")
"""Workloads that it runs faster with a KV cache for each request than with one for all."""


def contestants() -> list[Contestant]:
    """The server with weights in its fastest formats, and as floats."""
    return [
        Contestant(
            f"llama.cpp-{kind.lower()}",
            "fp32" if kind == "F32" else kind.lower(),
            partial(_set_up, kind=kind),
            partial(_launch, kind=kind),
            _RELEASE,
        )
        for kind in ("Q8_0", "Q4_1", "F32")
    ]


def quantized(place: Place, kind: str, say: Say) -> Path:
    """The weights in another of GGUF's formats, made of those that are distributed.

    Raises:
        SetupFailed: they cannot be made.
    """
    _build(place, say)
    target = weights(place, kind)
    if kind == "Q4_1":
        return target
    size = str(place.gguf.stat().st_size)
    wanted = (_RELEASE, place.gguf.name, size, kind)
    quantize = _folder(place) / "build" / "bin" / "llama-quantize"
    command = (quantize, "--allow-requantize", place.gguf, target, kind, str(place.threads))
    folder = target.parent
    stamped(folder, wanted, lambda: checked(command, folder / "quantize.log"))
    return target


def _set_up(place: Place, say: Say, *, kind: str) -> None:
    quantized(place, kind, say)


def _launch(place: Place, workload: str, *, kind: str) -> Launch:
    server = _folder(place) / "build" / "bin" / "llama-server"
    threads = str(place.threads)
    return Launch(
        (
            *(str(server), "-m", str(weights(place, kind)), "-a", SERVED_NAME),
            *("--host", "127.0.0.1", "--port", "{port}", "-t", threads, "-tb", threads),
            *("-np", str(AT_ONCE), "-c", str(AT_ONCE * CONTEXT), "-b", "2048", "-ub", "512"),
            *("-cb", "--cache-prompt", "-no-kvu" if workload in _OWN_CACHE_EACH else "-kvu"),
        )
    )


def _folder(place: Place) -> Path:
    return place.environments / "llama.cpp"


def weights(place: Place, kind: str) -> Path:
    """Where the weights of a format are."""
    if kind == "Q4_1":
        return place.gguf
    return place.environments / "weights" / kind / f"{kind}.gguf"


def _build(place: Place, say: Say) -> None:
    """Build it if it is not built; what was compiled before a break is kept."""
    folder = _folder(place)

    def make() -> None:
        say(f"building {' and '.join(_TARGETS)} of {_RELEASE} in {folder}; some minutes")
        log = folder / "build.log"
        source = _source(folder, log) / "vendor" / "llama.cpp"
        checked(("cmake", "-S", source, "-B", folder / "build", "-G", "Ninja", *_FLAGS), log)
        parallel = ("--parallel", str(place.jobs))
        checked(("cmake", "--build", folder / "build", *parallel, "--target", *_TARGETS), log)

    stamped(folder, (_RELEASE, *_FLAGS, *_TARGETS, cpu_model()), make)


def _source(folder: Path, log: Path) -> Path:
    """The unpacked sources."""
    source, partly = folder / "source", folder / "source.part"
    if source.is_dir():
        return source
    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder)
    checked((*pip, "--no-binary", ":all:", _RELEASE), log)
    archives = sorted(folder.glob("llama_cpp_python-*.tar.gz"))
    if not archives:
        raise SetupFailed(f"pip left no archive of {_RELEASE} in {folder}: see {log}")
    shutil.rmtree(partly, ignore_errors=True)
    with tarfile.open(archives[-1]) as archive:
        for member in archive.getmembers():
            member.name = member.name.partition("/")[2]  # without the folder named for the release
            if member.name.startswith("vendor/llama.cpp/"):
                archive.extract(member, partly, filter="data")
    partly.rename(source)
    return source
