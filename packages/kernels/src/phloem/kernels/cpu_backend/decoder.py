"""A whole step of a model in one native call.

Owns the structs that describe a model to the library, and the workspace. A step that the library
cannot run, because of the form of the KV cache, goes through the same ops one by one.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import (
    AttentionPlan,
    DecoderLayer,
    DecoderSpec,
    GreedyTokens,
    KVCache,
    KVLayer,
    Ops,
)
from phloem.kernels.cpu_backend.attention import CpuAttentionPlan, describe
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.sampling import readable_bits
from phloem.kernels.cpu_backend.structs import KVLayerStruct, Weight
from phloem.kernels.cpu_backend.team import Team
from phloem.kernels.decoder import ComposedDecoder

_POINTER = ctypes.c_void_p
_PANEL = 16
"""Outputs of a panel, see `native/packed.h`."""


class _Layer(ctypes.Structure):
    """`phloem_decoder_layer`"""

    _fields_ = (
        ("input_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("qkv", Weight),
        ("output", Weight),
        ("gate_up", Weight),
        ("down", Weight),
    )


class _Decoder(ctypes.Structure):
    """`phloem_decoder`"""

    _fields_ = (
        ("num_layers", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("layers", ctypes.POINTER(_Layer)),
        ("embedding", Weight),
        ("frequencies", _POINTER),
        ("norm", _POINTER),
        ("head", Weight),
        ("down_block", ctypes.c_int32),
    )


class _Step(ctypes.Structure):
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


def can_fuse(spec: DecoderSpec) -> bool:
    """Whether a step can be one call: gate and up projection must be whole panels of outputs."""
    return bool(spec.layers) and spec.layers[0].down.k % _PANEL == 0


class CpuDecoder:
    """Implements `Decoder`; one call at a time."""

    def __init__(self, ops: Ops, library: Library, team: Team, spec: DecoderSpec) -> None:
        self._spec = spec
        self._team = team
        self._composed = ComposedDecoder(ops, spec)
        self._hidden_size = len(spec.norm)
        self._layers = (_Layer * len(spec.layers))(*map(_layer, spec.layers))
        self._decoder = _decoder(spec, self._layers)
        heads = spec.attention.num_kv_heads, spec.attention.head_dim, spec.attention.value_dim
        self._kv = _KVStructs(len(spec.layers), heads)
        self._memory = torch.empty(0, dtype=torch.uint8)
        decoder = ctypes.POINTER(_Decoder)
        self._workspace_bytes = library.function(
            "phloem_decoder_workspace", decoder, ctypes.c_int, restype=ctypes.c_size_t
        )
        self._forward = library.function(
            "phloem_decoder_forward", _POINTER, decoder, ctypes.POINTER(_Step)
        )
        self._logits = library.function(
            *("phloem_decoder_logits", _POINTER, decoder, _POINTER, ctypes.c_int),
            *(_POINTER, _POINTER),
        )
        self._greedy = library.function(
            *("phloem_decoder_greedy", _POINTER, decoder, _POINTER, ctypes.c_int),
            *(_POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
        )

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        out_slots: Tensor,
        attention: AttentionPlan,
        kv: KVCache,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """See `Decoder.forward`."""
        structs = self._kv.of(kv)
        if structs is None or not isinstance(attention, CpuAttentionPlan):
            return self._composed.forward(input_ids, positions, out_slots, attention, kv, wanted)
        tokens = len(input_ids)
        hidden = torch.empty((tokens, self._hidden_size), dtype=torch.float32)
        step = _Step(
            *(tokens, input_ids.data_ptr(), positions.data_ptr(), out_slots.data_ptr()),
            *(attention.handle, ctypes.addressof(structs), hidden.data_ptr()),
            *(self._workspace(tokens), None if wanted is None else wanted.data_ptr()),
            0 if wanted is None else len(wanted),
        )
        self._forward(self._team.handle, ctypes.byref(self._decoder), ctypes.byref(step))
        return hidden if wanted is None else hidden[: len(wanted)]

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        hidden = hidden.contiguous()
        rows = len(hidden)
        logits = torch.empty((rows, self._decoder.head.n), dtype=torch.float32)
        self._logits(
            *(self._team.handle, ctypes.byref(self._decoder), hidden.data_ptr(), rows),
            *(self._workspace(rows), logits.data_ptr()),
        )
        return logits

    def greedy(self, hidden: Tensor, bits: npt.NDArray[np.int32] | None = None) -> GreedyTokens:
        """See `Decoder.greedy`."""
        hidden = hidden.contiguous()
        rows = len(hidden)
        if bits is not None:
            bits = readable_bits(bits, rows, self._decoder.head.n)
        found = GreedyTokens(
            torch.empty(rows, dtype=torch.int64),
            torch.empty(rows, dtype=torch.bool),
            torch.empty(rows, dtype=torch.bool),
        )
        self._greedy(
            *(self._team.handle, ctypes.byref(self._decoder), hidden.data_ptr(), rows),
            *(None if bits is None else bits.ctypes.data, self._workspace(rows)),
            *(found.ids.data_ptr(), found.finite.data_ptr(), found.allowed.data_ptr()),
        )
        return found

    def _workspace(self, tokens: int) -> int:
        """The address of enough memory for a step; it grows to what the largest step needed."""
        needed = self._workspace_bytes(ctypes.byref(self._decoder), tokens)
        if self._memory.numel() < needed:
            self._memory = torch.empty(needed, dtype=torch.uint8)
        return self._memory.data_ptr()


class _KVStructs:
    """The structs of a KV cache's layers, made anew for layers not seen in the step before."""

    def __init__(self, num_layers: int, heads: tuple[int, int, int]) -> None:
        self._heads = heads
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


def _layer(layer: DecoderLayer) -> _Layer:
    return _Layer(
        *(layer.input_norm.data_ptr(), layer.mlp_norm.data_ptr(), layer.qkv.struct),
        *(layer.output.struct, layer.gate_up.struct, layer.down.struct),
    )


def _decoder(spec: DecoderSpec, layers: ctypes.Array[_Layer]) -> _Decoder:
    attention = spec.attention
    return _Decoder(
        *(len(layers), len(spec.norm), attention.num_heads, attention.num_kv_heads),
        *(attention.head_dim, layers[0].down.k, spec.rms_norm_eps, layers),
        *(spec.embedding.struct, spec.frequencies.data_ptr(), spec.norm.data_ptr()),
        *(spec.head.struct, spec.down_block),
    )
