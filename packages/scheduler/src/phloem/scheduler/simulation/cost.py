"""How long a step takes: a linear model of what is in it.

    seconds = step + prefill_token x T + prefill_pair x P + decode_row x B + decode_context x C

with T prompt tokens that attend to P tokens in all, and B decodes over C tokens of context. Owns
the formula, its JSON form, and presets; it is fitted to a server by `phloem bench fit`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a step by what it computes.

    Raises:
        ValueError: for a negative or infinite value, or a step that takes no time at all.
    """

    step: float
    """Any step: launching it, reading the weights once."""
    prefill_token: float = 0.0
    """Each prompt token."""
    prefill_pair: float = 0.0
    """Each prompt token and token that it attends to."""
    decode_row: float = 0.0
    """Each request that decodes."""
    decode_context: float = 0.0
    """Each token whose KV a decode reads."""
    request: float = 0.0
    """Each request, outside of steps (HTTP, tokenization); counts to its TTFT, delays no step."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise ValueError(f"{field.name} is {value!r}: give seconds, 0 or more")
        if self.step == 0:
            raise ValueError("step is 0: a step takes some time, give more than 0")

    def seconds(self, query_lens: npt.NDArray[np.int32], seq_lens: npt.NDArray[np.int32]) -> float:
        """What one step takes. A row with one query token counts as a decode.

        Args:
            query_lens: int32 [B], as in `ModelWorkerBatch`.
            seq_lens: int32 [B]
        """
        decodes = query_lens == 1
        rows = int(decodes.sum())
        context = int(seq_lens[decodes].sum())
        prefill = 0.0
        if rows < len(query_lens):
            queries = query_lens[~decodes].astype(np.int64)
            # Query i of q attends to all tokens before it and to itself.
            pairs = int((queries * (2 * seq_lens[~decodes] - queries + 1)).sum()) / 2
            prefill = self.prefill_token * int(queries.sum()) + self.prefill_pair * pairs
        return self.step + prefill + (self.decode_row * rows + self.decode_context * context)

    def decode_seconds(self, rows: int, context: int, steps: int) -> npt.NDArray[np.float64]:
        """[steps] what each of some decode steps takes, the same requests in all of them.

        Exactly what `seconds` gives for each. `context` is that of the first; it grows by `rows`
        with each step.
        """
        contexts = context + rows * np.arange(steps, dtype=np.float64)
        return self.step + (self.decode_row * rows + self.decode_context * contexts)

    def as_dict(self) -> dict[str, float]:
        """The fields, as JSON has them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Any) -> CostModel:
        """A model from its JSON form.

        Raises:
            ValueError: naming what is wrong.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(given, dict) or "step" not in given:
            raise ValueError(f"a cost model is an object with {', '.join(names)}; step is needed")
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is unknown: known are {', '.join(names)}")
        return cls(**given)


def load_cost_model(name: str) -> CostModel:
    """A preset by its name, or a model from a JSON file (`phloem bench fit` writes such).

    Raises:
        ValueError: there is no such preset or file, or the file has no cost model.
    """
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if not path.is_file():
        raise ValueError(
            f"there is no cost model {name!r}: name a JSON file or one of {', '.join(PRESETS)}"
        )
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        # What `bench fit` writes has the model among the residuals.
        return CostModel.from_dict(given.get("cost_model", given))
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{name} has no cost model: {error}") from error


def roofline(
    *,
    parameters: float,
    layers: int,
    width: int,
    kv_width: int,
    bytes_per_value: float,
    flops: float,
    bandwidth: float,
    launch: float = 1e-3,
) -> CostModel:
    """A first guess of a dense transformer on a machine, from its data sheet.

    Every step reads the weights once; a prompt token costs 2 operations a parameter, an attended
    pair 4 x `width` a layer, at half of the peak; KV is read at 0.8 of the bandwidth, like the
    weights. Rows of a decode cost their operations, too. Real machines overlap these and have other
    costs: measure, where it matters.

    Args:
        width: query heads x head size.
        kv_width: KV heads x head size.
        flops: operations a second; `bandwidth`: bytes a second.
        launch: seconds of a step that nothing else explains.
    """
    compute, read = 0.5 * flops, 0.8 * bandwidth
    token = 2 * parameters / compute
    return CostModel(
        step=launch + parameters * bytes_per_value / read,
        prefill_token=token,
        prefill_pair=4 * layers * width / compute,
        decode_row=token,
        decode_context=2 * layers * kv_width * bytes_per_value / read,
    )


_8B: dict[str, Any] = {"parameters": 8.03e9, "layers": 32, "width": 4096, "kv_width": 1024}
_BF16 = 2.0

PRESETS: dict[str, CostModel] = {
    "a100-8b": roofline(**_8B, bytes_per_value=_BF16, flops=312e12, bandwidth=2.0e12),
    "h100-8b": roofline(**_8B, bytes_per_value=_BF16, flops=989e12, bandwidth=3.35e12),
    "h200-8b": roofline(**_8B, bytes_per_value=_BF16, flops=989e12, bandwidth=4.8e12),
}
"""Cost models by name. Those of GPUs are calculated for Llama 3.1 8B in bf16 (see `roofline`)."""
