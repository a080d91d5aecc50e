"""Models written for serving: plain classes over prepared weights, flat batches of tokens."""

from phloem.model_runner.models.base import ForwardBatch, WeightSource
from phloem.model_runner.models.llama import LlamaModel

__all__ = ["ForwardBatch", "LlamaModel", "WeightSource"]
