"""What native code takes for a whole step: the structs of `native/decoder.cpp`, and their making.

A struct points into the tensors that it was made of; whoever holds it keeps those.
"""

from __future__ import annotations

import ctypes

from phloem.kernels.base import DecoderLayer, DecoderSpec, KVCache, KVLayer
from phloem.kernels.cpu_backend.attention import describe
from phloem.kernels.cpu_backend.structs import KVLayerStruct, Weight

_POINTER = ctypes.c_void_p


class LayerStruct(ctypes.Structure):
    """`phloem_decoder_layer`"""

    _fields_ = (
        ("input_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("qkv", Weight),
        ("output", Weight),
        ("gate_up", Weight),
        ("down", Weight),
    )


class DecoderStruct(ctypes.Structure):
    """`phloem_decoder`"""

    _fields_ = (
        ("num_layers", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("layers", ctypes.POINTER(LayerStruct)),
        ("embedding", Weight),
        ("frequencies", _POINTER),
        ("norm", _POINTER),
        ("head", Weight),
        ("down_block", ctypes.c_int32),
    )


class StepStruct(ctypes.Structure):
    """`phloem_step`"""

    _fields_ = (
        ("tokens", ctypes.c_int32),
        ("ids", _POINTER),
        ("positions", _POINTER),
        ("slots", _POINTER),
        ("plan", _POINTER),
        ("kv", _POINTER),
        ("hidden", _POINTER),
        ("workspace", _POINTER),
        ("wanted", _POINTER),
        ("num_wanted", ctypes.c_int32),
    )


class GreedyStepStruct(ctypes.Structure):
    """`phloem_greedy`"""

    _fields_ = (
        ("row_table", _POINTER),
        ("row_stride", ctypes.c_int64),
        ("table_rows", ctypes.c_int32),
        ("table_width", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("num_rows", ctypes.c_int32),
        ("num_tokens", ctypes.c_int32),
        ("rows", _POINTER),
        ("query_lens", _POINTER),
        ("seq_lens", _POINTER),
        ("given_ids", _POINTER),
        ("given_slots", _POINTER),
        ("ids", _POINTER),
        ("positions", _POINTER),
        ("slots", _POINTER),
        ("wanted", _POINTER),
        ("plan", _POINTER),
        ("kv", _POINTER),
        ("hidden", _POINTER),
        ("workspace", _POINTER),
        ("found", _POINTER),
        ("finite", _POINTER),
        ("allowed", _POINTER),
        ("tokens", _POINTER),
        ("newest", _POINTER),
    )


class KVStructs:
    """The structs of a KV cache's layers, made anew for layers not seen in the step before."""

    def __init__(self, spec: DecoderSpec) -> None:
        attention, num_layers = spec.attention, len(spec.layers)
        self._heads = attention.num_kv_heads, attention.head_dim, attention.value_dim
        self._seen: list[KVLayer | None] = [None] * num_layers
        self._structs = (KVLayerStruct * num_layers)()

    def of(self, kv: KVCache) -> ctypes.Array[KVLayerStruct] | None:
        """All layers, each asked for once; None: the library cannot read them."""
        for i, seen in enumerate(self._seen):
            layer = kv.layer(i)
            if layer is seen:
                continue
            struct = describe(layer, self._heads)
            if struct is None:
                return None
            self._structs[i] = struct
            self._seen[i] = layer
        return self._structs


def layer_struct(layer: DecoderLayer) -> LayerStruct:
    """Of a layer that this backend prepared."""
    return LayerStruct(
        *(layer.input_norm.data_ptr(), layer.mlp_norm.data_ptr(), layer.qkv.struct),
        *(layer.output.struct, layer.gate_up.struct, layer.down.struct),
    )


def decoder_struct(spec: DecoderSpec, layers: ctypes.Array[LayerStruct]) -> DecoderStruct:
    """Of a model that this backend prepared, with its layers."""
    attention = spec.attention
    return DecoderStruct(
        *(len(layers), len(spec.norm), attention.num_heads, attention.num_kv_heads),
        *(attention.head_dim, layers[0].down.k, spec.rms_norm_eps, layers),
        *(spec.embedding.struct, spec.frequencies.data_ptr(), spec.norm.data_ptr()),
        *(spec.head.struct, spec.down_block),
    )
