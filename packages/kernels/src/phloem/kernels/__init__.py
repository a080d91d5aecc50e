"""Tensor operations for LLM inference behind one table, with a torch reference for each.

`get_ops` makes an op table (`Ops`); `base` states what each op computes.
"""

from phloem.kernels.base import (
    AttentionPlan,
    AttentionSpec,
    KVLayer,
    NormResult,
    Ops,
    Penalties,
    PreparedLinear,
    SamplingParameters,
    TokenLogprobs,
)
from phloem.kernels.kv_tensors import KVTensors
from phloem.kernels.registry import BackendStatus, available_backends, get_ops
from phloem.kernels.rotary import RopeConfig, cos_sin, inverse_frequencies

__all__ = [
    "AttentionPlan",
    "AttentionSpec",
    "BackendStatus",
    "KVLayer",
    "KVTensors",
    "NormResult",
    "Ops",
    "Penalties",
    "PreparedLinear",
    "RopeConfig",
    "SamplingParameters",
    "TokenLogprobs",
    "available_backends",
    "cos_sin",
    "get_ops",
    "inverse_frequencies",
]
