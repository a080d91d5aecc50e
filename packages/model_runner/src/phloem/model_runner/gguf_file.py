"""Opening a GGUF file: its metadata, its tensors and a fingerprint of its content.

Owns the checks that say whether a file can be read at all, and the errors that the modules about
where a model comes from raise. What the metadata mean is the business of `gguf_config`,
`gguf_convert` and `tokenizer_files`. The `gguf` package is loaded only when a file is opened,
because a start from an already converted folder does not need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf import ReaderTensor

MAGIC = b"GGUF"

_HEAD_BYTES = 16 << 20
_SAMPLE_BYTES = 4096
_SAMPLES = 256


class ModelSourceError(ValueError):
    """No usable model: it is absent, damaged or of a kind that is not supported."""


class GgufError(ModelSourceError):
    """A GGUF file that cannot be read or converted."""


@dataclass(frozen=True)
class GgufFile:
    """An open GGUF file. `tensors` are views of the mapped file, in file order."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[ReaderTensor, ...]

    def require(self, key: str) -> Any:
        """The metadata value at `key`; raises `GgufError` when the file has none."""
        if key not in self.metadata:
            raise GgufError(
                f"{self.path.name} has no metadata key {key}, which the conversion needs: "
                "get a file written by a current llama.cpp converter"
            )
        return self.metadata[key]


def require_gguf(path: Path) -> None:
    """Raises `GgufError` unless `path` starts like a GGUF file."""
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        raise GgufError(
            f"{path} is not a GGUF file (it starts with {start!r}, not {MAGIC!r}): "
            "give a .gguf file or a folder with config.json and safetensors"
        )


def open_gguf(path: Path) -> GgufFile:
    """Maps the file and reads its metadata (seconds for a large vocabulary)."""
    from gguf import GGUFReader

    require_gguf(path)
    try:
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise GgufError(
            f"{path} cannot be read as GGUF ({error}): it is damaged, incomplete or newer than the "
            "installed gguf package; get it again, or upgrade gguf"
        ) from error
    if metadata.get("split.count", 1) > 1:
        raise GgufError(
            f"{path.name} is one of {metadata['split.count']} parts of a split GGUF, which is not "
            "supported: join the parts with llama.cpp's gguf-split --merge"
        )
    return GgufFile(path, metadata, tuple(reader.tensors))


def fingerprint(path: Path) -> str:
    """A SHA-256 over the size, the first 16 MiB and 256 evenly spaced blocks of 4 KiB.

    The head holds metadata and tensor table, the blocks tell apart two fine-tunes that share them.
    It takes milliseconds where a hash of the whole file takes seconds, and unlike a time stamp it
    survives a copy or a reinstallation.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_HEAD_BYTES))
        step = max(_SAMPLE_BYTES, (size - _HEAD_BYTES) // _SAMPLES)
        for offset in range(_HEAD_BYTES, size, step):
            file.seek(offset)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
