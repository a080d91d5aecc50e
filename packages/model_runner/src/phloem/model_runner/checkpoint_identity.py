"""What tells one checkpoint from another, for those who keep what was computed with it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from .gguf_record import GgufRecord

_SAMPLES = 64
_SAMPLE_BYTES = 64 << 10
_WEIGHTS = ".safetensors"


def checkpoint_identity(folder: str | os.PathLike[str]) -> str:
    """A word that differs when the config or the weights in a model's folder differ.

    It is equal in every process, and does not depend on where the folder is. Weights are not read
    whole, which would take as long as loading them: the beginning (names, shapes and dtypes) and
    samples all through the file count, with its size and the time of its last change. Of a folder
    made of a GGUF file it is the fingerprint of that file, whether or not its weights are in the
    folder too.

    What numbers are computed with the weights depends on more: see `choose_quantization`.
    """
    word = hashlib.sha256()
    path = Path(folder)
    record = GgufRecord.read(path)
    if record is not None:
        word.update(b"config" + (path / "config.json").read_bytes())
        word.update(b"gguf" + record.fingerprint.encode())
        return word.hexdigest()
    for file in sorted(path.iterdir()):
        if file.name == "config.json":
            word.update(b"config" + file.read_bytes())
        elif file.suffix == _WEIGHTS:
            stat = file.stat()
            word.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
            with file.open("rb") as weights:
                for i in range(_SAMPLES):
                    weights.seek(stat.st_size * i // _SAMPLES)
                    word.update(weights.read(_SAMPLE_BYTES))
    return word.hexdigest()
