"""Paged attention in torch: gather the slots of a row, attend, scatter the result.

Rows of query length 1 (decodes) are gathered in groups of similar length, padded with slot 0 and
masked; longer rows (prefill chunks) go one by one. Groups are cut so that gathered K and V stay
small; masks are cut into blocks of queries, so none grows with the square of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from phloem.kernels.base import AttentionSpec, KVLayer

_GATHER_BYTES = 8 << 20
"""At most this much K and V is gathered for a group of decodes (a single row may need more). So
little stays in a CPU's cache, and in memory that malloc keeps; 64 MiB takes twice as long."""
_QUERY_BLOCK = 512
"""Queries of a chunk behind a cached prefix that share one mask and one attention call."""
_PADDING_SLACK = 32
"""Tokens of padding that are cheaper than another attention call."""
_PADDING_SHARE = 0.2
"""The part of a group's longest row that may be padding in its shortest."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Rows with one query each, gathered together."""

    tokens: slice | Tensor
    """Where the rows' queries stand among the T tokens."""
    slots: Tensor
    """[n * length] int64, padded with slot 0."""
    num_rows: int
    length: int
    mask: Tensor | None
    """[n, 1, 1, length] of 0 and -inf; None if nothing is padded."""

    def run(self, q: Tensor, kv: KVLayer, out: Tensor, scale: float) -> None:
        keys, values = (
            part.unflatten(0, (self.num_rows, self.length)).transpose(1, 2)
            for part in kv.gather(self.slots, q.dtype)
        )
        # Query heads that share a key/value head act as its queries: no head is repeated.
        queries = q[self.tokens].view(self.num_rows, keys.shape[1], -1, q.shape[2])
        result = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=self.mask, scale=scale
        )
        out[self.tokens] = result.view(self.num_rows, -1, out.shape[2])


@dataclass(frozen=True, slots=True)
class _ExtendRow:
    """One row with several queries."""

    first: int
    """The row's first query among the T tokens."""
    slots: Tensor
    """[seq_len] int64"""
    blocks: tuple[_Block, ...]

    def run(self, q: Tensor, kv: KVLayer, out: Tensor, scale: float) -> None:
        keys, values = (
            part.transpose(0, 1).unsqueeze(1) for part in kv.gather(self.slots, q.dtype)
        )
        groups = len(keys)
        share = q.shape[1] // groups
        for block in self.blocks:
            tokens = slice(self.first + block.start, self.first + block.stop)
            length = block.kv_len
            queries = q[tokens].unflatten(1, (groups, share)).permute(1, 2, 0, 3)
            # Expanded, not repeated: the heads of a group read the same memory.
            result = F.scaled_dot_product_attention(
                queries,
                keys[:, :, :length].expand(-1, share, -1, -1),
                values[:, :, :length].expand(-1, share, -1, -1),
                attn_mask=block.mask,
                is_causal=block.mask is None,
                scale=scale,
            )
            out[tokens].unflatten(1, (groups, share)).copy_(result.permute(2, 0, 1, 3))


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries `[start, stop)` of a row, reading its first `kv_len` positions."""

    start: int
    stop: int
    kv_len: int
    mask: Tensor | None
    """[stop - start, kv_len] bool, True where a query may look; None: causal from position 0."""


class TorchAttentionPlan:
    """The groups and rows of one step."""

    __slots__ = ("_pieces", "_spec")

    def __init__(self, pieces: tuple[_DecodeGroup | _ExtendRow, ...], spec: AttentionSpec) -> None:
        self._pieces = pieces
        self._spec = spec

    def run(self, q: Tensor, kv: KVLayer) -> Tensor:
        """See `AttentionPlan.run`."""
        out = q.new_empty((*q.shape[:2], self._spec.value_dim))
        for piece in self._pieces:
            piece.run(q, kv, out, self._spec.scale)
        return out


def plan_attention(
    row_table: Int32, rows: Int32, query_lens: Int32, seq_lens: Int32, spec: AttentionSpec
) -> TorchAttentionPlan:
    """See `Ops.plan_attention`.

    Raises:
        ValueError: if a row has no query, or more queries than tokens.
    """
    if np.any(query_lens < 1) or np.any(query_lens > seq_lens):
        bad = int(np.flatnonzero((query_lens < 1) | (query_lens > seq_lens))[0])
        raise ValueError(
            f"row {bad} has {query_lens[bad]} queries for {seq_lens[bad]} tokens: "
            "there must be at least one query, and no more queries than tokens"
        )
    starts = np.cumsum(query_lens) - query_lens
    decodes = np.flatnonzero(query_lens == 1)
    groups = [
        _decode_group(row_table, rows[group], seq_lens[group], starts[group], spec)
        for group in _group_by_length(decodes, seq_lens, spec)
    ]
    extends = [
        _extend_row(row_table[rows[i], : seq_lens[i]], int(starts[i]), int(query_lens[i]), spec)
        for i in np.flatnonzero(query_lens > 1)
    ]
    return TorchAttentionPlan((*groups, *extends), spec)


def _group_by_length(
    decodes: npt.NDArray[np.int64], seq_lens: Int32, spec: AttentionSpec
) -> Iterator[npt.NDArray[np.int64]]:
    """Cut rows into groups of similar length whose gathered K and V fit `_GATHER_BYTES`."""
    token_bytes = spec.num_kv_heads * (spec.head_dim + spec.value_dim) * spec.dtype.itemsize
    order = decodes[np.argsort(-seq_lens[decodes], kind="stable")]
    lengths = seq_lens[order].tolist()
    begin = 0
    while begin < len(lengths):
        longest = lengths[begin]
        shortest = longest - max(_PADDING_SLACK, int(longest * _PADDING_SHARE))
        most_rows = max(1, _GATHER_BYTES // (token_bytes * longest))
        end = begin + 1
        while end < min(len(lengths), begin + most_rows) and lengths[end] >= shortest:
            end += 1
        yield np.sort(order[begin:end])
        begin = end


def _decode_group(
    row_table: Int32,
    rows: Int32,
    lengths: Int32,
    tokens: npt.NDArray[np.int64],
    spec: AttentionSpec,
) -> _DecodeGroup:
    longest = int(lengths.max())
    valid = np.arange(longest) < lengths[:, None]
    slots = np.where(valid, row_table[rows, :longest], 0).astype(np.int64)
    mask = None
    if not valid.all():
        mask = torch.zeros(valid.shape, dtype=spec.dtype).masked_fill_(
            torch.from_numpy(~valid), float("-inf")
        )
        mask = mask[:, None, None, :].to(spec.device)
    first, last = int(tokens[0]), int(tokens[-1])
    return _DecodeGroup(
        tokens=slice(first, last + 1)
        if last - first + 1 == len(tokens)
        else torch.from_numpy(tokens).to(spec.device),
        slots=torch.from_numpy(slots.reshape(-1)).to(spec.device),
        num_rows=len(rows),
        length=longest,
        mask=mask,
    )


def _extend_row(slots: Int32, first: int, num_queries: int, spec: AttentionSpec) -> _ExtendRow:
    return _ExtendRow(
        first=first,
        slots=torch.from_numpy(slots.astype(np.int64)).to(spec.device),
        blocks=tuple(_blocks(num_queries, len(slots), spec.device)),
    )


def _blocks(num_queries: int, seq_len: int, device: torch.device) -> Iterator[_Block]:
    offset = seq_len - num_queries
    if offset == 0:
        yield _Block(0, num_queries, seq_len, None)
        return
    for start in range(0, num_queries, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, num_queries)
        kv_len = offset + stop
        queries = torch.arange(offset + start, kv_len, device=device)
        mask = torch.arange(kv_len, device=device) <= queries[:, None]
        yield _Block(start, stop, kv_len, mask)
