"""Short probes of a running server, from which the simulator's cost model can be fitted.

Each isolates a part of a step: lone prompts of several lengths (prefill), short questions after
long cached prompts (attention to what is cached), and some requests that decode at once, after
short and long prompts. Owns what is sent and how times are read off the answers.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

from phloem.server.bench.fitting import Observation, Work, prefill_work
from phloem.server.bench.runner import Client
from phloem.server.bench.workloads import Conversation, TextMaker
from phloem.server.streamed_answer import Answer, Clock

_DECODED = (32, 128, 512)
"""Tokens that a decode probe asks of each request; more where fewer came too much at once, as those
of a quick server do to a client whose machine is busy."""

Progress = Callable[[Observation], None]


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What to probe; lengths count tokens."""

    longest: int = 1024
    """Longest prompt."""
    at_once: int = 16
    """Most requests that decode at once."""
    repeats: int = 3
    chunk: int = 512
    """The server's chunked prefill size."""

    @property
    def lengths(self) -> list[int]:
        """Prompt lengths: the longest, and fractions of it."""
        return [n for n in (self.longest // 16, self.longest // 4, self.longest) if n >= 8]

    @property
    def batches(self) -> list[int]:
        """How many requests decode at once."""
        sizes = {1, max(self.at_once // 4, 1), max(self.at_once // 2, 1), self.at_once}
        return sorted(sizes)


class Prober:
    """Asks a server and notes how long things take."""

    def __init__(
        self,
        client: Client,
        make: TextMaker,
        plan: ProbePlan,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._client = client
        self._make = make
        self._plan = plan
        self._clock = clock
        self._texts = count()

    async def run(self, progress: Progress) -> list[Observation]:
        """All probes, one after the other, and again; of each the one that took the median time,
        which a disturbance does not move.

        Raises:
            RuntimeError: a request failed, or the answers came too much at once to be told apart.
        """
        seen: dict[str, list[Observation]] = {}
        for _ in range(self._plan.repeats):
            for probe in self._probes():
                observation = await probe
                progress(observation)
                seen.setdefault(observation.probe, []).append(observation)
        return [
            sorted(each, key=lambda o: o.seconds)[(len(each) - 1) // 2] for each in seen.values()
        ]

    def _probes(self) -> Iterator[Coroutine[Any, Any, Observation]]:
        for length in self._plan.lengths:
            yield self._prefill(length)
            yield self._extend(length)
        for at_once in self._plan.batches:
            for length in (self._plan.lengths[0], self._plan.lengths[-1]):
                yield self._decode(at_once, length)

    async def _prefill(self, length: int) -> Observation:
        """A prompt that nothing is cached of."""
        answer = await self._ask(self._text(length), 1)
        return self._first_token(f"prefill {length}", answer)

    async def _extend(self, cached: int) -> Observation:
        """A short question after a long prompt that was asked before."""
        before = self._text(cached)
        await self._ask(before, 1)
        answer = await self._ask(before + self._text(32), 1)
        return self._first_token(f"extend {cached} by 32", answer)

    def _first_token(self, probe: str, answer: Answer) -> Observation:
        prompt, cached = answer.prompt_tokens or 0, answer.cached_tokens or 0
        work = prefill_work(prompt - cached, cached, self._plan.chunk)
        return Observation(probe, answer.arrivals[0], work)

    async def _decode(self, at_once: int, length: int) -> Observation:
        """Requests that decode at once; their prompts are cached, so that they begin together."""
        prompts = [self._text(length) for _ in range(at_once)]
        for prompt in prompts:
            await self._ask(prompt, 1)
        probe = f"decode {at_once} after {length}"
        for tokens in _DECODED:
            answers, times = await self._ask_all(prompts, tokens)
            seconds = _step_seconds(answers, times)
            if seconds > 0:
                before = statistics.mean(answer.prompt_tokens or 0 for answer in answers)
                context = at_once * (before + tokens / 2)
                return Observation(
                    probe, seconds, Work(1, decode_row=at_once, decode_context=context)
                )
        raise RuntimeError(f"probe {probe!r}: the tokens came too much at once to be told apart")

    async def _ask_all(
        self, prompts: list[str], tokens: int
    ) -> tuple[list[Answer], list[list[float]]]:
        """The answers, and when the pieces of each came, all by one clock."""

        async def ask(prompt: str) -> tuple[Answer, list[float]]:
            sent = self._clock()
            answer = await self._ask(prompt, tokens)
            return answer, [sent + arrival for arrival in answer.arrivals]

        timed = await asyncio.gather(*map(ask, prompts))
        return [answer for answer, _ in timed], [times for _, times in timed]

    async def _ask(self, prompt: str, max_tokens: int) -> Answer:
        answer = await self._client.ask(prompt, Conversation((prompt,), max_tokens))
        if answer.error is not None:
            raise RuntimeError(f"a probe failed: {answer.error}")
        return answer

    def _text(self, length: int) -> str:
        """Text that no cache has seen."""
        return self._make.text(length, "fit", next(self._texts))


def _step_seconds(answers: list[Answer], times: list[list[float]]) -> float:
    """Mean time from a token to the next while all answers were coming; 0 if that cannot be told.

    `times` are those of each answer's pieces. The mean, since pieces that came in one read have one
    time.
    """
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    gaps = [
        (later - earlier) * len(answer.arrivals) / (answer.completion_tokens or 1)
        for answer, each in zip(answers, times)
        for earlier, later in pairwise(each)
        if begin <= earlier and later <= end
    ]
    return statistics.mean(gaps) if gaps else 0.0
