"""Every kernel compiles for GPUs that are not here, and stays within their registers and memory."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed on this platform"
)

SHARED_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "gfx942": 64 << 10}
"""What a program may have at most, by the vendors' manuals."""
THREAD_REGISTERS = {"sm_80": 255, "sm_90": 255, "gfx942": 512}
UNIT_REGISTERS = {"sm_80": 64 << 10, "sm_90": 64 << 10, "gfx942": 128 << 10}
"""32-bit registers that the programs of one multiprocessor or compute unit share."""
WARP = {"sm_80": 32, "sm_90": 32, "gfx942": 64}
KERNELS = {
    "add_rms_norm_kernel",
    "argmax_kernel",
    "bitmask_kernel",
    "decode_kernel",
    "extend_kernel",
    "merge_kernel",
    "rms_norm_kernel",
    "rotary_store_kernel",
    "sample_kernel",
    "silu_mul_kernel",
}


def compile_for(target):
    """All kernels; the table of what they take."""
    module = "phloem.kernels.triton_backend.aot"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.json"
        done = subprocess.run(
            [sys.executable, "-m", module, "--target", target, "--json", str(table)],
            env={**environment, "TRITON_CACHE_DIR": f"{folder}/cache"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(table.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [pytest.param(t, marks=pytest.mark.background(compile_for, t)) for t in SHARED_BYTES],
)
def test_nothing_spills_and_memory_and_registers_suffice(target, background):
    builds = background(compile_for, target)
    assert {build["kernel"] for build in builds} == KERNELS
    for build in builds:
        assert build["target"] == target
        assert build["spilled_bytes"] == 0, build
        assert build["shared_bytes"] <= SHARED_BYTES[target], build
        assert 0 < build["registers"] <= THREAD_REGISTERS[target], build
        program = build["registers"] * build["warps"] * WARP[target]
        assert program <= UNIT_REGISTERS[target], build
        if build["kernel"] == "decode_kernel" and "fp32" not in build["label"]:
            # Latency is hidden by the neighbours: two programs fit at least.
            assert 2 * program <= UNIT_REGISTERS[target], build
            assert 2 * build["shared_bytes"] <= SHARED_BYTES[target], build


def test_the_interpreter_is_not_mistaken_for_a_compiler():
    done = subprocess.run(
        [sys.executable, "-m", "phloem.kernels.triton_backend.aot"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "TRITON_INTERPRET is set: nothing would be compiled" in done.stderr
