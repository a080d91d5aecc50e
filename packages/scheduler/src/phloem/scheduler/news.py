"""What requests hear of a step. Plain tokens stay arrays until somebody reads them one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from phloem.scheduler.request import Request, RequestOutput, Timings


@dataclass(slots=True)
class PlainTokens:
    """One token each for requests that go on and asked for nothing else; nobody changes it. (Not
    frozen, see `phloem.scheduler.ports`.)
    """

    requests: Sequence[Request]
    token_ids: npt.NDArray[np.int32]
    """[n]"""
    num_tokens: npt.NDArray[np.int32]
    """[n] prompt and output of each, this token included."""

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def rids(self) -> list[str]:
        """The ids of the requests."""
        return [request.rid for request in self.requests]

    def __iter__(self) -> Iterator[RequestOutput]:
        for request, token, num_tokens in zip(
            self.requests, self.token_ids.tolist(), self.num_tokens.tolist(), strict=True
        ):
            yield RequestOutput(
                rid=request.rid,
                token_ids=(token,),
                logprobs=(),
                finish_reason=None,
                prompt_tokens=request.num_prompt,
                completion_tokens=num_tokens - request.num_prompt,
                cached_tokens=request.cached_tokens or 0,
                retractions=request.retractions,
                timings=Timings(request.arrived, request.admitted, request.first_token),
                jump_forward_tokens=0 if request.guide is None else request.guide.jumped,
                brought=request.brought,
            )


class News(Sequence[RequestOutput]):
    """The news of some steps, in order, to be read before the next one.

    Iterating makes a `RequestOutput` of each. Who can do with arrays reads `parts` instead.
    """

    def __init__(self) -> None:
        self.parts: list[RequestOutput | PlainTokens] = []

    def settle(self) -> None:
        """Make all outputs now, before what they tell of their requests changes."""
        self.parts = list(self)

    def __len__(self) -> int:
        return sum(len(part) if isinstance(part, PlainTokens) else 1 for part in self.parts)

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __iter__(self) -> Iterator[RequestOutput]:
        for part in self.parts:
            if isinstance(part, PlainTokens):
                yield from part
            else:
                yield part

    @overload
    def __getitem__(self, index: int) -> RequestOutput: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[RequestOutput]: ...

    def __getitem__(self, index: int | slice) -> RequestOutput | Sequence[RequestOutput]:
        return list(self)[index]
