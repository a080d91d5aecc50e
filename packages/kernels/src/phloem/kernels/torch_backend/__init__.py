"""The reference backend: every op in plain torch, on whatever device the tensors are."""

from phloem.kernels.torch_backend.ops import TorchOps

__all__ = ["TorchOps"]
