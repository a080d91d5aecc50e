"""The JSON files of a model folder: reading one, and its settings checked for type and range.

Owns the sentence that refuses a setting; which settings there are is the business of `config`. A
setting that is null counts as left out wherever it may be left out, as in transformers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gguf_file import ModelSourceError

MAX_SIZE = 2**31 - 1
"""Token ids, positions and slots are int32 throughout the engine."""


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file `path`; raises `ModelSourceError` where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelSourceError(f"{path} does not exist: a model folder needs this file") from None
    except OSError as error:
        raise ModelSourceError(f"{path} cannot be read ({error}): check the file") from error
    except (ValueError, RecursionError) as error:
        raise ModelSourceError(f"{path} is not JSON ({error}): fetch the file again") from error
    if not isinstance(content, dict):
        raise ModelSourceError(f"{path} holds no JSON object: fetch the file again")
    return content


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in one file; `file` is what sentences call it.

    Each reader raises `ModelSourceError` with the file, the setting, its value and the rule.
    """

    file: str
    values: Mapping[str, Any]

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number from 1 to `MAX_SIZE`; required unless there is a default."""
        value = self._value(name, default)
        if not _is_int(value) or not 1 <= value <= MAX_SIZE:
            raise self.refusal(name, f"it must be a whole number from 1 to {MAX_SIZE}")
        return int(value)

    def positive_number(self, name: str, default: float) -> float:
        """A finite number above 0. Null is refused, since it hides a value that matters."""
        value = self.values.get(name, default)
        if not (_is_int(value) or isinstance(value, float)) or not 0 < value <= sys.float_info.max:
            raise self.refusal(name, "it must be a number above 0")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.refusal(name, "it must be true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string, or None where it is left out."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.refusal(name, "it must be a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty where it is left out."""
        value = self._value(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refusal(name, "it must be a list of strings")
        return tuple(value)

    def token_id(self, name: str, vocab_size: int) -> int | None:
        """One id of the vocabulary, or None where it is left out."""
        value = self.values.get(name)
        if value is None:
            return None
        if not _is_token(value, vocab_size):
            raise self.refusal(name, f"it must be a token id from 0 to {vocab_size - 1}")
        return int(value)

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...] | None:
        """One id of the vocabulary or a list of them, or None where it is left out."""
        value = self.values.get(name)
        if value is None:
            return None
        ids = value if isinstance(value, list) else [value]
        if not all(_is_token(item, vocab_size) for item in ids):
            rule = f"it must be a token id from 0 to {vocab_size - 1}, or a list of such"
            raise self.refusal(name, rule)
        return tuple(ids)

    def refusal(self, name: str, rule: str) -> ModelSourceError:
        """The error that refuses the setting `name` for breaking `rule`."""
        given = f"is {self.values[name]!r}" if name in self.values else "is missing"
        return ModelSourceError(f"{name} {given} in {self.file}: {rule}")

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_token(value: Any, vocab_size: int) -> bool:
    return _is_int(value) and 0 <= value < vocab_size
