"""Errors that a caller may want to tell apart."""

from __future__ import annotations


class QueueFullError(RuntimeError):
    """No more requests may wait now.

    Attributes:
        retry_after: seconds after which there may be room.
        status_code: what an HTTP front end should answer: 429 where the caller's own requests take
            more than their share of the queue, else 503.
    """

    def __init__(self, what: str, retry_after: float, over_share: bool = False) -> None:
        whose = ", and yours take more than their share" if over_share else ""
        super().__init__(f"the queue is full: {what}{whose}; try again later")
        self.retry_after = retry_after
        self.status_code = 429 if over_share else 503


class ContextLengthError(ValueError):
    """A request that is longer than the engine can ever serve."""

    def __init__(self, prompt: int, new: int, context_len: int, capacity: int) -> None:
        super().__init__(
            f"the prompt has {prompt} tokens and at least {new} more were asked for, "
            f"{prompt + new} together: the context is {context_len} tokens and the KV cache holds "
            f"{capacity}, some of which admission keeps free; shorten the prompt or ask for fewer "
            "new tokens"
        )
        self.prompt = prompt
        self.new = new
        self.context_len = context_len
        self.capacity = capacity
