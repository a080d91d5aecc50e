"""Conversations over one system prompt, with and without the prefix cache: the same answers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from batch_runner import BatchRunner
from batch_scheduler import BatchScheduler, Request
from paged_model import VOCABULARY, PagedModel

from phloem.radix_cache.adapters.block_manager import KVCacheManager

BLOCKS, BLOCK_SIZE = 30, 8
ADAPTERS = (None, None, "legal")


@dataclass(frozen=True)
class Report:
    """The answers of a run, and what they cost."""

    answers: dict[str, list[int]]
    computed: int
    steps: int
    looked_up: int
    found: int
    preemptions: int
    moved: int
    evicted: int

    def line(self) -> str:
        """One line for people."""
        return (
            f"{self.found / self.looked_up if self.looked_up else 0:.0%} of the tokens looked up "
            f"were cached; {self.computed} tokens computed in {self.steps} steps, "
            f"{self.preemptions} preemptions, {self.evicted} tokens evicted, "
            f"{self.moved} tables moved to shared blocks"
        )


def converse(*, caching: bool, spoil: bool = False) -> Report:
    """Six conversations of three turns, all of a turn at once, in a pool too small for all.

    With `spoil`, the runner's table of the first request gets one wrong block, to show that it
    would be noticed.
    """
    manager = KVCacheManager(BLOCKS, BLOCK_SIZE, enable_caching=caching)
    scheduler = BatchScheduler(manager, max_seqs=4, max_step_tokens=40)
    runner = BatchRunner(PagedModel(BLOCKS, BLOCK_SIZE))
    say = random.Random(3)
    system = [say.randrange(VOCABULARY) for _ in range(45)]
    histories = [list(system) for _ in range(6)]
    answers: dict[str, list[int]] = {}
    steps = 0
    for turn in range(3):
        # The first two ask the same, so that both compute it before either is cached.
        asked = [[say.randrange(VOCABULARY) for _ in range(10)] for _ in range(5)]
        requests = []
        for who, (history, question) in enumerate(zip(histories, [asked[0], *asked])):
            history += question
            lora = ADAPTERS[who % len(ADAPTERS)]
            requests.append(Request(f"turn {turn} of {who}", list(history), 20, lora))
            scheduler.add(requests[-1])
        while scheduler.has_work:
            plan = scheduler.schedule()
            if spoil and steps == 2:
                runner.tables[requests[0].request_id][1] = BLOCKS - 1
            scheduler.update(plan, runner.run(plan))
            manager.check_integrity()
            steps += 1
        for history, request in zip(histories, requests):
            history += request.output
            answers[request.request_id] = request.output
    stats = manager.make_prefix_cache_stats()
    return Report(
        answers=answers,
        computed=runner.computed_tokens,
        steps=steps,
        looked_up=stats.queries,
        found=stats.hits,
        preemptions=scheduler.preemptions,
        moved=scheduler.moved_tables,
        evicted=manager.cache.stats.evicted_tokens,
    )


def main() -> None:
    """Run both, compare, and show that the comparison can fail."""
    without = converse(caching=False)
    cached = converse(caching=True)
    print("cache off:", without.line())
    print("cache on: ", cached.line())
    print("equal answers:", without.answers == cached.answers, f"({len(cached.answers)} requests)")
    spoiled = converse(caching=True, spoil=True)
    print("equal answers with one wrong block:", spoiled.answers == cached.answers)


if __name__ == "__main__":
    main()
