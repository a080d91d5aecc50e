"""Which instruction sets this machine's processor has, as the native library is compiled for them.

Owns the looking at the processor. What a compiler makes of an instruction set is `build`'s.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

InstructionSet: TypeAlias = Literal["avx512vnni", "avx2", "portable"]
"""What a library is compiled for; `portable` runs on every processor of the platform."""

INSTRUCTION_SETS: tuple[InstructionSet, ...] = get_args(InstructionSet)
"""Best first."""

_NEEDS: dict[InstructionSet, frozenset[str]] = {
    "avx512vnni": frozenset(
        {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx2", "fma", "f16c"}
    ),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
    "portable": frozenset(),
}
"""Features by Linux's names for them."""

_CPUINFO = Path("/proc/cpuinfo")


def usable_instruction_sets() -> tuple[InstructionSet, ...]:
    """Those that this processor has, best first; `portable` is always the last."""
    features = processor_features()
    return tuple(name for name in INSTRUCTION_SETS if _NEEDS[name] <= features)


@functools.cache
def processor_features() -> frozenset[str]:
    """The processor's features by Linux's names; empty where they are not known or not x86."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return frozenset()
    if sys.platform == "darwin":
        return frozenset(_features_of_macos())
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    return features_in_cpuinfo(text)


def features_in_cpuinfo(text: str) -> frozenset[str]:
    """What all processors of a Linux `/proc/cpuinfo` have in common."""
    lines = [line.partition(":")[2] for line in text.splitlines() if line.startswith("flags")]
    return (
        frozenset.intersection(*(frozenset(line.split()) for line in lines))
        if lines
        else (frozenset())
    )


@functools.cache
def processor_model() -> str:
    """What tells this processor from others for which a compiler would tune differently."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    told = ("vendor_id", "cpu family", "model", "model name")
    return ";".join(
        line.partition(":")[2].strip()
        for line in lines[: lines.index("") if "" in lines else None]
        if line.partition(":")[0].strip() in told
    )


def usable_cores() -> int:
    """The processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _features_of_macos() -> Iterator[str]:
    names = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
    done = subprocess.run(
        ["sysctl", "-n", *names], capture_output=True, text=True, check=False, timeout=10
    )
    for name in done.stdout.lower().split():
        yield {"avx512vnni": "avx512_vnni"}.get(name, name)
