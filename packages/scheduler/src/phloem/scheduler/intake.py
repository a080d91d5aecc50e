"""What a step produced, taken in: valid KV is committed, tokens are appended, ends are noticed.

Most rows of a decode get one token that nobody has to look at but for whether it ends its request:
these are taken in together. Prompts, rows that are watched or failed, and rows that got several
tokens or none are taken in one by one. How a request ends is its caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from phloem.mem_pool import CacheManager
from phloem.scheduler.batch import BatchRow, ScheduleBatch
from phloem.scheduler.news import PlainTokens
from phloem.scheduler.ports import StepResult
from phloem.scheduler.request import FinishReason, Request, RequestOutput, TokenLogprob
from phloem.scheduler.results import RowResult, RowResults
from phloem.scheduler.stops import finish_after_token
from phloem.scheduler.table import Bools, Ints, RequestTable, Rows


class End(Protocol):
    """Ends a request, with the tokens that it got last."""

    def __call__(
        self,
        request: Request,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> None:
        """See above."""
        ...


class ResultIntake:
    """Takes in the results of steps, one after the other."""

    def __init__(
        self,
        manager: CacheManager,
        table: RequestTable,
        eos_token_ids: Sequence[int],
        clock: Callable[[], float],
        tell: Callable[[RequestOutput | PlainTokens], None],
        end: End,
        fail: Callable[[Request, str], None],
    ) -> None:
        self._manager = manager
        self._table = table
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._tell = tell
        self._end = end
        self._fail = fail

    def take_in(self, batch: ScheduleBatch, result: StepResult, ended: Bools) -> None:
        """All rows of a batch but those whose requests have `ended` (bool [B]) while it ran."""
        results = RowResults(result)
        for i, row in enumerate(batch.chunks):
            if not ended[i]:
                self._take_in_row(row, results.row(i))
        if batch.decode is None:
            return
        first, decode = len(batch.chunks), batch.decode
        alive = ~ended[first:]
        plain = alive & (result.counts[first:] == 1)
        if decode.members.watched is not None:
            plain &= ~decode.members.watched
        for i in result.row_errors:
            if i >= first:
                plain[i - first] = False
        if plain.all():
            tokens = result.token_ids[len(result.token_ids) - len(plain) :]
            self._append_all(decode.members.requests, decode.members.rows, tokens)
            return
        index = np.flatnonzero(plain)
        self._append_all(
            [decode.members.requests[i] for i in index.tolist()],
            decode.members.rows[index],
            result.token_ids[results.ends[first + index] - 1],
        )
        for i in np.flatnonzero(alive & ~plain).tolist():
            self._take_in_row(decode.row(i), results.row(first + i))

    def _append_all(self, requests: Sequence[Request], rows: Rows, tokens: Ints) -> None:
        """One token for each of some requests, which nobody looks at but for how they end."""
        self._manager.commit_rows(rows)
        num_tokens, over = self._table.append(rows, tokens)
        if over.any():
            for i in np.flatnonzero(over).tolist():
                request, token = requests[i], int(tokens[i])
                reason = finish_after_token(request, token, self._eos_token_ids)
                assert reason is not None, f"{request.rid} goes on after {token}"
                self._end(request, reason, (token,))
            on = np.flatnonzero(~over)
            requests = [requests[i] for i in on.tolist()]
            tokens, num_tokens = tokens[on], num_tokens[on]
        if len(requests):
            self._tell(PlainTokens(requests, tokens, num_tokens))

    def _take_in_row(self, row: BatchRow, result: RowResult) -> None:
        """What one row produced."""
        request = row.request
        if result.error is not None:
            self._fail(request, result.error)
            return
        self._manager.commit(row.lease, row.query_len)
        if result.prompt_logprobs is not None:
            request.add_prompt_logprobs(result.prompt_logprobs)
        taken, reason = self._append(request, result.token_ids)
        if row.end == request.prefill_end and request.max_new_tokens == 0:
            reason = FinishReason("length")
        wanted = request.params.top_logprobs is not None
        logprobs = result.logprobs[:taken] if wanted else ()
        if reason is not None:
            self._end(request, reason, result.token_ids[:taken], logprobs)
            return
        if row.end <= request.prefill_end and request.publish:
            self._manager.checkpoint(row.lease, request.tokens)
        if taken:
            self._tell(request.report(result.token_ids[:taken], logprobs))

    def _append(
        self, request: Request, token_ids: tuple[int, ...]
    ) -> tuple[int, FinishReason | None]:
        """Add tokens up to the one that ends the request: how many, and why it ended if it did."""
        for taken, token in enumerate(token_ids, start=1):
            request.append(token)
            if request.first_token is None:
                request.first_token = self._clock()
            reason = self._finish(request, token)
            if reason is not None:
                return taken, reason
        return len(token_ids), None

    def _finish(self, request: Request, token: int) -> FinishReason | None:
        try:
            return finish_after_token(request, token, self._eos_token_ids)
        except Exception as error:  # of a stop matcher: what it has seen cannot be relied on now
            message = f"looking for stop strings failed: {error}"
            return FinishReason("error", message=message, status_code=500)
