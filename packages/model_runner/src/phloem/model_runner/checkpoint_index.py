"""Which safetensors file of a model folder holds which tensor, as the folder's index states it.

Owns the reading of `model.safetensors.index.json`; opens no safetensors file and needs no torch.
"""

from __future__ import annotations

from pathlib import Path

from .gguf_file import ModelSourceError
from .settings import read_json_object

INDEX_FILE = "model.safetensors.index.json"


def read_weight_map(folder: Path) -> dict[str, str] | None:
    """The file name of each tensor, or None for a folder without an index.

    Raises `ModelSourceError` for an index that cannot be read, that names no tensors, or that names
    a file outside the folder.
    """
    path = folder / INDEX_FILE
    if not path.is_file():
        return None
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelSourceError(
            f"weight_map is {weight_map!r} in {path}: it must map the names of tensors to files; "
            "fetch the file again"
        )
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or set("/\\") & set(file):
            raise ModelSourceError(
                f"the file of {tensor!r} is {file!r} in {path}: it must be the name of a "
                ".safetensors file in the same folder; fetch the index again"
            )
    return weight_map
