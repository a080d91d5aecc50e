"""A whole step of a model in one native call.

Owns what describes the model to the library, and the workspace. A step that the library cannot run,
because of the form of the KV cache, goes through the same ops one by one.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import (
    AttentionPlan,
    DecoderSpec,
    GreedyTokens,
    KVCache,
    Ops,
)
from phloem.kernels.cpu_backend.attention import AttentionPlanner, CpuAttentionPlan
from phloem.kernels.cpu_backend.greedy_steps import CpuGreedySteps
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.sampling import readable_bits
from phloem.kernels.cpu_backend.step_structs import (
    DecoderStruct,
    KVStructs,
    LayerStruct,
    StepStruct,
    decoder_struct,
    layer_struct,
)
from phloem.kernels.cpu_backend.team import Team
from phloem.kernels.decoder import ComposedDecoder
from phloem.kernels.greedy_steps import GreedySteps

_POINTER = ctypes.c_void_p
_PANEL = 16
"""Outputs of a panel, see `native/packed.h`."""


def can_fuse(spec: DecoderSpec) -> bool:
    """Whether a step can be one call: gate and up projection must be whole panels of outputs."""
    return bool(spec.layers) and spec.layers[0].down.k % _PANEL == 0


class CpuDecoder:
    """Implements `Decoder`; one call at a time."""

    def __init__(
        self,
        ops: Ops,
        library: Library,
        team: Team,
        planner: AttentionPlanner,
        spec: DecoderSpec,
    ) -> None:
        self._spec = spec
        self._library = library
        self._team = team
        self._planner = planner
        self._composed = ComposedDecoder(ops, spec)
        self._hidden_size = len(spec.norm)
        self._layers = (LayerStruct * len(spec.layers))(*map(layer_struct, spec.layers))
        self._decoder = decoder_struct(spec, self._layers)
        self._kv = KVStructs(spec)
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._workspace_address, self._most_tokens = 0, 0
        decoder = ctypes.POINTER(DecoderStruct)
        self._workspace_bytes = library.function(
            "phloem_decoder_workspace", decoder, ctypes.c_int, restype=ctypes.c_size_t
        )
        self._forward = library.function(
            "phloem_decoder_forward", _POINTER, decoder, ctypes.POINTER(StepStruct)
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
        step = StepStruct(
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

    def greedy_steps(self, newest: npt.NDArray[np.int64] | None = None) -> GreedySteps:
        """See `Decoder.greedy_steps`."""
        return CpuGreedySteps(
            self._library,
            self._team,
            self._planner.new_plan(),
            self._spec,
            self._decoder,
            self._workspace,
            newest,
        )

    def _workspace(self, tokens: int) -> int:
        """The address of enough memory for a step; it grows to what the largest step needed."""
        if tokens > self._most_tokens:
            needed = self._workspace_bytes(ctypes.byref(self._decoder), tokens)
            self._memory = torch.empty(needed, dtype=torch.uint8)
            self._workspace_address, self._most_tokens = self._memory.data_ptr(), tokens
        return self._workspace_address
