"""The contract of a kernel backend: one table of tensor operations, and the plain data they take.

Owns names, shapes and meaning. It does not compute: backends do, and each is tested against the
torch reference. Throughout, T counts the tokens of a step, B its rows, H query heads, G key/value
heads, D the head dimension, S the slots of a KV pool and V the vocabulary. Host data is numpy,
device data torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PreparedLinear = Any
"""A backend's own form of a weight matrix and its bias: packed, quantized, or as it was."""


class NormResult(NamedTuple):
    """What `add_rms_norm` gives back."""

    normed: Tensor
    """[T, hidden] the normalised sum."""
    residual: Tensor
    """[T, hidden] the sum itself, for the next addition."""


class TokenLogprobs(NamedTuple):
    """Log-probabilities at n positions."""

    chosen: Tensor
    """[n] float32, of the token that was asked for."""
    top_ids: Tensor
    """[n, top] int64, likeliest first."""
    top_logprobs: Tensor
    """[n, top] float32"""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What an attention plan must know of the model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """Of queries and output, whatever the cache is kept in."""
    device: torch.device
    v_head_dim: int | None = None
    """Elements of a value head; None: `head_dim`."""
    softmax_scale: float | None = None
    """The factor on query-key products; None: `head_dim ** -0.5`."""

    def __post_init__(self) -> None:
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads: "
                "the first must be a multiple of the second"
            )

    @property
    def scale(self) -> float:
        """The factor on query-key products."""
        return self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale

    @property
    def value_dim(self) -> int:
        """Elements of a value head, and of an output head."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties as flat entries, one for each (row, token) that was seen; no pair occurs twice."""

    rows: npt.NDArray[np.int64]
    """[m] rows of the logits."""
    ids: npt.NDArray[np.int64]
    """[m] token ids."""
    output_counts: npt.NDArray[np.float32]
    """[m] how often the token stands in the row's output; 0: only in its prompt."""
    repetition: npt.NDArray[np.float32]
    frequency: npt.NDArray[np.float32]
    presence: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How n rows are sampled. On the host: choosing a code path then costs no synchronisation."""

    temperature: npt.NDArray[np.float32]
    """[n] above 0."""
    top_k: npt.NDArray[np.int32]
    """[n] below 1: all."""
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    uniforms: npt.NDArray[np.float64]
    """[n] in [0, 1): the row's random number."""


class KVLayer(Protocol):
    """One layer's K and V by slot, in whatever form; those of `phloem.mem_pool.kv` fit.

    What is stored may be rounded, in a form with fewer bits; then all see what was rounded, also
    the step that stored it.
    """

    def store(self, slots: Tensor, k: Tensor, v: Tensor, /) -> None:
        """Keep `k` and `v`, `[n, G, D]`, at `slots`, `[n]` int64 without repeats."""
        ...

    def gather(self, slots: Tensor, dtype: torch.dtype, /) -> tuple[Tensor, Tensor]:
        """Keys `[n, G, D]` and values `[n, G, D_v]` of `slots`, `[n]` int64, in a float dtype."""
        ...


class AttentionPlan(Protocol):
    """Attention of one step, planned once and run for every layer."""

    def run(self, q: Tensor, kv: KVLayer) -> Tensor:
        """Attend with `q` `[T, H, D]` to one layer; returns `[T, H, D_v]` in the dtype of `q`.

        The step's own K and V must be stored already. A row's result depends on its own slots only,
        up to the rounding of float sums.
        """
        ...


class Ops(Protocol):
    """The op table. Stateless; activations are float32 or bfloat16 of one device."""

    @property
    def name(self) -> str:
        """The backend's name in the registry."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`x / sqrt(mean(x^2) + eps) * weight` over the last axis (arXiv 1910.07467).

        `x` is `[T, hidden]`, `weight` `[hidden]`; the mean is taken in float32.
        """
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> NormResult:
        """Add `x` to `residual`, both `[T, hidden]`, and normalise the sum; the inputs stay."""
        ...

    def rotary_store_kv(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        kv: KVLayer,
        slots: Tensor,
    ) -> None:
        """Rotate `q` `[T, H, D]` and `k` `[T, G, D]` in place, then store k and v at `slots`.

        Rotary embedding in the half-split form: element i pairs with i + D/2 (arXiv 2104.09864, as
        Hugging Face checkpoints have it). `cos_sin` is `[T, D]` float32 from `rotary.cos_sin`; `v`
        is `[T, G, D]`; `slots` is `[T]` int64, without repeats.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up` for `gate_up` `[T, 2F]`, the gate being the first half: `[T, F]`."""
        ...

    def prepare_linear(self, weight: Tensor, bias: Tensor | None = None) -> PreparedLinear:
        """Bring `weight` `[out, in]` and `bias` `[out]` into the form that `linear` takes.

        The result may or may not share memory with `weight`: drop the original, and change neither.
        """
        ...

    def linear(self, x: Tensor, prepared: PreparedLinear) -> Tensor:
        """`x @ weight.T + bias` for `x` `[T, in]`; returns `[T, out]` in the dtype of `x`."""
        ...

    def plan_attention(
        self,
        row_table: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        query_lens: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        spec: AttentionSpec,
    ) -> AttentionPlan:
        """Plan causal attention of B rows.

        Row i owns the next `query_lens[i]` of the T tokens, at positions `[seq_lens[i] -
        query_lens[i], seq_lens[i])`; position p reads the slots `row_table[rows[i], :p + 1]`. The
        row table `[max_rows, max_len]` is read here and not later. Slot 0 must be reserved and
        finite in every layer: it pads.
        """
        ...

    def apply_token_bitmask(
        self, logits: Tensor, rows: npt.NDArray[np.int64], bits: npt.NDArray[np.int32]
    ) -> None:
        """Set the logits `[n, V]` of tokens without their bit to -inf, in place.

        `bits[j]`, `[ceil(V / 32)]`, belongs to row `rows[j]`: token t stays where bit `t % 32` of
        word `t // 32` is set.

        Raises:
            ValueError: if the masks have another number of words.
        """
        ...

    def apply_penalties(self, logits: Tensor, penalties: Penalties) -> None:
        """Penalise seen tokens in float32 logits `[n, V]`, in place.

        First repetition (arXiv 1909.05858): positive logits are divided by it, others multiplied.
        Then `output_count * frequency`, and `presence` where the count is not 0, are subtracted.
        """
        ...

    def greedy(self, logits: Tensor) -> Tensor:
        """The id of the largest logit in each row of `[n, V]`, on ties the lowest: `[n]` int64."""
        ...

    def sample(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        """Draw one token for each row of float32 logits `[n, V]`; returns `[n]` int64.

        In this order, each on the distribution renormalised after the step before: temperature;
        top_k keeps the k likeliest; top_p keeps the fewest likeliest tokens whose mass reaches p
        (arXiv 1904.09751); min_p keeps tokens at least min_p times as likely as the likeliest
        (arXiv 2407.01082). Of equally likely tokens the lower ids are kept. The token is the first,
        by id, whose cumulative probability exceeds the row's uniform number. Every row needs a
        finite maximum; its token is a function of its own logits and parameters.
        """
        ...

    def token_logprobs(self, logits: Tensor, ids: Tensor, top: int) -> TokenLogprobs:
        """Log-softmax of float32 logits `[n, V]`: at `ids` `[n]` int64, and its `top` largest."""
        ...
