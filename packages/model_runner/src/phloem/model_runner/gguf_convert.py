"""Converting a GGUF file of the llama architecture into a Hugging Face folder.

Owns what is written and its atomic appearance. Config, tokenizer and the record of where the
tensors lie come first, which is all that `load_model` needs; the weights in float32, which is
exact, follow for those who read safetensors.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .gguf_config import generation_config, model_config, require_supported
from .gguf_file import GgufError, GgufFile, fingerprint, open_gguf
from .gguf_record import GgufRecord
from .gguf_tensors import GgufTensors, StoredTensor, tensor_table
from .tokenizer_files import write_tokenizer

WEIGHTS_FILE = "model.safetensors"

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); (0, 0) before the metadata are read."""

_CHUNK_BYTES = 16 << 20
_ABANDONED_SECONDS = 24 * 3600


def is_current(folder: Path, file: Path) -> bool:
    """Whether `folder` is a conversion of `file` as it is now, by this converter."""
    record = GgufRecord.read(folder)
    return record is not None and record.fingerprint == fingerprint(file)


def convert_gguf(
    file: Path, out_dir: Path, *, float_weights: bool = True, progress: Progress | None = None
) -> Path:
    """Writes config, tokenizer, chat template and record of `file` to `out_dir`, and its weights.

    The folder appears by one rename, and so do the float32 safetensors in it, which `float_weights`
    may leave out; each is complete or absent. A process that was killed leaves only something
    hidden, which a later conversion removes after a day. When two processes convert at once both
    succeed and the first folder stays. What is there already is not written again. Memory stays
    within a few tens of MiB beside the mapped file.

    Raises `GgufError` for a file that is damaged or not supported, and for an `out_dir` that holds
    something else.
    """
    if is_current(out_dir, file):
        _remember_place(out_dir, file)
    elif out_dir.exists():
        raise GgufError(
            f"{out_dir} exists and is not a conversion of {file.name}: remove it or choose another"
        )
    else:
        _make_folder(file, out_dir, progress)
    if float_weights:
        add_float_weights(out_dir, progress=progress)
    return out_dir


def add_float_weights(folder: Path, *, progress: Progress | None = None) -> None:
    """Writes the float32 safetensors into a converted folder that has none.

    Raises `GgufError` if the GGUF file is gone or has changed.
    """
    target = folder / WEIGHTS_FILE
    if target.is_file():
        return
    record = GgufRecord.read(folder)
    if record is None:
        raise GgufError(f"{folder} is not a converted GGUF file: give a .gguf file instead")
    tensors = record.open()
    _remove_abandoned(target)
    handle, name = tempfile.mkstemp(prefix=f".{WEIGHTS_FILE}.", dir=folder)
    os.close(handle)
    partial = Path(name)
    try:
        _write_safetensors(partial, tensors, progress)
        _publish(partial, target, target.is_file)
    finally:
        partial.unlink(missing_ok=True)


def _remember_place(folder: Path, file: Path) -> None:
    """A copy of the file may be all that is left of it."""
    record = GgufRecord.read(folder)
    assert record is not None, "a current folder has a record"
    place = file.resolve()
    if record.file != place:
        GgufRecord(place, record.fingerprint, record.tensors).write(folder)


def _make_folder(file: Path, out_dir: Path, progress: Progress | None) -> None:
    if progress is not None:
        progress(0, 0)
    source = open_gguf(file)
    # First: of another architecture one wants to read its name, not that of a tensor.
    require_supported(source)
    table = tensor_table(source)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(out_dir)
    partial = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    try:
        _write_folder(source, table, partial)
        _publish(partial, out_dir, lambda: is_current(out_dir, file))
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_folder(source: GgufFile, table: dict[str, StoredTensor], folder: Path) -> None:
    config = model_config(
        source,
        tied="lm_head.weight" not in table,
        vocab_size=table["model.embed_tokens.weight"].shape[0],
    )
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(source))
    write_tokenizer(source, folder)
    GgufRecord(source.path.resolve(), fingerprint(source.path), table).write(folder)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_safetensors(path: Path, tensors: GgufTensors, progress: Progress | None) -> None:
    """Streams the tensors after the header that the safetensors format puts in front of them."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.table.items():
        start, end = end, end + 4 * math.prod(tensor.shape)
        shape = list(tensor.shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    done = 0
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors.table.items():
            num_rows, row_bytes = tensor.shape[0], 4 * math.prod(tensor.shape[1:])
            step = max(1, _CHUNK_BYTES // row_bytes)
            for first in range(0, num_rows, step):
                chunk = np.ascontiguousarray(tensors.floats(name, first, first + step), "<f4")
                file.write(chunk.data)
                done += chunk.nbytes
                if progress is not None:
                    progress(done, end)


def _publish(partial: Path, target: Path, is_there: Callable[[], bool]) -> None:
    try:
        os.rename(partial, target)
    except OSError:
        # Another process was faster: what it made serves as well as ours.
        if not is_there():
            raise


def _remove_abandoned(target: Path) -> None:
    for sibling in target.parent.glob(f".{target.name}.*"):
        if time.time() - sibling.stat().st_mtime > _ABANDONED_SECONDS:
            if sibling.is_dir():
                shutil.rmtree(sibling, ignore_errors=True)
            else:
                sibling.unlink(missing_ok=True)
