"""The scheduler over a model of your own: implement `Runner`, keep everything else.

The "model" here continues a text with the letter that most often follows in a few sentences. It has
no KV cache, so it remembers each slot's token instead; what a real model reads through the row
table, this one does too.
"""

from collections import Counter, defaultdict

import numpy as np
import numpy.typing as npt

from phloem.mem_pool import CacheManager, RowTable, TokenAllocator
from phloem.radix_cache import RadixCache
from phloem.scheduler import (
    ModelWorkerBatch,
    NormalLoop,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    StepResult,
    TokenMasks,
)

TEXT = "the river runs to the sea. the sea is wide and the river is long. " * 3
ORDER = 4


class LetterRunner:
    """Continues by the letters that follow the last four, greedily."""

    def __init__(self, row_table: npt.NDArray[np.int32], num_slots: int) -> None:
        self._row_table = row_table
        self._tokens = np.zeros(num_slots, np.int32)
        self._follows: dict[str, Counter[str]] = defaultdict(Counter)
        for i in range(len(TEXT) - ORDER):
            self._follows[TEXT[i : i + ORDER]][TEXT[i + ORDER]] += 1

    def forward(self, batch: ModelWorkerBatch) -> ModelWorkerBatch:
        """Store the new tokens in their slots; the step is the batch itself."""
        self._tokens[batch.out_slots] = batch.input_ids
        return batch

    def sample(self, step: ModelWorkerBatch, masks: TokenMasks | None) -> None:
        """Nothing to enqueue: `result` does the work."""

    def result(self, step: ModelWorkerBatch) -> StepResult:
        """One token for each row that samples."""
        tokens = []
        for row, length in zip(step.rows[step.samples], step.seq_lens[step.samples], strict=True):
            history = self._tokens[self._row_table[row, :length]]
            ending = "".join(map(chr, history[-ORDER:]))
            (letter, _), *_ = self._follows[ending].most_common(1) or [(" ", 1)]
            tokens.append(ord(letter))
        return StepResult(np.array(tokens, np.int32), step.samples.astype(np.int32))


def main() -> None:
    """Two requests that share a prefix, batched together."""
    config = SchedulerConfig(context_len=256, vocab_size=128)
    slots = TokenAllocator(1024)
    manager = CacheManager(RadixCache(), RowTable(config.max_running_requests, 256), slots)
    scheduler = Scheduler(config, manager)
    loop = NormalLoop(scheduler, LetterRunner(manager.rows.table, slots.num_slots))
    prompts = {"a": "the river r", "b": "the river i"}
    for rid, prompt in prompts.items():
        scheduler.add(rid, [ord(c) for c in prompt], SamplingParams(max_new_tokens=20))
    texts = dict(prompts)
    while not loop.idle:
        for output in loop.step():
            texts[output.rid] += "".join(map(chr, output.token_ids))
    for text in texts.values():
        print(text)


if __name__ == "__main__":
    main()
