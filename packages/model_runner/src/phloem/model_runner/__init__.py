"""Models, weights and sampling for LLM inference; runs the batches that a scheduler makes.

`load_model` makes a model of a folder, `ModelRunner` runs batches on it.
"""

from phloem.model_runner.config import ModelConfig
from phloem.model_runner.loader import load_model
from phloem.model_runner.models import LlamaModel
from phloem.model_runner.runner import ModelRunner, RunnerStep

__all__ = ["LlamaModel", "ModelConfig", "ModelRunner", "RunnerStep", "load_model"]
