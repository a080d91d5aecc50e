"""The contract of a kernel backend: one table of tensor operations, and the plain data they take.

Owns names, shapes and meaning. It does not compute: backends do, and each is tested against the
torch reference. Throughout, T counts the tokens of a step, B its rows, H query heads, G key/value
heads, D the head dimension, S the slots of a KV pool and V the vocabulary. Host data is numpy,
device data torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from phloem.kernels.greedy_steps import GreedySteps

PreparedLinear = Any
"""A backend's own form of a weight matrix and its bias: packed, quantized, or as it was."""


PreparedEmbedding = Any
"""A backend's own form of the table of token embeddings."""

LinearForm: TypeAlias = Literal["float", "int8", "int4"]
"""How a float weight is kept: as it is, int8 with one scale an output, or GGUF's Q4_1 blocks."""

RoundedForm: TypeAlias = Literal["int8", "blocks"]
"""How weights that were rounded before are kept: in the form `int8`, or in the blocks of a file."""

InputBits: TypeAlias = Literal[8, 16]
"""Of the integer that stands for an input where a weight is in blocks."""


def check_input_bits(bits: int) -> None:
    """Refuse what is none of `InputBits`: native code reserves memory by it.

    Raises:
        ValueError: naming what there is.
    """
    if bits not in get_args(InputBits):
        raise ValueError(f"inputs of {bits} bits are not computed with: input_bits is 8 or 16")


BlockFormat: TypeAlias = Literal["q4_0", "q4_1", "q8_0"]
"""GGUF's block formats that are computed in as they are."""

BLOCK_BYTES: Mapping[str, int] = {"q4_0": 18, "q4_1": 20, "q8_0": 34}
"""Bytes of a block of `BLOCK_SIZE` inputs."""
BLOCK_SIZE = 32


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeight:
    """A weight `[out, in]` in quantized blocks, byte for byte as a GGUF file keeps it.

    A q8_0 block is a float16 d and 32 int8 q, for the values `d * q`; a q4_1 block float16 d and m,
    then 16 bytes of which byte i has q_i in its low and q_(i + 16) in its high half, for
    `d * q + m`; a q4_0 block the same without m, for `d * (q - 8)`.

    Raises:
        ValueError: if the format is unknown or rows are not whole blocks.
    """

    format: BlockFormat
    blocks: npt.NDArray[np.uint8]
    """[out, in / 32 * bytes of a block]"""

    def __post_init__(self) -> None:
        if self.format not in BLOCK_BYTES:
            raise ValueError(
                f"block format {self.format!r} is unknown: known are {', '.join(BLOCK_BYTES)}"
            )
        if self.blocks.ndim != 2 or self.blocks.shape[1] % BLOCK_BYTES[self.format]:
            raise ValueError(
                f"a {self.format} weight of the shape {self.blocks.shape} has no whole blocks: "
                f"rows must be multiples of {BLOCK_BYTES[self.format]} bytes"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return len(self.blocks), self.blocks.shape[1] // BLOCK_BYTES[self.format] * BLOCK_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """One layer of the Llama family: norms `[hidden]` and prepared linears."""

    input_norm: Tensor
    qkv: PreparedLinear
    """Query, key and value projections, one below the other."""
    output: PreparedLinear
    mlp_norm: Tensor
    gate_up: PreparedLinear
    """The gate's rows, then the up projection's."""
    down: PreparedLinear


@dataclass(frozen=True, slots=True, eq=False)
class DecoderSpec:
    """The layers of a decoder-only transformer of the Llama family, its embedding and its head."""

    attention: AttentionSpec
    embedding: PreparedEmbedding
    layers: tuple[DecoderLayer, ...]
    norm: Tensor
    """[hidden] before the head."""
    head: PreparedLinear
    rms_norm_eps: float
    frequencies: Tensor
    """[D / 2] float32, from `rotary.inverse_frequencies`."""
    down_block: int = 0
    """What goes into `down` passes `Ops.hadamard` in blocks of this size; 0: it does not."""


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
    the step that stored it. Slots are the caller's to keep inside the layer: who reads or writes
    them need not check it.
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


class KVCache(Protocol):
    """K and V of every layer (`phloem.mem_pool.kv.KVPool` is one)."""

    def layer(self, index: int, /) -> KVLayer:
        """One layer, the same object as long as the cache is there: who asked may keep it."""
        ...


class GreedyTokens(NamedTuple):
    """The likeliest tokens of n positions."""

    ids: Tensor
    """[n] int64"""
    finite: Tensor
    """[n] bool, whether all logits of the row are finite; else the id says nothing."""
    allowed: Tensor
    """[n] bool, whether a token was left to choose; else the id says nothing."""


class Decoder(Protocol):
    """All layers of a model, ready to run. A backend may do a step in one call."""

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        out_slots: Tensor,
        attention: AttentionPlan,
        kv: KVCache,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Run a step's tokens through the layers, storing their K and V in `kv`.

        `input_ids`, `positions` and `out_slots` are `[T]` int64, `attention` is this backend's plan
        for them. Returns the hidden states before the final norm, `[T, hidden]`, or `[n, hidden]`
        of the tokens `wanted` `[n]` int64, ascending: others need not come out of the last layer.
        They may be overwritten by the next call. That ids are of the vocabulary and slots of the
        cache is the caller's to ensure: a backend need not check it.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head of hidden states `[n, hidden]`: logits `[n, V]` float32."""
        ...

    def greedy(self, hidden: Tensor, bits: npt.NDArray[np.int32] | None = None) -> GreedyTokens:
        """The ids of the largest `logits` of hidden states `[n, hidden]`, on ties the lowest.

        The same as looking for them in `logits(hidden)`, which need not be made for it. Of the
        tokens with a bit in `bits` `[n, ceil(V / 32)]`, as `Ops.apply_token_bitmask` reads it, if
        there are bits.

        Raises:
            ValueError: if `bits` has another shape.
        """
        ...

    def greedy_steps(self, newest: npt.NDArray[np.int64] | None = None) -> GreedySteps | None:
        """A shorter way for greedy steps, not to be called while these are; None: there is none.

        After a step the token of each row stands in `newest` `[rows of the row table]`, if given.
        """
        ...


class Ops(Protocol):
    """The op table. Stateless; activations are float32 or bfloat16 of one device."""

    @property
    def name(self) -> str:
        """The backend's name in the registry."""
        ...

    @property
    def fastest_rounded(self) -> RoundedForm | None:
        """In which form it is fastest with rounded weights; None: it is no faster with any."""
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

    def hadamard(self, x: Tensor, block: int) -> Tensor:
        """Every `block` consecutive elements of the rows of `x` `[T, n]` times H / sqrt(block).

        H is Sylvester's matrix of +1 and -1, `block` a power of two that divides n. The product of
        two such transforms is the identity. It spreads what a few elements hold over a block.

        Raises:
            ValueError: if `block` is no such number.
        """
        ...

    def prepare_linear(
        self,
        weight: Tensor | BlockWeight,
        bias: Tensor | None = None,
        form: LinearForm = "float",
        input_bits: InputBits = 8,
    ) -> PreparedLinear:
        """Bring `weight` `[out, in]` and `bias` `[out]` into the form that `linear` takes.

        `form` says how a float weight is kept; blocks stay as they are. `input_bits` says how
        finely `linear` rounds what it multiplies with a weight in blocks. The result may or may not
        share memory with `weight`: drop the original, and change neither.

        Raises:
            ValueError: if this backend has no such form, or `input_bits` is neither 8 nor 16.
        """
        ...

    def prepare_embedding(
        self, weight: Tensor | BlockWeight, form: LinearForm = "float"
    ) -> PreparedEmbedding:
        """Bring a table of embeddings `[V, hidden]` into the form that `embed` takes."""
        ...

    def tied_head(self, embedding: PreparedEmbedding, input_bits: InputBits = 8) -> PreparedLinear:
        """The linear whose weight is this table; see `prepare_linear`."""
        ...

    def embed(self, ids: Tensor, embedding: PreparedEmbedding) -> Tensor:
        """The rows of `ids` `[T]` int64: `[T, hidden]`."""
        ...

    def decoder(self, spec: DecoderSpec) -> Decoder:
        """Put a model together. `phloem.kernels.decoder` does it from the ops of this table."""
        ...

    def linear(self, x: Tensor, prepared: PreparedLinear) -> Tensor:
        """`x @ weight.T + bias` for `x` `[T, in]`; returns `[T, out]` in the dtype of `x`.

        With a weight in blocks, x is rounded too: in every 32 inputs of a token to int8, by
        `scale = max(|x_i|) / 127` and `q_i = x_i / scale` to nearest, ties to even; with 16 input
        bits to int16 by 32767. With a weight in the form "int8" all inputs of a token share one
        scale, and have 8 bits.
        """
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
        finite in every layer: it pads. That the slots are of the cache is the caller's to ensure:
        it is not checked.
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
