"""The way of sampled tokens into the next step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.model_runner.batch import Relayed


class Relay:
    """The token that was sampled last for each row of the row table, on the device.

    On a CPU it is read and written through numpy, which at a few elements costs a tenth of what
    torch's indexing does.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self._on_host = self._ids.numpy() if device.type == "cpu" else None

    def put(self, rows: npt.NDArray[np.int32], ids: Tensor) -> None:
        """Keep `ids` `[n]` int64 for `rows` `[n]`."""
        if self._on_host is not None:
            self._on_host[rows] = ids.numpy()
        else:
            self._ids[self._index(rows)] = ids

    @property
    def on_host(self) -> npt.NDArray[np.int64] | None:
        """int64 [rows], itself, to be written by who has tokens on a CPU; None: it is elsewhere."""
        return self._on_host

    def fill(self, input_ids: Tensor, relayed: Relayed) -> None:
        """Put relayed tokens in their places of `input_ids` `[T]` int64."""
        if self._on_host is not None:
            input_ids.numpy()[relayed.tokens] = self._on_host[relayed.rows]
        else:
            input_ids[self._index(relayed.tokens)] = self.newest(relayed.rows)

    def newest(self, rows: npt.NDArray[np.int32]) -> Tensor:
        """`[n]` int64, of `rows` `[n]`."""
        return self._ids[self._index(rows)]

    def _index(self, values: npt.NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self._ids.device)
