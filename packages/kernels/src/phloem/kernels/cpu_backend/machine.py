"""Which of the instruction sets that the native library is made for this processor has.

Owns the looking at the processor. What a compiler makes of an instruction set is `build`'s.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias, get_args

InstructionSet: TypeAlias = Literal["avx512vnni", "avx2", "portable"]
"""What a library is compiled for; `portable` runs on every processor of the platform."""

INSTRUCTION_SETS: tuple[InstructionSet, ...] = get_args(InstructionSet)
"""Best first."""

_NEEDS: Mapping[InstructionSet, frozenset[str]] = {
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
    return instruction_sets_with(processor_features())


def instruction_sets_with(features: frozenset[str]) -> tuple[InstructionSet, ...]:
    """Those that a processor with these features has, best first."""
    return tuple(name for name in INSTRUCTION_SETS if _NEEDS[name] <= features)


def platform_instruction_sets() -> tuple[InstructionSet, ...]:
    """Those that some processor of this platform has, best first."""
    return INSTRUCTION_SETS if _is_x86() else ("portable",)


@functools.cache
def processor_features() -> frozenset[str]:
    """The processor's features by Linux's names; empty where they are not known or not x86."""
    if not _is_x86():
        return frozenset()
    if sys.platform == "darwin":
        return frozenset(_features_of_macos())
    return features_in_cpuinfo(_cpuinfo())


def features_in_cpuinfo(text: str) -> frozenset[str]:
    """What all processors of a Linux `/proc/cpuinfo` have in common."""
    lines = (line.partition(":") for line in text.splitlines())
    flags = [frozenset(value.split()) for name, _, value in lines if name.strip() == "flags"]
    return frozenset.intersection(*flags) if flags else frozenset()


@functools.cache
def processor_model() -> str:
    """Tells processors apart for which a compiler would tune differently."""
    first = _cpuinfo().partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    told = {"vendor_id", "cpu family", "model", "model name"}
    facts = [value.strip() for name, _, value in pairs if name.strip() in told]
    return ", ".join(facts) or platform.processor()


def usable_cores() -> int:
    """The processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_x86() -> bool:
    return platform.machine().lower() in {"x86_64", "amd64"}


def _cpuinfo() -> str:
    try:
        return _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _features_of_macos() -> Iterator[str]:
    names = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
    done = subprocess.run(["sysctl", "-n", *names], capture_output=True, text=True, check=False)
    for name in done.stdout.lower().split():
        yield "avx512_vnni" if name == "avx512vnni" else name
