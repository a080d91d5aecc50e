"""The worker's side: its own copy of tokens and block tables, kept by what each step sends."""

from __future__ import annotations

from batch_scheduler import StepPlan
from paged_model import PagedModel


class BatchRunner:
    """Runs planned steps. It never asks the scheduler or the manager anything."""

    def __init__(self, model: PagedModel) -> None:
        self._model = model
        self._tokens: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}
        self._loras: dict[str, str | None] = {}
        self.tables: dict[str, list[int]] = {}
        self.computed_tokens = 0

    def run(self, plan: StepPlan) -> dict[str, int]:
        """Compute a step; the next token of each request whose tokens are all computed now."""
        self._take(plan)
        sampled = {}
        for request_id, n in plan.num_tokens.items():
            tokens, start = self._tokens[request_id], self._computed[request_id]
            said = self._model.forward(
                tokens[start : start + n], start, self.tables[request_id], self._loras[request_id]
            )
            self._computed[request_id] = start + n
            self.computed_tokens += n
            if start + n == len(tokens):
                tokens.append(said)
                sampled[request_id] = said
        return sampled

    def _take(self, plan: StepPlan) -> None:
        for request_id in plan.leaving:
            del self._tokens[request_id], self._computed[request_id]
            del self._loras[request_id], self.tables[request_id]
        for request_id, entering in plan.entering.items():
            self._tokens[request_id] = list(entering.tokens)
            self._computed[request_id] = entering.start
            self._loras[request_id] = entering.lora_name
            self.tables[request_id] = list(entering.table)
        for request_id, blocks in plan.appended.items():
            self.tables[request_id] += blocks
        for request_id, table in plan.moved.items():
            self.tables[request_id] = list(table)
