"""What this machine offers to an engine: versions, hardware, kernel backends, the default model.

Owns the looking; showing it is the command line's. It changes nothing: no model is converted or
fetched.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from phloem.kernels import automatic_backend, available_backends
from phloem.model_runner.sources import default_cache_dir, resolve_model

COMPONENTS = (
    "radix-cache",
    "kernels",
    "mem-pool",
    "scheduler",
    "grammar",
    "model-runner",
    "server",
)
LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "gguf", "huggingface_hub")
GRAMMAR_LIBRARIES = ("xgrammar", "llguidance")
"""Not needed: with them more constraints are supported."""
CPU_FEATURES = {
    "x86_64": ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"),
    "aarch64": ("asimd", "asimddp", "i8mm", "bf16", "sve"),
}
"""Instruction sets that matter to kernels, as Linux names them."""

_CPUINFO = Path("/proc/cpuinfo")
_DEFAULT_MODEL = "smollm2"


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor; `features` is None where the system does not tell."""

    model: str
    usable_cores: int
    features: Mapping[str, bool] | None


@dataclass(frozen=True, slots=True)
class Backend:
    """A kernel backend; `reason` says why it is not usable, or what it runs on."""

    name: str
    usable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Model:
    """The default model; `found` says where it is, or how to get it."""

    name: str
    present: bool
    found: str
    cache_dir: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found. Versions are None for what is not installed."""

    python: str
    platform: str
    components: Mapping[str, str | None]
    libraries: Mapping[str, str | None]
    grammar_libraries: Mapping[str, str | None]
    cpu: Cpu
    memory_bytes: int
    available_bytes: int
    gpus: tuple[str, ...]
    backends: tuple[Backend, ...]
    automatic_backend: str
    """The one that `auto` is here."""
    model: Model
    problems: tuple[str, ...]
    """Why an engine cannot run here; empty when one can."""


def examine(cache_dir: str | Path | None = None) -> Report:
    """Look at this machine; takes about as long as importing torch, and compiles no kernels."""
    memory = psutil.virtual_memory()
    backends = tuple(Backend(b.name, b.usable, b.reason) for b in available_backends())
    components = {name: _component_version(name) for name in COMPONENTS}
    libraries = {name: _version(name) for name in LIBRARIES}
    return Report(
        python=platform.python_version(),
        platform=platform.platform(),
        components=components,
        libraries=libraries,
        grammar_libraries={name: _version(name) for name in GRAMMAR_LIBRARIES},
        cpu=_cpu(),
        memory_bytes=memory.total,
        available_bytes=memory.available,
        gpus=_gpus(),
        backends=backends,
        automatic_backend=automatic_backend(),
        model=_default_model(Path(cache_dir or default_cache_dir())),
        problems=tuple(_problems(components, libraries, backends)),
    )


def lines(report: Report) -> Iterator[tuple[str, str]]:
    """The report as names and values, for people."""
    yield "python", f"{report.python} on {report.platform}"
    for name, version in report.components.items():
        yield f"phloem-{name}", version or "not installed"
    for name, version in report.libraries.items():
        yield name, version or "not installed"
    yield "cpu", f"{report.cpu.model}, {report.cpu.usable_cores} usable cores"
    yield "cpu features", _feature_line(report.cpu.features)
    memory = f"{_gib(report.available_bytes)} of {_gib(report.memory_bytes)} GiB available"
    yield "memory", memory
    yield "gpu", ", ".join(report.gpus) or "none that torch sees"
    for backend in report.backends:
        state = "usable" if backend.usable else "not usable"
        yield f"kernels: {backend.name}", f"{state} ({backend.reason})"
    yield "kernels: auto", report.automatic_backend
    yield "constraints: fsm", "usable"
    for name, version in report.grammar_libraries.items():
        advice = "not usable (not installed: pip install 'phloem-server[grammar]')"
        yield f"constraints: {name}", f"usable ({version})" if version else advice
    yield f"model {report.model.name}", report.model.found
    yield "model cache", report.model.cache_dir


def _feature_line(features: Mapping[str, bool] | None) -> str:
    if features is None:
        return "not known on this system"
    return ", ".join(name if has else f"no {name}" for name, has in features.items())


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _component_version(name: str) -> str | None:
    version = _version(f"phloem-{name}")
    if version is None and importlib.util.find_spec(f"phloem.{name.replace('-', '_')}"):
        return "run from source"
    return version


def _cpu() -> Cpu:
    facts = _first_processor()
    names = CPU_FEATURES.get(platform.machine().replace("AMD64", "x86_64"))
    flags = facts.get("flags", facts.get("Features"))
    features = None
    if names and flags is not None:
        features = {name: name in flags.split() for name in names}
    model = facts.get("model name") or platform.processor() or platform.machine()
    return Cpu(model, _usable_cores(), features)


def _first_processor() -> dict[str, str]:
    """What Linux says about its first processor; nothing elsewhere."""
    if not _CPUINFO.is_file():
        return {}
    block = _CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _usable_cores() -> int:
    """Those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus() -> tuple[str, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


class _WorkNeeded(Exception):
    """The model's file is here, not yet converted."""


def _default_model(cache: Path) -> Model:
    def stop(what: str, _done: int, _total: int) -> None:
        raise _WorkNeeded(what)

    try:
        folder = resolve_model(
            _DEFAULT_MODEL, cache_dir=cache, offline=True, float_weights=False, progress=stop
        )
    except _WorkNeeded:
        return Model(_DEFAULT_MODEL, True, "present, converted at its first use", str(cache))
    except ValueError as error:
        return Model(_DEFAULT_MODEL, False, str(error), str(cache))
    return Model(_DEFAULT_MODEL, True, f"{folder.path} ({folder.source})", str(cache))


def _problems(
    components: Mapping[str, str | None],
    libraries: Mapping[str, str | None],
    backends: tuple[Backend, ...],
) -> Iterator[str]:
    missing = [f"phloem-{name}" for name, version in components.items() if version is None]
    missing += [name for name, version in libraries.items() if version is None]
    if missing:
        yield f"{', '.join(missing)} not installed: reinstall phloem"
    if not any(backend.usable for backend in backends):
        yield "no kernel backend is usable: see the reasons above"
