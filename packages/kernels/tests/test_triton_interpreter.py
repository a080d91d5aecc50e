"""Runs `triton_interpreter/`: kernels against the reference where there is no GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "triton_interpreter"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed on this platform"
)


@pytest.mark.slow
def test_the_kernels_match_the_reference_in_tritons_interpreter():
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(FOLDER)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
