"""The op table in Triton, for NVIDIA and AMD GPUs; whether it can run here, and how to make it.

Nothing here imports triton until it is asked for. Matrix products, penalties and logprobs are
torch's: for products the vendor's library is the well-kept one, the others are a few elements.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform

import torch

from phloem.kernels.base import Ops


def probe() -> tuple[bool, str]:
    """Whether the backend can run on this machine, and why not, or on what."""
    if importlib.util.find_spec("triton") is None:
        if platform.system() != "Linux":
            return False, f"triton has no packages for {platform.system()}"
        return False, "triton is not installed: pip install 'phloem-kernels[triton]'"
    try:
        triton = importlib.import_module("triton")
    except (ImportError, OSError, RuntimeError) as error:
        return False, f"triton is installed and cannot be imported: {error}"
    version = f"triton {triton.__version__}"
    if triton.knobs.runtime.interpret:
        return True, f"{version} in its interpreter (TRITON_INTERPRET is set), which is for tests"
    if not torch.cuda.is_available():
        return False, f"{version} is installed, but torch {torch.__version__} sees no GPU"
    return True, f"{version} on {torch.cuda.get_device_name()}"


def make_ops() -> Ops:
    """The op table; `probe` must have said that it can run."""
    from phloem.kernels.triton_backend.ops import TritonOps

    return TritonOps()
