"""With which kernels, in which form, a model computes: what `auto` means on this machine.

Owns the choice among what the components offer. Needs torch.
"""

from __future__ import annotations

import warnings

import torch

from phloem.kernels import Ops, available_backends, get_ops
from phloem.mem_pool.kv import DTYPES
from phloem.model_runner.quantization import Quantization
from phloem.server.config import ServerArgs


def make_ops(args: ServerArgs, device: str) -> Ops:
    """The kernels that were asked for.

    `auto` on a CPU are the native ones in float32, where they can run, else the torch reference; on
    a GPU Triton's.

    Raises:
        ValueError: if they cannot run on this machine, or not on this device.
    """
    name = args.kernel_backend
    if name == "auto":
        name = _automatic(args, device)
    if name == "cpu" and device != "cpu":
        raise ValueError(
            f"kernel_backend 'cpu' computes on a CPU, not on device {device!r}: use device cpu, or "
            "kernel_backend triton"
        )
    try:
        return get_ops(name)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def weights_dtype(args: ServerArgs, device: str) -> str:
    """The dtype to load a model in: float32, bfloat16, or auto for the checkpoint's."""
    return "float32" if args.dtype == "auto" and device == "cpu" else args.dtype


def kv_cache_dtype(
    args: ServerArgs, model_dtype: torch.dtype, quantization: Quantization
) -> torch.dtype:
    """The dtype of the KV cache.

    `auto` is int8 beside quantized weights, which cost more of a model's quality than it does, and
    a quarter of the memory and less time to read; else the dtype of the activations, with which
    nothing is lost.
    """
    automatic = model_dtype if quantization == "none" else DTYPES["int8"]
    return DTYPES.get(args.kv_cache_dtype, automatic)


def dtype_name(dtype: torch.dtype) -> str:
    """As options call it."""
    names = {each: name for name, each in DTYPES.items()}
    return names.get(dtype, str(dtype).removeprefix("torch."))


def _automatic(args: ServerArgs, device: str) -> str:
    if device == "cpu":
        # The native kernels compute in float32 only; the registry warns where they cannot run.
        return "torch" if args.dtype == "bfloat16" else "auto"
    triton = next(backend for backend in available_backends() if backend.name == "triton")
    if triton.usable:
        return triton.name
    warnings.warn(
        f"computing with torch, which is slower than Triton's kernels: {triton.reason}",
        RuntimeWarning,
        stacklevel=3,
    )
    return "torch"
