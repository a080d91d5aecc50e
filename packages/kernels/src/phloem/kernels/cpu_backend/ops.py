"""The op table of the `cpu` backend: native code on one team of threads.

Owns which part of the library serves which op, and the refusal of what it cannot compute.
Activations are float32, weights float32 or blocks. The bits of a row depend neither on other rows
nor on the number of threads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import (
    AttentionPlan,
    AttentionSpec,
    BlockWeight,
    Decoder,
    DecoderSpec,
    InputBits,
    KVLayer,
    LinearForm,
    NormResult,
    Penalties,
    RoundedForm,
    SamplingParameters,
    TokenLogprobs,
)
from phloem.kernels.cpu_backend.attention import AttentionPlanner
from phloem.kernels.cpu_backend.decoder import CpuDecoder, can_fuse
from phloem.kernels.cpu_backend.elementwise import Elementwise
from phloem.kernels.cpu_backend.library import load_library
from phloem.kernels.cpu_backend.linear import CpuLinear, Linears
from phloem.kernels.cpu_backend.machine import InstructionSet, usable_cores
from phloem.kernels.cpu_backend.sampling import Sampling
from phloem.kernels.cpu_backend.team import Team
from phloem.kernels.decoder import ComposedDecoder


class CpuOps:
    """Implements `Ops`.

    Args:
        threads: how many compute, the caller's included; None: one for each core that this process
            may use.
        isa: the instruction set; None: the best that the processor has.

    Raises:
        BuildError: if the library has to be compiled and cannot.
    """

    name = "cpu"

    def __init__(self, threads: int | None = None, isa: InstructionSet | None = None) -> None:
        self._library = library = load_library(isa)
        self._team = Team(library, usable_cores() if threads is None else threads)
        self._linears = Linears(library, self._team)
        self._elementwise = Elementwise(library, self._team)
        self._planner = AttentionPlanner(library, self._team)
        self._sampling = Sampling(library, self._team)

    @property
    def isa(self) -> str:
        """The instruction set that it computes with."""
        return self._library.isa

    @property
    def fastest_rounded(self) -> RoundedForm:
        """See `Ops.fastest_rounded`: where products of bytes are one instruction, bytes."""
        return "int8" if self.isa == "avx512vnni" else "blocks"

    @property
    def threads(self) -> int:
        """How many threads compute."""
        return self._team.threads

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Ops.rms_norm`."""
        return self._elementwise.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> NormResult:
        """See `Ops.add_rms_norm`."""
        return self._elementwise.add_rms_norm(x, residual, weight, eps)

    def rotary_store_kv(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, kv: KVLayer, slots: Tensor
    ) -> None:
        """See `Ops.rotary_store_kv`."""
        self._elementwise.rotary_store_kv(q, k, v, cos_sin, kv, slots)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Ops.silu_mul`."""
        return self._elementwise.silu_mul(gate_up)

    def hadamard(self, x: Tensor, block: int) -> Tensor:
        """See `Ops.hadamard`."""
        return self._elementwise.hadamard(x, block)

    def prepare_linear(
        self,
        weight: Tensor | BlockWeight,
        bias: Tensor | None = None,
        form: LinearForm = "float",
        input_bits: InputBits = 8,
    ) -> CpuLinear:
        """See `Ops.prepare_linear`."""
        return self._linears.prepare(weight, bias, form, input_bits=input_bits)

    def linear(self, x: Tensor, prepared: CpuLinear) -> Tensor:
        """See `Ops.linear`."""
        return self._linears.run(x, prepared)

    def prepare_embedding(
        self, weight: Tensor | BlockWeight, form: LinearForm = "float"
    ) -> CpuLinear:
        """See `Ops.prepare_embedding`; the table is packed as a linear's weight is."""
        return self._linears.prepare(weight, None, form)

    def tied_head(self, embedding: CpuLinear, input_bits: InputBits = 8) -> CpuLinear:
        """See `Ops.tied_head`."""
        return embedding.with_input_bits(input_bits)

    def embed(self, ids: Tensor, embedding: CpuLinear) -> Tensor:
        """See `Ops.embed`."""
        return self._linears.embed(ids, embedding)

    def decoder(self, spec: DecoderSpec) -> Decoder:
        """See `Ops.decoder`; a step is one native call, for widths that its linears can fuse.

        Raises:
            ValueError: if the model is not in float32.
        """
        if spec.attention.dtype != torch.float32:
            raise ValueError(
                f"the model's dtype is {spec.attention.dtype}, but the cpu backend computes in "
                "float32: load it in float32, or use the torch backend"
            )
        if can_fuse(spec):
            return CpuDecoder(self, self._library, self._team, self._planner, spec)
        return ComposedDecoder(self, spec)

    def plan_attention(
        self,
        row_table: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        query_lens: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        spec: AttentionSpec,
    ) -> AttentionPlan:
        """See `Ops.plan_attention`."""
        return self._planner.plan(row_table, rows, query_lens, seq_lens, spec)

    def apply_token_bitmask(
        self, logits: Tensor, rows: npt.NDArray[np.int64], bits: npt.NDArray[np.int32]
    ) -> None:
        """See `Ops.apply_token_bitmask`."""
        self._sampling.apply_token_bitmask(logits, rows, bits)

    def apply_penalties(self, logits: Tensor, penalties: Penalties) -> None:
        """See `Ops.apply_penalties`."""
        self._sampling.apply_penalties(logits, penalties)

    def greedy(self, logits: Tensor) -> Tensor:
        """See `Ops.greedy`."""
        return self._sampling.greedy(logits)

    def sample(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        """See `Ops.sample`."""
        return self._sampling.sample(logits, parameters)

    def token_logprobs(self, logits: Tensor, ids: Tensor, top: int) -> TokenLogprobs:
        """See `Ops.token_logprobs`."""
        return self._sampling.token_logprobs(logits, ids, top)
