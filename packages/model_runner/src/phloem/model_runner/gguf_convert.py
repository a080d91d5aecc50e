"""Converting a GGUF file of the llama architecture into a Hugging Face folder.

Owns tensor names, the undoing of llama.cpp's row order, and the atomic appearance of the folder.
Weights are dequantized to float32, which is exact, so the folder computes what the file means.
Fusing and casting for serving are the loader's business.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .gguf_config import generation_config, model_config, require_supported
from .gguf_file import GgufError, GgufFile, fingerprint, open_gguf
from .tokenizer_files import write_tokenizer

if TYPE_CHECKING:
    from gguf import ReaderTensor

CONVERTER_VERSION = 1
"""Raised whenever the same file would convert to something else; older folders are then stale."""

RECORD_FILE = "phloem.json"

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_CHUNK_BYTES = 16 << 20
_ABANDONED_SECONDS = 24 * 3600

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


@dataclass(frozen=True)
class _Output:
    """One tensor of the folder: its name, its source, and the source rows in output order."""

    name: str
    source: ReaderTensor
    rows: np.ndarray
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape)) * 4


def is_current(folder: Path, file: Path) -> bool:
    """Whether `folder` is a complete conversion of `file` as it is now, by this converter."""
    try:
        record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    expected = {"converter_version": CONVERTER_VERSION, "fingerprint": fingerprint(file)}
    return isinstance(record, dict) and expected.items() <= record.items()


def convert_gguf(file: Path, out_dir: Path, *, progress: Progress | None = None) -> Path:
    """Writes config, float32 safetensors, tokenizer and chat template of `file` to `out_dir`.

    The folder appears by one rename, so it is complete or absent; a process that was killed leaves
    only a hidden sibling, which a later conversion removes after a day. When two processes convert
    at once both succeed and the first folder stays. A current folder is returned as it is. Memory
    stays within a few tens of MiB beside the mapped file.

    Raises `GgufError` for a file that is damaged or not supported, and for an `out_dir` that holds
    something else.
    """
    if is_current(out_dir, file):
        return out_dir
    if out_dir.exists():
        raise GgufError(
            f"{out_dir} exists and is not a conversion of {file.name}: remove it or choose another"
        )
    source = open_gguf(file)
    outputs = _plan(source)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(out_dir)
    partial = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    try:
        _write_folder(source, outputs, partial, progress)
        _publish(partial, out_dir, file)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out_dir


def _plan(source: GgufFile) -> list[_Output]:
    # First: of another architecture one wants to read its name, not that of a tensor.
    require_supported(source)
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
    return [_output(source, tensor, names[name]) for name, tensor in tensors.items()]


def _output(source: GgufFile, tensor: ReaderTensor, name: str) -> _Output:
    from gguf.quants import dequantize

    try:
        dequantize(tensor.data[:1], tensor.tensor_type)
    except NotImplementedError as error:
        raise GgufError(
            f"{source.path.name} stores {tensor.name} as {tensor.tensor_type.name}, which the "
            "installed gguf package cannot dequantize: upgrade gguf or use another quantization"
        ) from error
    shape = tuple(int(n) for n in reversed(tensor.shape))
    rows = np.arange(shape[0])
    heads = int(source.require("llama.attention.head_count"))
    if name.endswith("k_proj.weight"):
        heads = int(source.metadata.get("llama.attention.head_count_kv", heads))
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        if shape[0] % (2 * heads):
            raise GgufError(
                f"{source.path.name} has {shape[0]} rows in {tensor.name}, which {heads} heads "
                "cannot share evenly: the file is damaged, get it again"
            )
        rows = _halves_order(rows, heads)
    return _Output(name, tensor, rows, shape)


def _halves_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """Source rows in the order in which each head holds first all first, then all second parts.

    llama.cpp rotates neighbouring rows (x0, y0, x1, y1, ...) of a head, Hugging Face rotates row i
    with row i + head_dim / 2 (x0, x1, ..., y0, y1, ...).
    """
    return rows.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _write_folder(
    source: GgufFile, outputs: list[_Output], folder: Path, progress: Progress | None
) -> None:
    shapes = {output.name: output.shape for output in outputs}
    config = model_config(
        source,
        tied="lm_head.weight" not in shapes,
        vocab_size=shapes["model.embed_tokens.weight"][0],
    )
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(source))
    write_tokenizer(source, folder)
    _write_safetensors(folder / "model.safetensors", outputs, progress)
    _write_json(folder / RECORD_FILE, _record(source.path))


def _record(file: Path) -> dict[str, Any]:
    return {
        "converter_version": CONVERTER_VERSION,
        "file_name": file.name,
        "file_bytes": file.stat().st_size,
        "fingerprint": fingerprint(file),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_safetensors(path: Path, outputs: list[_Output], progress: Progress | None) -> None:
    """Streams the tensors after the header that the safetensors format puts in front of them."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for output in outputs:
        start, end = end, end + output.num_bytes
        shape = list(output.shape)
        header[output.name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    done = 0
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for output in outputs:
            for chunk in _dequantized(output):
                file.write(chunk.data)
                done += chunk.nbytes
                if progress is not None:
                    progress(done, end)


def _dequantized(output: _Output) -> Iterator[np.ndarray]:
    """Little-endian float32 rows, in chunks; rows are dequantized independently of each other."""
    from gguf.quants import dequantize

    row_bytes = output.num_bytes // output.shape[0]
    step = max(1, _CHUNK_BYTES // row_bytes)
    for start in range(0, output.shape[0], step):
        rows = output.source.data[output.rows[start : start + step]]
        yield np.ascontiguousarray(dequantize(rows, output.source.tensor_type), dtype="<f4")


def _publish(partial: Path, out_dir: Path, file: Path) -> None:
    try:
        os.rename(partial, out_dir)
    except OSError:
        # Another process was faster: its folder serves as well as ours.
        if not is_current(out_dir, file):
            raise


def _remove_abandoned(out_dir: Path) -> None:
    for sibling in out_dir.parent.glob(f".{out_dir.name}.*"):
        if time.time() - sibling.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(sibling, ignore_errors=True)
