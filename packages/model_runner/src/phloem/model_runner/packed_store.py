"""The tensors of an AWQ or GPTQ checkpoint: packed weights as blocks, the others as they are."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from phloem.kernels.base import BlockWeight
from phloem.kernels.packed_int4 import awq_blocks, gptq_blocks
from phloem.kernels.torch_backend.blocks import dequantize_blocks
from phloem.model_runner.packed_format import PackedFormat
from phloem.model_runner.tensor_store import SafetensorsStore

_PACKED = ".qweight"
_PARTS = (_PACKED, ".qzeros", ".scales", ".g_idx")
_PER_WORD = 8


class PackedStore:
    """A `TensorStore` in which `name.weight` stands for `name.qweight` and what belongs to it.

    Raises:
        ValueError: if files are missing or damaged; from `blocks` and `floats`, naming the tensor,
            if its parts do not fit each other.
    """

    def __init__(self, folder: Path, packed: PackedFormat) -> None:
        self._files = SafetensorsStore(folder)
        self._packed = packed
        stored = set(self._files.names)
        self._linears = {name.removesuffix(_PACKED) for name in stored if name.endswith(_PACKED)}
        parts = {linear + part for linear in self._linears for part in _PARTS}
        weights = {f"{linear}.weight" for linear in self._linears}
        self._names = frozenset((stored - parts) | weights)

    @property
    def names(self) -> Collection[str]:
        """See `TensorStore.names`."""
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorStore.shape`."""
        linear = self._linear(name)
        if linear is None:
            return self._files.shape(name)
        rows, columns = self._files.shape(linear + _PACKED)
        if self._packed.method == "awq":
            return columns * _PER_WORD, rows
        return columns, rows * _PER_WORD

    def floats(self, name: str) -> Tensor:
        """See `TensorStore.floats`."""
        blocks = self.blocks(name)
        return self._files.floats(name) if blocks is None else dequantize_blocks(blocks)

    def blocks(self, name: str) -> BlockWeight | None:
        """See `TensorStore.blocks`."""
        linear = self._linear(name)
        if linear is None:
            return None
        try:
            return self._blocks(linear)
        except ValueError as error:
            raise ValueError(f"{linear}: {error}") from error

    def is_void(self, name: str) -> bool:
        """See `TensorStore.is_void`: a bias of zeros, which quantizers give to every linear."""
        linear = name.removesuffix(".bias")
        return (
            linear != name
            and linear in self._linears
            and not torch.count_nonzero(self._files.floats(name))
        )

    def close(self) -> None:
        """See `TensorStore.close`."""
        self._files.close()

    def _linear(self, name: str) -> str | None:
        linear = name.removesuffix(".weight")
        return linear if linear != name and linear in self._linears else None

    def _blocks(self, linear: str) -> BlockWeight:
        missing = [
            part for part in (".qzeros", ".scales") if linear + part not in self._files.names
        ]
        if missing:
            raise ValueError(f"the checkpoint has no {linear}{missing[0]}: fetch it again")
        qweight, qzeros = (self._files.tensor(linear + part).numpy() for part in _PARTS[:2])
        scales = self._files.tensor(f"{linear}.scales").float().numpy()
        if self._packed.method == "awq":
            return awq_blocks(qweight, qzeros, scales)
        order = f"{linear}.g_idx"
        g_idx = self._files.tensor(order).numpy() if order in self._files.names else None
        return gptq_blocks(qweight, qzeros, scales, g_idx, version=self._packed.gptq_version)
