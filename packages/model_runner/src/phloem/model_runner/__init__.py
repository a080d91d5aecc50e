"""Models, weights and sampling for LLM inference; runs the batches that a scheduler makes.

`resolve_model` finds a model, `load_model` makes it of its folder, `ModelRunner` runs batches on
it. Each name is loaded when it is first asked for: finding a model needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phloem.model_runner.config import ModelConfig
    from phloem.model_runner.gguf_file import ModelSourceError
    from phloem.model_runner.loader import load_model
    from phloem.model_runner.models import LlamaModel
    from phloem.model_runner.runner import ModelRunner, RunnerStep
    from phloem.model_runner.sources import ModelFolder, pull_model, resolve_model

__all__ = [
    "LlamaModel",
    "ModelConfig",
    "ModelFolder",
    "ModelRunner",
    "ModelSourceError",
    "RunnerStep",
    "load_model",
    "pull_model",
    "resolve_model",
]

_MODULES = {
    "LlamaModel": "models",
    "ModelConfig": "config",
    "ModelFolder": "sources",
    "ModelRunner": "runner",
    "ModelSourceError": "gguf_file",
    "RunnerStep": "runner",
    "load_model": "loader",
    "pull_model": "sources",
    "resolve_model": "sources",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
