"""Ahead-of-time compilation of every kernel for GPUs that need not be there, and what each takes.

`python -m phloem.kernels.triton_backend.aot` prints the table of registers, spills and shared
memory; `--json` writes it, and `--target` chooses among the targets. Numbers are the compilers'
own: `cuobjdump` reads them from NVIDIA's binaries, and the assembly's metadata has them for AMD.
"""

# Triton has no type information.
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from phloem.kernels.triton_backend.launching import FUSION
from phloem.kernels.triton_backend.specimens import Specimen, specimens

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_LIMITS = {"sm_80": 163 << 10, "sm_90": 227 << 10, "gfx942": 64 << 10}
"""Bytes of shared memory that one program may have."""

_FLOATS = ("eps", "scale")
_UNALIGNED = re.compile(r"vocab_size|words|.*_scales_.*")
"""Integers that need not be multiples of 16 in the models compiled for."""


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel compiled for one target."""

    kernel: str
    label: str
    target: str
    warps: int
    registers: int
    """A thread's."""
    spilled_bytes: int
    """A thread's memory on the stack: 0 where all fits in registers."""
    shared_bytes: int
    """A program's."""


def build(specimen: Specimen, target: str) -> Build:
    """Compile for a target of `TARGETS`; the GPU is not needed."""
    kernel = specimen.kernel
    names = [p.name for p in kernel.params]
    constants = {(names.index(name),): value for name, value in specimen.constants.items()}
    signature = {
        p.name: "constexpr" if p.is_constexpr else _type(specimen, p.name) for p in kernel.params
    }
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name].startswith("*")
        or (signature[name] == "i32" and not _UNALIGNED.fullmatch(name))
    }
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, aligned),
        target=TARGETS[target],
        options={**specimen.options, **FUSION},
    )
    registers, spilled = _resources(compiled.asm)
    return Build(
        kernel=kernel.__name__,
        label=specimen.label,
        target=target,
        warps=compiled.metadata.num_warps,
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=compiled.metadata.shared,
    )


def _type(specimen: Specimen, name: str) -> str:
    if name in specimen.pointers:
        return specimen.pointers[name]
    return "fp32" if name in _FLOATS else "i32"


def _resources(asm: Any) -> tuple[int, int]:
    """Registers, and bytes of stack."""
    if "amdgcn" in asm:
        text = asm["amdgcn"]
        return _number(r"\.vgpr_count:\s*(\d+)", text), _number(
            r"\.private_segment_fixed_size:\s*(\d+)", text
        )
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(asm["cubin"])
        text = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(binary)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    return _number(r"REG:(\d+)", text), _number(r"STACK:(\d+)", text)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"the compiler's report has no {pattern!r}: its format has changed")
    return int(found.group(1))


def _rows(builds: Sequence[Build]) -> Iterator[str]:
    yield f"{'kernel':<22}{'for':<36}{'target':<9}{'warps':>6}{'regs':>6}{'spills':>8}{'shared':>8}"
    for b in builds:
        yield (
            f"{b.kernel:<22}{b.label:<36}{b.target:<9}{b.warps:>6}{b.registers:>6}"
            f"{b.spilled_bytes:>8}{b.shared_bytes:>8}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile all, print the table; 1 if a kernel spills or needs more shared memory than there is.

    Raises:
        RuntimeError: in Triton's interpreter, which compiles nothing.
    """
    parser = argparse.ArgumentParser(prog="python -m phloem.kernels.triton_backend.aot")
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: all")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the table to a file, too")
    options = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: nothing would be compiled; unset it")
    builds = [
        build(specimen, target) for target in options.target or TARGETS for specimen in specimens()
    ]
    print(*_rows(builds), sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(b) for b in builds], indent=1) + "\n")
    bad = [b for b in builds if b.spilled_bytes or b.shared_bytes > SHARED_LIMITS[b.target]]
    for b in bad:
        print(f"{b.kernel} for {b.label} on {b.target}: out of bounds", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
