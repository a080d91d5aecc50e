"""FlashInfer's attention and sampling filters behind the op table, on top of the Triton backend.

Nothing here imports flashinfer or triton until it is asked for. What FlashInfer does not cover, by
operation or by dtype, is Triton's.
"""

from __future__ import annotations

import importlib
import importlib.util

import torch

from phloem.kernels import triton_backend
from phloem.kernels.base import Ops

_OLDEST = (8, 0)
"""The compute capability from which its kernels run."""


def probe() -> tuple[bool, str]:
    """Whether the backend can run on this machine, and why not, or on what."""
    if importlib.util.find_spec("flashinfer") is None:
        return False, "flashinfer is not installed: pip install 'phloem-kernels[flashinfer]'"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return False, f"flashinfer is installed, but torch {torch.__version__} sees no NVIDIA GPU"
    capability = torch.cuda.get_device_capability()
    if capability < _OLDEST:
        found, wanted = (".".join(map(str, c)) for c in (capability, _OLDEST))
        return False, f"the GPU has compute capability {found}: flashinfer needs {wanted} or newer"
    usable, reason = triton_backend.probe()
    if not usable:
        return False, f"it needs the triton backend, and {reason}"
    try:
        library = importlib.import_module("flashinfer")
    except (ImportError, OSError, RuntimeError) as error:
        return False, f"flashinfer is installed and cannot be imported: {error}"
    return True, f"flashinfer {library.__version__} and {reason}"


def make_ops() -> Ops:
    """The op table; `probe` must have said that it can run."""
    from phloem.kernels.flashinfer_backend.ops import FlashInferOps

    return FlashInferOps(importlib.import_module("flashinfer"))
