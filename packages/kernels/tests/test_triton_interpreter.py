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


BY_INSTALLED = "installed"
"""In the names of tests of the FlashInfer adapter by the signatures of the installed package."""


def run(*options):
    options = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", *options)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


ALL = (run, "-k", f"not {BY_INSTALLED}", str(FOLDER))


@pytest.mark.slow
@pytest.mark.background(*ALL)
def test_the_kernels_match_the_reference_in_tritons_interpreter(background):
    assert " passed" in background(*ALL)


@pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None,
    reason="flashinfer, which takes 850 MB, is not installed: the adapter's calls are not checked "
    "against its signatures. To check them: pip install --no-deps flashinfer-python "
    "apache-tvm-ffi einops nvidia-ml-py tabulate",
)
def test_the_flashinfer_adapter_calls_what_the_installed_package_has():
    told = run("-k", BY_INSTALLED, str(FOLDER / "test_flashinfer_adapter.py"))
    assert "skipped" not in told
