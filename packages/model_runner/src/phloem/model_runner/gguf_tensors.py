"""The tensors of a GGUF file, by their names in a Hugging Face checkpoint, from the mapped file.

Owns names, the undoing of llama.cpp's row order, and what the stored bytes of each kind mean as
floats. Where the tensors lie is a table made once, when the file is converted: reading by it needs
neither the file's metadata nor, for the common kinds, the gguf package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .gguf_file import GgufError, GgufFile

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_ROTARY_TABLE = "rope_freqs.weight"

FLOAT_KINDS = ("F32", "F16", "BF16")
"""Kinds that are no quantization."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies in a file, and in which form."""

    kind: str
    """The name of its GGML type, such as "Q4_1"."""
    shape: tuple[int, ...]
    offset: int
    """Of its first byte in the file."""
    row_bytes: int
    """Bytes along the first axis of `shape`."""
    heads: int | None
    """In how many groups its rows are interleaved as llama.cpp has it; None: they are in order."""


class GgufTensors:
    """A mapped GGUF file and the table of its tensors."""

    def __init__(self, file: Path, table: Mapping[str, StoredTensor]) -> None:
        """Map `file`; it must be the one that the table is of.

        Raises:
            OSError: if it cannot be mapped.
        """
        self.file = file
        self.table = table
        self._bytes: npt.NDArray[np.uint8] = np.memmap(file, np.uint8, mode="r")

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.uint8]:
        """The stored bytes of rows `[start, stop)`, `[n, row_bytes]`, in a checkpoint's order.

        A view of the mapped file where the order is the same.
        """
        tensor = self.table[name]
        num_rows = tensor.shape[0]
        stored = self._bytes[tensor.offset : tensor.offset + num_rows * tensor.row_bytes]
        stored = stored.reshape(num_rows, tensor.row_bytes)
        if tensor.heads is None:
            return stored[start:stop]
        return stored[_halves_order(num_rows, tensor.heads)[start:stop]]

    def floats(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """What rows `[start, stop)` mean: float32, `[n, ...]`."""
        tensor = self.table[name]
        values = _floats(np.ascontiguousarray(self.rows(name, start, stop)), tensor.kind)
        return values.reshape(-1, *tensor.shape[1:])


def tensor_table(source: GgufFile) -> dict[str, StoredTensor]:
    """The tensors of a llama model, by their names in a checkpoint, in file order.

    Raises:
        GgufError: if there are others or too few, and for a kind that cannot be dequantized.
    """
    tensors = {t.name: t for t in source.tensors if t.name != _ROTARY_TABLE}
    names = dict(_OUTSIDE)
    for layer in range(int(source.require("llama.block_count"))):
        for short, name in _IN_LAYER.items():
            names[f"blk.{layer}.{short}"] = f"model.layers.{layer}.{name}"
    unknown = sorted(tensors.keys() - names.keys())
    missing = sorted(names.keys() - tensors.keys() - {"output.weight"})
    if unknown or missing:
        what = f"an unknown tensor {unknown[0]}" if unknown else f"no tensor {missing[0]}"
        raise GgufError(
            f"{source.path.name} has {what}, so it is not a plain llama model: "
            "use the model's safetensors folder"
        )
    return {names[each]: _stored(source, each, names[each]) for each in tensors}


def _stored(source: GgufFile, own_name: str, name: str) -> StoredTensor:
    from gguf.quants import dequantize

    tensor = next(t for t in source.tensors if t.name == own_name)
    try:
        dequantize(tensor.data[:1], tensor.tensor_type)
    except NotImplementedError as error:
        raise GgufError(
            f"{source.path.name} stores {own_name} as {tensor.tensor_type.name}, which the "
            "installed gguf package cannot dequantize: upgrade gguf or use another quantization"
        ) from error
    shape = tuple(int(n) for n in reversed(tensor.shape))
    return StoredTensor(
        kind=tensor.tensor_type.name,
        shape=shape,
        offset=int(tensor.data_offset),
        row_bytes=int(tensor.n_bytes) // shape[0],
        heads=_interleaved_heads(source, own_name, name, shape[0]),
    )


def _interleaved_heads(source: GgufFile, own_name: str, name: str, num_rows: int) -> int | None:
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return None
    heads = int(source.require("llama.attention.head_count"))
    if name.endswith("k_proj.weight"):
        heads = int(source.metadata.get("llama.attention.head_count_kv", heads))
    if num_rows % (2 * heads):
        raise GgufError(
            f"{source.path.name} has {num_rows} rows in {own_name}, which {heads} heads "
            "cannot share evenly: the file is damaged, get it again"
        )
    return heads


def _halves_order(num_rows: int, heads: int) -> npt.NDArray[np.int64]:
    """Stored rows in the order in which each head holds first all first, then all second parts.

    llama.cpp rotates neighbouring rows (x0, y0, x1, y1, ...) of a head, Hugging Face rotates row i
    with row i + head_dim / 2 (x0, x1, ..., y0, y1, ...).
    """
    return np.arange(num_rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _floats(rows: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    if kind == "F32":
        return rows.view("<f4").astype(np.float32, copy=False)
    if kind == "F16":
        return rows.view("<f2").astype(np.float32)
    if kind == "BF16":
        return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    # Seconds to import, which who computes in the file's own blocks need not wait for.
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    values: npt.NDArray[np.float32] = dequantize(rows, GGMLQuantizationType[kind])
    return values
