"""Stored tensors behind one contract: safetensors files of a folder, or a mapped GGUF file.

Owns the reading; `packed_store` has that of AWQ and GPTQ checkpoints. Which tensors a model wants,
in which shapes and how they are fused is not known here.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from phloem.kernels.base import BlockFormat, BlockWeight
from phloem.kernels.torch_backend.blocks import dequantize_blocks, quantize_blocks
from phloem.model_runner.checkpoint_index import INDEX_FILE, read_weight_map
from phloem.model_runner.gguf_record import GgufRecord
from phloem.model_runner.gguf_tensors import FLOAT_KINDS

SINGLE_FILE = "model.safetensors"

log = logging.getLogger(__name__)

# An 8-bit float is a floating point type too, but means nothing without its scales.
_STORED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_FORMAT_OF_KIND: dict[str, BlockFormat] = {"Q4_0": "q4_0", "Q4_1": "q4_1", "Q8_0": "q8_0"}
_OTHERS_BECOME: BlockFormat = "q8_0"


class TensorStore(Protocol):
    """Tensors by name."""

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one of them, read without its data."""
        ...

    def floats(self, name: str) -> Tensor:
        """What a tensor means, in whatever float dtype it is stored."""
        ...

    def blocks(self, name: str) -> BlockWeight | None:
        """A matrix in the blocks it is stored in; None: it is stored in floats."""
        ...

    def is_void(self, name: str) -> bool:
        """Whether a tensor may be left out because it changes nothing."""
        ...

    def close(self) -> None:
        """Give the files back."""
        ...


class SafetensorsStore:
    """The safetensors files of a folder.

    Raises:
        ValueError: if files are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._stack = ExitStack()
        self._file_of = self._locate()

    @property
    def names(self) -> Collection[str]:
        """See `TensorStore.names`."""
        return self._file_of.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorStore.shape`.

        Raises:
            ValueError: if the file does not have what the index promised.
        """
        file = self._file_of[name]
        try:
            return tuple(self._open(file).get_slice(name).get_shape())
        except SafetensorError as error:
            raise ValueError(
                f"{self._folder / file} has no tensor {name!r}, though {INDEX_FILE} says so "
                f"({error}): fetch both files again"
            ) from error

    def floats(self, name: str) -> Tensor:
        """See `TensorStore.floats`.

        Raises:
            ValueError: if the tensor is quantized.
        """
        tensor = self.tensor(name)
        if tensor.dtype not in _STORED_DTYPES:
            raise ValueError(
                f"tensor {name!r} in {self._folder} is {tensor.dtype}: quantized checkpoints are "
                "not supported, use one in float32, float16 or bfloat16"
            )
        return tensor

    def tensor(self, name: str) -> Tensor:
        """A tensor as it is stored, of any dtype."""
        stored: Tensor = self._open(self._file_of[name]).get_tensor(name)
        return stored

    def blocks(self, name: str) -> BlockWeight | None:
        """See `TensorStore.blocks`; there are none."""
        return None

    def is_void(self, name: str) -> bool:
        """See `TensorStore.is_void`; none is."""
        return False

    def close(self) -> None:
        """See `TensorStore.close`."""
        self._stack.close()

    def _locate(self) -> dict[str, str]:
        weight_map = read_weight_map(self._folder)
        if weight_map is not None:
            return weight_map
        if not (self._folder / SINGLE_FILE).is_file():
            raise ValueError(
                f"{self._folder} has neither {SINGLE_FILE} nor {INDEX_FILE}: only safetensors "
                "checkpoints can be loaded"
            )
        return dict.fromkeys(self._open(SINGLE_FILE).keys(), SINGLE_FILE)

    def _open(self, file: str) -> Any:
        if file not in self._files:
            try:
                opened = self._stack.enter_context(safe_open(self._folder / file, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ValueError(f"{self._folder / file} cannot be read: {error}") from error
            self._files[file] = opened
        return self._files[file]


class GgufStore:
    """The GGUF file that a folder was converted from.

    Raises:
        GgufError: if it is gone or has changed.
    """

    def __init__(self, record: GgufRecord) -> None:
        self._tensors = record.open()
        self._told: set[str] = set()

    @property
    def names(self) -> Collection[str]:
        """See `TensorStore.names`."""
        return self._tensors.table.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorStore.shape`."""
        return self._tensors.table[name].shape

    def floats(self, name: str) -> Tensor:
        """See `TensorStore.floats`: float32."""
        stored = self._stored_blocks(name)
        if stored is not None:
            return dequantize_blocks(stored)
        # A copy, because the file is mapped for reading only, which torch does not know.
        return torch.from_numpy(self._tensors.floats(name).copy())

    def blocks(self, name: str) -> BlockWeight | None:
        """See `TensorStore.blocks`; kinds that are no block format are rounded to int8 blocks."""
        kind = self._tensors.table[name].kind
        if kind in FLOAT_KINDS:
            return None
        stored = self._stored_blocks(name)
        if stored is not None:
            return stored
        if kind not in self._told:
            self._told.add(kind)
            log.warning(
                "%s has weights in %s, which nothing here computes in: they are kept in %s",
                self._tensors.file.name,
                kind,
                _OTHERS_BECOME,
            )
        return quantize_blocks(self.floats(name), _OTHERS_BECOME)

    def is_void(self, name: str) -> bool:
        """See `TensorStore.is_void`; none is."""
        return False

    def close(self) -> None:
        """See `TensorStore.close`; the file stays mapped while somebody has blocks of it."""
        del self._tensors

    def _stored_blocks(self, name: str) -> BlockWeight | None:
        format = _FORMAT_OF_KIND.get(self._tensors.table[name].kind)
        return None if format is None else BlockWeight(format, self._tensors.rows(name))
