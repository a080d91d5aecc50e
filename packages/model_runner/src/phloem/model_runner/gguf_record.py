"""What a converted folder remembers of its GGUF file: where it is, its content, its tensor table.

Owns the record's form and the check that the file is still the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .gguf_file import GgufError, fingerprint
from .gguf_tensors import FLOAT_KINDS, GgufTensors, StoredTensor

CONVERTER_VERSION = 2
"""Raised whenever the same file would convert to something else; older folders are then stale."""

RECORD_FILE = "phloem.json"


@dataclass(frozen=True, slots=True)
class GgufRecord:
    """The file that a folder was converted from."""

    file: Path
    """Where it was last seen."""
    fingerprint: str
    tensors: Mapping[str, StoredTensor]

    @property
    def is_quantized(self) -> bool:
        """Whether weights were rounded when the file was made."""
        return any(tensor.kind not in FLOAT_KINDS for tensor in self.tensors.values())

    @staticmethod
    def read(folder: Path) -> GgufRecord | None:
        """The record in `folder`; None if it is no conversion, or one of another version."""
        try:
            content = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
            if content["converter_version"] != CONVERTER_VERSION:
                return None
            tensors = {name: _stored(fields) for name, fields in content["tensors"].items()}
            return GgufRecord(Path(content["file"]), content["fingerprint"], tensors)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def write(self, folder: Path) -> None:
        """Put the record into `folder`, whole or not at all."""
        content = {
            "converter_version": CONVERTER_VERSION,
            "file": str(self.file),
            "fingerprint": self.fingerprint,
            "tensors": {name: asdict(tensor) for name, tensor in self.tensors.items()},
        }
        handle, partial = tempfile.mkstemp(prefix=f".{RECORD_FILE}.", dir=folder)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, ensure_ascii=False)
            os.replace(partial, folder / RECORD_FILE)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise

    def open(self) -> GgufTensors:
        """Map the file.

        Raises:
            GgufError: if it is gone or has changed.
        """
        try:
            same = fingerprint(self.file) == self.fingerprint
            tensors = GgufTensors(self.file, self.tensors) if same else None
        except OSError as error:
            raise GgufError(
                f"the weights are in {self.file}, which cannot be read ({error}): give the model's "
                "name or its .gguf file again, so that it is found anew"
            ) from error
        if tensors is None:
            raise GgufError(
                f"{self.file} has changed since it was converted: give the model's name or the "
                "file again, so that it is converted anew"
            )
        return tensors


def _stored(fields: Mapping[str, Any]) -> StoredTensor:
    return StoredTensor(**{**fields, "shape": tuple(fields["shape"])})
