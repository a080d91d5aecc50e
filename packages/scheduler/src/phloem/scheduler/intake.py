"""What a step produced, taken in: valid KV is committed, tokens are appended, ends are noticed.

Most rows of a decode get one token that nobody has to look at but for whether it ends its request:
these are taken in together. Prompts, rows that are watched or failed, and rows that got several
tokens or none are taken in one by one; so are those that a constraint holds for where it gives them
more tokens than one, or ends them. How a request ends is its caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from phloem.mem_pool import CacheManager
from phloem.scheduler.batch import BatchRow, ScheduleBatch, decode_row
from phloem.scheduler.decode_set import Decode
from phloem.scheduler.guide import ConstraintBroken, Guide
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

    def take_in_decode(self, decode: Decode, result: StepResult, alone: bool) -> bool:
        """The result of a step that only decodes, whose requests all go on with one token each that
        nobody looks at but for how it ends them, and constraints, which say which one it is: the
        short way of most steps. False, and nothing but constraints knows of it, if that is not so.

        `alone`: no other step is in flight.
        """
        members, table, tokens = decode.members, self._table, result.token_ids
        if not members.settled(table) or result.row_errors:
            return False
        # As lists: a first comparison of arrays takes longer than Python takes for a few numbers.
        counts, ids = result.counts.tolist(), tokens.tolist()
        if not counts.count(1) == len(counts) == len(ids) == len(members.requests):
            return False
        if members.followed:
            _follow(decode, [True] * len(ids), ids, alone)
            if len(decode.followed or ()) < len(members.followed):
                return False
            if decode.recut:
                tokens = np.array(ids, np.int32)
        if not members.leases.commit():
            self._manager.commit_rows(members.rows)
        table.land_decode(members.books, tokens)
        members.newest = tokens
        if decode.last or not members.stop_ids.isdisjoint(ids):
            over = table.ended(members.rows, decode.num_tokens, tokens)
            self._tell_all(members.requests, tokens, decode.num_tokens, over)
        else:
            self._tell(PlainTokens(members.requests, tokens, decode.num_tokens))
        return True

    def take_in(self, batch: ScheduleBatch, result: StepResult, ended: Bools, alone: bool) -> None:
        """All rows of a batch but those whose requests have `ended` (bool [B]) while it ran.

        `alone`: no other step is in flight.
        """
        results = RowResults(result)
        for i, row in enumerate(batch.chunks):
            if not ended[i]:
                self._take_in_row(row, results.row(i))
                if row.samples and (result.counts[i] != 1 or row.request.guide is not None):
                    self._table.unsettle()  # what follows may be in flight, and counts on one
        if batch.decode is None:
            return
        first, decode = len(batch.chunks), batch.decode
        decode.members.newest = None  # what was kept is of the step before
        alive = ~ended[first:]
        plain = alive & (result.counts[first:] == 1)
        for i in result.row_errors:
            if i >= first:
                plain[i - first] = False
        token_ids, ends = result.token_ids, results.ends[first:]
        if decode.members.watched is not None:
            if decode.followed is None:
                have_one, ids = plain.tolist(), token_ids.tolist()
                of_ends = zip(have_one, ends.tolist(), strict=True)
                last = [ids[end - 1] if one else -1 for one, end in of_ends]
                _follow(decode, have_one, last, alone)
            plain &= ~decode.members.watched
            plain[decode.followed] = True
            if decode.recut:
                token_ids = token_ids.copy()
                token_ids[ends[[*decode.recut]] - 1] = [*decode.recut.values()]
        if plain.all():
            newest = token_ids[len(token_ids) - len(plain) :]
            self._append_all(decode.members.requests, decode.members.rows, newest)
            return
        index = np.flatnonzero(plain)
        self._append_all(
            [decode.members.requests[i] for i in index.tolist()],
            decode.members.rows[index],
            token_ids[ends[index] - 1],
        )
        for i in np.flatnonzero(alive & ~plain).tolist():
            self._take_in_row(decode_row(decode, i), results.row(first + i))
            if not self._is_one_further(decode, i):
                self._table.unsettle()

    def _is_one_further(self, decode: Decode, i: int) -> bool:
        """Whether a row of a decode got one token, and the next step may go out as if all had."""
        members = decode.members
        request, row = members.requests[i], members.rows[i]
        guide = request.guide
        return (
            request.num_tokens == decode.num_tokens[i]
            and not self._table.waits[row]
            and not (guide is not None and guide.void)
        )

    def _append_all(self, requests: Sequence[Request], rows: Rows, tokens: Ints) -> None:
        """One token for each of some requests, which nobody looks at but for how they end."""
        self._manager.commit_rows(rows)
        num_tokens, over = self._table.append(rows, tokens)
        self._tell_all(requests, tokens, num_tokens, over)

    def _tell_all(
        self, requests: Sequence[Request], tokens: Ints, num_tokens: Ints, over: Bools
    ) -> None:
        """That each of some requests got a token, which ended those that are `over`."""
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
        request, guide = row.request, row.request.guide
        if guide is not None and guide.void:
            self._undo(row, guide)
            self._tell_of(request, *self._go_ahead(row, guide))
            return
        error = result.error if guide is None else guide.error or result.error
        if error is not None:
            self._fail(request, error)
            return
        self._manager.commit(row.lease, row.query_len)
        if result.prompt_logprobs is not None:
            request.add_prompt_logprobs(result.prompt_logprobs)
        try:
            taken, reason = self._append_row(row, guide, result.token_ids)
        except ConstraintBroken as broken:
            self._fail(request, str(broken))
            return
        if row.end == request.prefill_end and request.max_new_tokens == 0:
            if request.pooling is None:
                reason = FinishReason("length")
            elif result.embedding is None:
                self._fail(request, "the runner pools no hidden states: ask it for tokens only")
                return
            else:
                request.embedding = result.embedding
                reason = FinishReason("stop")
        if reason is None and row.end <= request.prefill_end and request.publish:
            self._manager.checkpoint(row.lease, request.tokens)
        wanted = request.params.top_logprobs is not None
        self._tell_of(request, taken, reason, result.logprobs[: len(taken)] if wanted else ())

    def _tell_of(
        self,
        request: Request,
        taken: Sequence[int],
        reason: FinishReason | None,
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> None:
        if reason is not None:
            self._end(request, reason, tuple(taken), logprobs)
        elif taken:
            self._tell(request.report(taken, logprobs))

    def _append_row(
        self, row: BatchRow, guide: Guide | None, token_ids: Sequence[int]
    ) -> tuple[list[int], FinishReason | None]:
        """Add the tokens that a row gives, up to the one that ends the request: which, and why it
        ended if it did.
        """
        request, taken, replaced = row.request, [], False
        for sampled in token_ids:
            token = sampled
            if guide is not None:
                left = request.max_new_tokens - request.num_output
                token = guide.take(sampled, request.params.stop_token_ids, left)
            taken.append(token)
            reason = self._append(request, token)
            if reason is not None:
                return taken, reason
            replaced = token != sampled
            if replaced or (guide is not None and guide.ahead):
                break  # what follows in this step did not reckon with it
        if guide is None or not taken:
            return taken, None
        if request.in_flight:
            guide.void = replaced
            self._table.waits[row.lease.row] = replaced or (guide.jumps and bool(guide.ahead))
            return taken, None
        more, reason = self._go_ahead(row, guide)
        return taken + more, reason

    def _undo(self, row: BatchRow, guide: Guide) -> None:
        """Take back a row that was computed with a token that was replaced meanwhile."""
        guide.void = False
        row.request.scheduled = row.start
        self._manager.trim(row.lease)

    def _go_ahead(self, row: BatchRow, guide: Guide) -> tuple[list[int], FinishReason | None]:
        """Add all tokens that are fixed ahead, where no step is in flight and the request may."""
        self._table.waits[row.lease.row] = False
        added: list[int] = []
        while guide.jumps and guide.ahead:
            added.append(guide.ahead.popleft())
            guide.jumped += 1
            reason = self._append(row.request, added[-1])
            if reason is not None:
                return added, reason
        return added, None

    def _append(self, request: Request, token: int) -> FinishReason | None:
        """Add a token; why it ended the request, if it did."""
        request.append(token)
        if request.first_token is None:
            request.first_token = self._clock()
        try:
            return finish_after_token(request, token, self._eos_token_ids)
        except ConstraintBroken as error:
            return FinishReason("error", message=str(error), status_code=500)
        except Exception as error:  # of a stop matcher: what it has seen cannot be relied on now
            message = f"looking for stop strings failed: {error}"
            return FinishReason("error", message=message, status_code=500)


def _follow(decode: Decode, have_one: Sequence[bool], tokens: list[int], alone: bool) -> None:
    """Let constraints take the tokens of rows of a decode, where there is one each and nothing
    more to it. `have_one` and `tokens` are by row: whether it got one token, and its last; where a
    constraint says that it is another one, that stands in `tokens` then.
    """
    decode.followed = []
    for i, request, guide in decode.members.followed:
        token = guide.follow(tokens[i], request, alone) if have_one[i] else None
        if token is None:
            continue
        decode.followed.append(i)
        if token != tokens[i]:
            tokens[i] = decode.recut[i] = token
