"""Sends workloads to a server that runs, with the load generator of `phloem bench serving`.

Owns what of an answer is kept: figures, and the texts for a comparison with those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from phloem.server.bench.client import LoadClient, Target
from phloem.server.bench.figures import Figures, summarize
from phloem.server.bench.runner import Client, run_workload, warm_up
from phloem.server.bench.workloads import Conversation, TextMaker, Workload, build
from phloem.server.streamed_answer import Answer

Texts = Mapping[str, str]
"""Answers by their prompts."""


class Watch(Protocol):
    """Sees who else uses the machine."""

    def stop(self) -> float:
        """How many cores' worth they used."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a workload."""

    name: str
    """Of the workload; the second run of a shared prefix has a name of its own."""
    figures: Figures
    texts: Texts
    others_cores: float
    """Cores' worth of CPU that somebody else used meanwhile."""


class Plan:
    """The workloads of all rounds: the same for every server, fresh in each round."""

    def __init__(self, make: TextMaker, requests: int | None = None) -> None:
        """With `requests`, only so many conversations of each workload."""
        self.make = make
        self._requests = requests

    def workload(self, name: str, round_number: int) -> Workload:
        """A workload of a round."""
        whole = build(name, self.make, round_number)
        return replace(whole, conversations=whole.conversations[: self._requests])


async def measure(
    target: Target,
    plan: Plan,
    workloads: Sequence[Workload],
    watch: Callable[[], Watch],
    done: Callable[[Measured], None],
) -> None:
    """Warm a server up and run workloads; `done` is told of each run when it ends.

    `watch` begins to watch who else uses the machine.

    Raises:
        RuntimeError: the server answers nothing at all.
    """
    async with LoadClient.open(target, plan.make.encode) as client:
        await warm_up(client, plan.make)
        for workload in workloads:
            for name in filter(None, (workload.name, workload.again)):
                keeping = _Keeping(client)
                others = watch()
                answers, seconds = await run_workload(keeping, workload)
                cores = others.stop()
                structured = any(c.schema is not None for c in workload.conversations)
                figures = summarize(answers, seconds, structured=structured)
                done(Measured(name, figures, keeping.texts, cores))


class _Keeping:
    """A client that keeps the texts of what was answered."""

    def __init__(self, client: Client) -> None:
        self.texts: dict[str, str] = {}
        self._client = client

    async def ask(self, prompt: str, conversation: Conversation) -> Answer:
        answer = await self._client.ask(prompt, conversation)
        if answer.error is None:
            self.texts[prompt] = answer.text
        return answer
