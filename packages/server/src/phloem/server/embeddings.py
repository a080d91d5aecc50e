"""Pooled vectors as callers get them: of the length that they asked for, and shortened.

Owns what is done to a vector after the model has made it. Nothing here depends on other vectors,
so that each is what it would be alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phloem.server.messages import Finish, TextNews

Vector = npt.NDArray[np.float32]


class EmbeddingError(RuntimeError):
    """A prompt was not pooled: aborted, out of time, or failed. The message says why.

    Attributes:
        finish: how its request ended.
    """

    def __init__(self, finish: Finish) -> None:
        super().__init__(finish.message or f"the request ended by {finish.type}")
        self.finish = finish


def check_dimensions(dimensions: int | None, size: int) -> None:
    """Refuse to make vectors of `size` elements longer.

    Raises:
        ValueError: `dimensions` is more, or none at all.
    """
    if dimensions is not None and not 1 <= dimensions <= size:
        raise ValueError(
            f"dimensions is {dimensions}: give 1 to {size}, which is how many this model's "
            "vectors have"
        )


def embedding_of(news: TextNews, dimensions: int | None = None, normalize: bool = True) -> Vector:
    """The vector `[hidden]`, or `[dimensions]`, that a pooled prompt's only news have.

    Raises:
        EmbeddingError: they have none.
    """
    if news.embedding is None:
        raise EmbeddingError(news.finish or Finish("error"))
    return shaped(np.frombuffer(news.embedding, "<f4"), dimensions, normalize)


def shaped(vector: Vector, dimensions: int | None = None, normalize: bool = True) -> Vector:
    """The first `dimensions` elements of a vector, divided by their Euclidean length.

    A vector of zeros stays as it is.
    """
    kept = vector[:dimensions].astype(np.float64)
    length = float(np.linalg.norm(kept)) if normalize else 1.0
    shortened: Vector = (kept / (length or 1.0)).astype(np.float32)
    return shortened
