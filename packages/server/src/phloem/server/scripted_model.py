"""`model="scripted:FILE"`: chosen tokens instead of a model, with a real tokenizer.

Owns the file format. With it everything above the model can be driven deterministically: streaming,
stop strings, errors, a whole server.

The file is JSON:

    {
      "tokenizer": "smollm2",             a model (name or folder) whose tokenizer is used
      "context_length": 8192,             optional
      "pool_tokens": 65536,               optional: what the KV cache holds
      "step_ms": 50,                      optional: what a step takes at least, as a model's would
      "responses": [
        {"prompt": "Say hi", "output": "hi there"},
        {"messages": [{"role": "user", "content": "Hello"}], "output_ids": [28120, 2]},
        {"prompt_ids": [1, 2, 3], "distributions": [{"17": 0.5, "18": 0.5}]}
      ]
    }

After an output, and for a prompt that is not listed, comes the end of the text. The longest listed
prompt that a request begins with counts, so an empty `prompt_ids` answers everybody: its output is
read from the position where the request's own prompt ends.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phloem.scheduler.ports import StepResult
from phloem.scheduler.scripted import (
    Distribution,
    ScriptedResponses,
    ScriptedRunner,
)
from phloem.server.config import ServerArgs
from phloem.server.tokenizer import Tokenizer

SCRIPTED = "scripted:"

_FIELDS = {"tokenizer", "context_length", "pool_tokens", "step_ms", "responses"}
_PROMPTS = ("prompt", "prompt_ids", "messages")
_OUTPUTS = ("output", "output_ids", "distributions")


@dataclass(frozen=True)
class ScriptedModel:
    """What a script file says, with its texts as tokens."""

    tokenizer: Tokenizer
    tokenizer_folder: Path
    context_length: int
    pool_tokens: int
    eos_token_ids: tuple[int, ...]
    script: ScriptedResponses
    step_seconds: float = 0.0

    def runner(self, row_table: npt.NDArray[np.int32], num_slots: int) -> ScriptedRunner:
        """A runner of this script."""
        runner = (row_table, num_slots, self.script, self.tokenizer.vocab_size)
        if not self.step_seconds:
            return ScriptedRunner(*runner, remember=False)
        return _PacedRunner(self.step_seconds, *runner)


class _PacedRunner(ScriptedRunner):
    """Takes its time for each step."""

    def __init__(self, step_seconds: float, *runner: Any) -> None:
        super().__init__(*runner, remember=False)
        self._step_seconds = step_seconds
        self._last = -math.inf

    def result(self, step: Any) -> StepResult:
        """As the script says, but not before its time."""
        result = super().result(step)
        time.sleep(max(0.0, self._last + self._step_seconds - time.monotonic()))
        self._last = time.monotonic()
        return result


def load_scripted_model(args: ServerArgs) -> ScriptedModel:
    """Read the file that `args.model` names.

    Raises:
        ValueError: naming the file and what is wrong in it.
    """
    file = Path(args.model.removeprefix(SCRIPTED)).expanduser()
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the script {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the script {file} is no JSON: {error}") from error
    try:
        return _read(content, args)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the script {file}: {error}") from error


def _read(content: Any, args: ServerArgs) -> ScriptedModel:
    from phloem.model_runner.sources import resolve_model

    if not isinstance(content, dict):
        raise ValueError("the file holds no object")
    unknown = sorted(set(content) - _FIELDS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}: known are {', '.join(sorted(_FIELDS))}")
    folder = resolve_model(
        content.get("tokenizer", "smollm2"),
        cache_dir=args.cache_dir,
        offline=args.offline,
        float_weights=False,
    )
    tokenizer = Tokenizer.from_folder(folder.path)
    eos = tokenizer.eos_token_id
    if eos is None:
        raise ValueError(f"the tokenizer of {folder.name} names no end-of-text token")
    responses = [
        (_prompt(response, tokenizer), _output(response, tokenizer))
        for response in content.get("responses", [])
    ]
    return ScriptedModel(
        tokenizer=tokenizer,
        tokenizer_folder=folder.path,
        context_length=int(content.get("context_length", 8192)),
        pool_tokens=int(content.get("pool_tokens", 65536)),
        eos_token_ids=(eos,),
        script=ScriptedResponses(responses, eos),
        step_seconds=_step_seconds(content.get("step_ms", 0)),
    )


def _step_seconds(milliseconds: Any) -> float:
    seconds = float(milliseconds) / 1000
    if not 0 <= seconds < math.inf:
        raise ValueError(f"step_ms {milliseconds} is no time: give 0 or more")
    return seconds


def _one_of(response: Mapping[str, Any], names: Sequence[str]) -> tuple[str, Any]:
    given = [name for name in names if name in response]
    if len(given) != 1:
        raise ValueError(f"a response needs exactly one of {', '.join(names)}, not {given}")
    return given[0], response[given[0]]


def _prompt(response: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    name, value = _one_of(response, _PROMPTS)
    if name == "prompt":
        return tokenizer.encode(value)
    return tokenizer.encode_chat(value) if name == "messages" else [int(token) for token in value]


def _output(response: Mapping[str, Any], tokenizer: Tokenizer) -> list[int | Distribution]:
    name, value = _one_of(response, _OUTPUTS)
    if name == "output":
        return list(tokenizer.encode(value, add_special_tokens=False))
    if name == "output_ids":
        return [int(token) for token in value]
    return [{int(token): float(weight) for token, weight in step.items()} for step in value]
