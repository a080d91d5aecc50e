"""Tensor operations for LLM inference behind one table, with a torch reference for each.

`get_ops` makes an op table (`Ops`); `base` states what each op computes.
"""

from phloem.kernels.base import (
    AttentionPlan,
    AttentionSpec,
    BlockWeight,
    Decoder,
    DecoderLayer,
    DecoderSpec,
    GreedyTokens,
    InputBits,
    KVCache,
    KVLayer,
    LinearForm,
    NormResult,
    Ops,
    Penalties,
    PreparedEmbedding,
    PreparedLinear,
    RoundedForm,
    SamplingParameters,
    TokenLogprobs,
)
from phloem.kernels.greedy_steps import GreedySteps
from phloem.kernels.kv_tensors import KVTensors
from phloem.kernels.registry import BackendStatus, automatic_backend, available_backends, get_ops
from phloem.kernels.rotary import RopeConfig, cos_sin, inverse_frequencies

__all__ = [
    "AttentionPlan",
    "AttentionSpec",
    "BackendStatus",
    "BlockWeight",
    "Decoder",
    "DecoderLayer",
    "DecoderSpec",
    "GreedySteps",
    "GreedyTokens",
    "InputBits",
    "KVCache",
    "KVLayer",
    "KVTensors",
    "LinearForm",
    "NormResult",
    "Ops",
    "Penalties",
    "PreparedEmbedding",
    "PreparedLinear",
    "RopeConfig",
    "RoundedForm",
    "SamplingParameters",
    "TokenLogprobs",
    "automatic_backend",
    "available_backends",
    "cos_sin",
    "get_ops",
    "inverse_frequencies",
]
