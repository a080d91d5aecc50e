"""`POST /generate`: the engine's own results over HTTP, as `Engine.generate` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from phloem.server.http.errors import raise_if_failed
from phloem.server.http.sse import event
from phloem.server.jobs import Job
from phloem.server.messages import TextNews
from phloem.server.results import Result, ResultBuilder


class NativeForm:
    """Answers as the engine's result dicts.

    An aborted request has the result that it came to, whose `finish_reason` says so; one that
    failed is an error, unless it is one of several or the news of it is streamed.
    """

    def __init__(self, jobs: Sequence[Job], single: bool) -> None:
        self._builders = [ResultBuilder(job.prompt_ids, job.params) for job in jobs]
        self._single = single

    def chunk(self, index: int, news: TextNews) -> bytes:
        """What is new, as a result."""
        return event(self._builders[index].delta(news))

    def tail(self) -> bytes:
        """Nothing: the last result has the counts."""
        return b""

    def whole(self, outputs: Sequence[TextNews]) -> bytes:
        """A result, or the list of them."""
        if self._single and outputs[0].finish is not None and outputs[0].finish.type == "error":
            raise_if_failed(outputs[0].finish)
        results: list[Result] = [b.delta(news) for b, news in zip(self._builders, outputs)]
        content: Any = results[0] if self._single else results
        return msgspec.json.encode(content)
