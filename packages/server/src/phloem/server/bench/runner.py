"""Runs workloads against a server and gathers their figures.

Owns how many conversations are on their way at once, the order of runs, and their repetitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from phloem.server.bench.figures import Figures, summarize
from phloem.server.bench.workloads import Conversation, TextMaker, Workload, warm_up_workload
from phloem.server.streamed_answer import Answer, Clock

Progress = Callable[[str, int, Figures], None]
"""Told of each run: the name it goes under, its repetition, its figures."""


class Client(Protocol):
    """Asks a server."""

    async def ask(self, prompt: str, conversation: Conversation) -> Answer:
        """The answer to the next turn; one that failed has an `error`, and nothing is raised."""
        ...


async def run_workload(
    client: Client, workload: Workload, clock: Clock = time.perf_counter
) -> tuple[list[Answer], float]:
    """All answers, in the order in which they ended, and the seconds that it took."""
    slots = asyncio.Semaphore(workload.concurrency)
    answers: list[Answer] = []

    async def converse(conversation: Conversation) -> None:
        async with slots:
            said = ""
            for turn in conversation.turns:
                said += turn
                answer = await client.ask(said, conversation)
                answers.append(answer)
                said += answer.text

    start = clock()
    await asyncio.gather(*map(converse, workload.conversations))
    return answers, clock() - start


async def warm_up(client: Client, make: TextMaker) -> None:
    """Send a few short requests, so that nothing is measured that happens only once.

    Raises:
        RuntimeError: when the server answers none of them.
    """
    answers, _ = await run_workload(client, warm_up_workload(make))
    errors = [answer.error for answer in answers if answer.error is not None]
    if len(errors) == len(answers):
        raise RuntimeError(f"the server answered no request of the warm-up: {errors[0]}")


async def run_all(
    client: Client, workloads: Sequence[Workload], progress: Progress
) -> dict[str, list[Figures]]:
    """Run workloads, one after the other; the figures of each name, in order."""
    figures: dict[str, list[Figures]] = {}
    for workload in workloads:
        for name in (workload.name, workload.again):
            if name is None:
                continue
            answers, seconds = await run_workload(client, workload)
            structured = any(c.schema is not None for c in workload.conversations)
            runs = figures.setdefault(name, [])
            runs.append(summarize(answers, seconds, structured=structured))
            progress(name, len(runs), runs[-1])
    return figures
