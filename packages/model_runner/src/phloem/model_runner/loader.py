"""From a model folder to a model: safetensors streamed into fused weights.

A checkpoint is memory-mapped and read tensor by tensor, straight into the fused tensor that the
model wants; no second copy of the model is ever held.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from phloem.kernels import Ops, get_ops
from phloem.model_runner.checkpoint_index import INDEX_FILE, read_weight_map
from phloem.model_runner.config import ModelConfig
from phloem.model_runner.models import LlamaModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SINGLE_FILE = "model.safetensors"

# An 8-bit float is a floating point type too, but means nothing without its scales.
_STORED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Checkpoint:
    """The safetensors files of a model folder as a `WeightSource`; a context manager.

    Raises:
        ValueError: if files are missing or damaged; from `take`, naming the tensor, if it is
            missing or has another shape than the model; from `check_all_taken`, naming tensors left
            over.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._folder = folder
        self._dtype = dtype
        self._device = device
        self._files: dict[str, Any] = {}
        self._stack = ExitStack()
        self._taken: set[str] = set()
        self._file_of = self._locate()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def take(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """See `WeightSource.take`; converts to the dtype and device of this checkpoint."""
        # Shapes first: what a wrong config asks for may not even fit in memory.
        for name, shape in zip(names, shapes, strict=True):
            self._check_shape(name, shape)
        rows = sum(shape[0] for shape in shapes)
        fused = torch.empty((rows, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in zip(names, shapes):
            fused[start : start + shape[0]].copy_(self._read(name))
            start += shape[0]
        return fused

    def check_all_taken(self, ignored: Sequence[str] = ()) -> None:
        """Refuse tensors that no part of the model took, apart from those that end in `ignored`."""
        left = sorted(
            name
            for name in self._file_of
            if name not in self._taken and not name.endswith(tuple(ignored))
        )
        if left:
            raise ValueError(
                f"{self._folder} has {len(left)} tensors that this model does not know, such as "
                f"{left[0]!r}: its config.json may describe another model"
            )

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._file_of:
            raise ValueError(
                f"{self._folder} has no tensor {name!r}, which its config.json asks for"
            )
        file = self._file_of[name]
        try:
            found = tuple(self._open(file).get_slice(name).get_shape())
        except SafetensorError as error:
            raise ValueError(
                f"{self._folder / file} has no tensor {name!r}, though {INDEX_FILE} says so "
                f"({error}): fetch both files again"
            ) from error
        if found != shape:
            raise ValueError(
                f"tensor {name!r} in {self._folder} has the shape {found}, but its config.json "
                f"asks for {shape}"
            )

    def _read(self, name: str) -> Tensor:
        self._taken.add(name)
        tensor: Tensor = self._open(self._file_of[name]).get_tensor(name)
        if tensor.dtype not in _STORED_DTYPES:
            raise ValueError(
                f"tensor {name!r} in {self._folder} is {tensor.dtype}: quantized checkpoints are "
                "not supported, use one in float32, float16 or bfloat16"
            )
        return tensor

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


def load_model(
    folder: str | Path,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    ops: Ops | None = None,
) -> LlamaModel:
    """Load a Hugging Face model folder: config.json and safetensors.

    `dtype` is "float32", "bfloat16", or "auto": bfloat16 if the checkpoint says so, else float32.
    `ops` is the kernel backend, by default the torch reference.

    Raises:
        ValueError: for a dtype, an architecture or a setting that is not supported, and for weights
            that are missing, of another shape, or left over.
    """
    config = ModelConfig.from_folder(folder)
    if dtype == "auto":
        dtype = "bfloat16" if config.dtype == "bfloat16" else "float32"
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported: choose {', '.join(DTYPES)} or auto")
    # Some checkpoints carry what the config makes superfluous: a copy of the tied head, and angles.
    ignored = ["rotary_emb.inv_freq"] + ["lm_head.weight"] * config.tie_word_embeddings
    with Checkpoint(Path(folder), DTYPES[dtype], torch.device(device)) as checkpoint:
        model = LlamaModel(
            config, checkpoint, ops or get_ops(), DTYPES[dtype], torch.device(device)
        )
        checkpoint.check_all_taken(ignored)
    return model
