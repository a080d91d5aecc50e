"""What a decoder may offer for the commonest of all steps, beside its general way.

Owns the Protocol alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from phloem.kernels.base import GreedyTokens, KVCache


class GreedySteps(Protocol):
    """Steps in which each row wants the likeliest token behind those that it computes.

    Bit for bit what `Decoder` gives, without its tensors and plans, which take as long as several
    layers where a batch is small. One step at a time: `run`, then the ways to its tokens.
    """

    def run(
        self,
        row_table: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        query_lens: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        input_ids: npt.NDArray[np.int32],
        out_slots: npt.NDArray[np.int32],
        kv: KVCache,
        choose: bool = False,
    ) -> bool:
        """Run the layers. The arguments are `Ops.plan_attention`'s and `Decoder.forward`'s, but
        that the layers of `kv` are not asked for again while it is the same as in the step before:
        who has to wait for them has waited.

        With `choose` the tokens are found in the same go, so that `tokens` without bits only hands
        them over.

        False, and nothing was done, if this is no step that can be run so: an id is negative, the
        arrays do not fit each other or the table, or the cache cannot be read.
        """
        ...

    def tokens(self, bits: npt.NDArray[np.int32] | None = None) -> npt.NDArray[np.int32] | None:
        """The likeliest tokens `[B]`, with `bits` as `Decoder.greedy` has them; None if there is
        none in some row: see `found` then.
        """
        ...

    def found(self) -> GreedyTokens:
        """The same with what is wrong in which row, after `tokens`; good until the next step."""
        ...
