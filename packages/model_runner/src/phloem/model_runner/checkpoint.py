"""The weights of a model folder as a model takes them: checked, fused, in floats or in blocks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from phloem.kernels.base import BlockFormat, BlockWeight
from phloem.kernels.torch_backend.blocks import convert_blocks
from phloem.model_runner.gguf_record import GgufRecord
from phloem.model_runner.packed_format import PackedFormat
from phloem.model_runner.packed_store import PackedStore
from phloem.model_runner.tensor_store import GgufStore, SafetensorsStore, TensorStore

log = logging.getLogger(__name__)


class Checkpoint:
    """A model folder as a `WeightSource`; a context manager.

    Memory-mapped and read tensor by tensor, straight into the fused tensor that the model wants: no
    second copy of the model is ever held. With `keep_blocks`, matrices that are stored in blocks
    stay in them. `packed` is for checkpoints of AWQ and GPTQ.

    Raises:
        ValueError: if files are missing or damaged; from `take` and `take_linear`, naming the
            tensor, if it is missing or has another shape than the model; from `check_all_taken`,
            naming tensors left over.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device,
        *,
        keep_blocks: bool = False,
        packed: PackedFormat | None = None,
    ) -> None:
        self._folder = folder
        self._dtype = dtype
        self._device = device
        self._keep_blocks = keep_blocks
        self._taken: set[str] = set()
        self._store = _open_store(folder, packed)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._store.close()

    def take(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """See `WeightSource.take`; converts to the dtype and device of this checkpoint."""
        # Shapes first: what a wrong config asks for may not even fit in memory.
        self._check(names, shapes)
        rows = sum(shape[0] for shape in shapes)
        fused = torch.empty((rows, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in zip(names, shapes):
            fused[start : start + shape[0]].copy_(self._store.floats(name))
            start += shape[0]
        return fused

    def take_linear(
        self, names: Sequence[str], shapes: Sequence[tuple[int, int]]
    ) -> Tensor | BlockWeight:
        """See `WeightSource.take_linear`.

        Fused matrices have one format: where they are stored in several, q4_0 becomes another
        without loss, and else all become q8_0. Where one is in floats, all are.
        """
        if not self._keep_blocks:
            return self.take(names, shapes)
        self._check(names, shapes)
        parts = [self._store.blocks(name) for name in names]
        blocks = [part for part in parts if part is not None]
        if len(blocks) < len(parts):
            return self.take(names, shapes)
        return _fused(names, blocks)

    def check_all_taken(self, ignored: Sequence[str] = ()) -> None:
        """Refuse tensors that no part of the model took, apart from those that end in `ignored`."""
        left = sorted(
            name
            for name in self._store.names
            if name not in self._taken
            and not name.endswith(tuple(ignored))
            and not self._store.is_void(name)
        )
        if left:
            raise ValueError(
                f"{self._folder} has {len(left)} tensors that this model does not know, such as "
                f"{left[0]!r}: its config.json may describe another model"
            )

    def _check(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> None:
        for name, shape in zip(names, shapes, strict=True):
            if name not in self._store.names:
                raise ValueError(
                    f"{self._folder} has no tensor {name!r}, which its config.json asks for"
                )
            found = self._store.shape(name)
            if found != shape:
                raise ValueError(
                    f"tensor {name!r} in {self._folder} has the shape {found}, but its config.json "
                    f"asks for {shape}"
                )
        self._taken.update(names)


def _open_store(folder: Path, packed: PackedFormat | None) -> TensorStore:
    if packed is not None:
        return PackedStore(folder, packed)
    record = GgufRecord.read(folder)
    return SafetensorsStore(folder) if record is None else GgufStore(record)


def _fused(names: Sequence[str], parts: Sequence[BlockWeight]) -> BlockWeight:
    if len(parts) == 1:
        return parts[0]
    format = _common_format({part.format for part in parts})
    for name, part in zip(names, parts, strict=True):
        if part.format not in (format, "q4_0"):
            log.info("%s is rounded anew from %s to %s", name, part.format, format)
    blocks = [convert_blocks(part, format).blocks for part in parts]
    return BlockWeight(format, np.concatenate(blocks))


def _common_format(formats: set[BlockFormat]) -> BlockFormat:
    if len(formats) == 1:
        return next(iter(formats))
    return "q8_0" if "q8_0" in formats else "q4_1"
