"""The requests of one step, and the flat arrays that a runner gets for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from phloem.mem_pool import Lease
from phloem.scheduler.decode_set import Decode
from phloem.scheduler.ports import (
    RELAYED,
    ModelWorkerBatch,
    PoolingRequest,
    PromptLogprobRequest,
)
from phloem.scheduler.request import Request
from phloem.scheduler.sampling import SamplingBatch, TokenHistory
from phloem.scheduler.table import Bools, Ints, RequestTable, Rows


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One request's share of a step: the tokens `[start, end)` of it are computed."""

    request: Request
    lease: Lease
    start: int
    end: int
    samples: bool
    """Whether the step yields the token at position `end`."""

    @property
    def query_len(self) -> int:
        """Tokens to compute."""
        return self.end - self.start


def decode_row(decode: Decode, i: int) -> BatchRow:
    """One request's share of a decode."""
    request, start = decode.members.requests[i], int(decode.starts[i])
    assert request.lease is not None, f"{request.rid} is running without a lease"
    return BatchRow(request, request.lease, start, start + 1, samples=True)


class ScheduleBatch:
    """The rows of one step: `chunks`, of prompts mostly, then `decode`; each in the order in which
    it was scheduled.
    """

    def __init__(self, chunks: Sequence[BatchRow], decode: Decode | None) -> None:
        self.chunks = chunks
        self.decode = decode
        self.rows: Rows
        """intp [B]"""
        self.samples: Bools
        """[B] whether each yields a token."""
        self.guided: Sequence[tuple[int, Request]]
        """Those that yield a token and that a constraint holds for, with their indices."""
        if decode is not None and not chunks:
            members = decode.members
            self.rows, self.samples, self.guided = members.rows, members.samples, members.guided
        else:
            self._gather()

    def _gather(self) -> None:
        chunks, decode = self.chunks, self.decode
        rows = np.array([row.lease.row for row in chunks], np.intp)
        samples = np.array([row.samples for row in chunks], np.bool_)
        guided = [
            (i, row.request)
            for i, row in enumerate(chunks)
            if row.samples and row.request.guide is not None
        ]
        if decode is not None:
            rows = np.concatenate((rows, decode.members.rows))
            samples = np.concatenate((samples, decode.members.samples))
            guided += [(len(chunks) + i, request) for i, request in decode.members.guided]
        self.rows, self.samples, self.guided = rows, samples, guided

    @property
    def ends(self) -> list[int]:
        """[B] where those tokens end that are computed."""
        ends = [row.end for row in self.chunks]
        return ends if self.decode is None else ends + self.decode.ends.tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[BatchRow]:
        yield from self.chunks
        if self.decode is not None:
            yield from (decode_row(self.decode, i) for i in range(len(self.decode)))


def to_worker_batch(
    batch: ScheduleBatch,
    table: RequestTable,
    row_table: npt.NDArray[np.int32],
    eos_token_ids: Sequence[int],
    relays: bool,
) -> ModelWorkerBatch:
    """A batch's flat form. Call it before the step counts as in flight (`pending` not yet raised).

    Args:
        batch: the batch.
        table: the state of its requests.
        row_table: int32 [max_rows, max_len], the slot of each position of each row.
        eos_token_ids: suppressed, with a row's own stop ids, below its `min_new_tokens`.
        relays: whether a step is in flight, whose tokens are not known yet.
    """
    chunks, decode = batch.chunks, batch.decode
    if decode is not None and not chunks:
        members, parameters = decode.members, decode.sampling
        arrays = _of_decode(decode, table, row_table, relays)
        if not members.shaped:  # most steps
            masked = bool(members.guided)
            return ModelWorkerBatch(*arrays, members.samples, parameters, masked=masked)
    else:
        arrays, parameters = _of_chunks(chunks, row_table), table.sampling.batch(batch.rows)
        if decode is not None:
            a, b, c, d, e = map(
                np.concatenate, zip(arrays, _of_decode(decode, table, row_table, relays))
            )
            arrays = a, b, c, d, e
    return ModelWorkerBatch(
        *arrays,
        samples=batch.samples,
        sampling=_sampling(parameters, arrays[2], _shaped(batch), eos_token_ids),
        prompt_logprobs=tuple(_prompt_logprobs(chunks)),
        pooling=tuple(_pooling(chunks)),
        masked=bool(batch.guided),
    )


_Arrays: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints]
"""The first fields of a `ModelWorkerBatch`: rows, query and sequence lengths, ids and slots."""


def _of_chunks(chunks: Sequence[BatchRow], row_table: npt.NDArray[np.int32]) -> _Arrays:
    return (
        np.array([c.lease.row for c in chunks], np.int32),
        np.array([c.query_len for c in chunks], np.int32),
        np.array([c.end for c in chunks], np.int32),
        np.concatenate([_input_ids(c) for c in chunks]),
        np.concatenate([row_table[c.lease.row, c.start : c.end] for c in chunks]),
    )


def _input_ids(row: BatchRow) -> Ints:
    known = row.request.tokens[row.start : row.end]
    missing = row.query_len - len(known)
    if not missing:
        return known
    return np.concatenate((known, np.full(missing, RELAYED, np.int32)))


def _of_decode(
    decode: Decode, table: RequestTable, row_table: npt.NDArray[np.int32], relays: bool
) -> _Arrays:
    members, starts, slots = decode.members, decode.starts, decode.slots
    if slots is None:
        slots = row_table[members.rows, starts]
        input_ids = table.tokens_at(members.rows, starts)
        if relays:
            input_ids[starts >= table.num_tokens[members.rows]] = RELAYED
    elif relays:  # all of them, since the step before went out last
        input_ids = members.relayed
    elif members.newest is None:
        input_ids = table.tokens_at(members.rows, starts)
    else:
        input_ids = members.newest
    return members.batch_rows, members.query_lens, decode.ends, input_ids, slots


def _shaped(batch: ScheduleBatch) -> Iterator[tuple[int, BatchRow]]:
    """The rows whose sampling may differ from step to step, with their indices in the batch."""
    yield from enumerate(batch.chunks)
    if batch.decode is not None:
        for i in batch.decode.members.shaped:
            yield len(batch.chunks) + i, decode_row(batch.decode, i)


def _sampling(
    parameters: SamplingBatch,
    positions: Ints,
    rows: Iterable[tuple[int, BatchRow]],
    eos_token_ids: Sequence[int],
) -> SamplingBatch:
    """The parameters, with the positions of this step and what `rows` need beyond that."""
    suppressed: list[tuple[int, Ints]] = []
    histories: list[TokenHistory] = []
    for i, row in rows:
        request, params = row.request, row.request.params
        if not row.samples:
            continue
        # With a constraint its mask says when the output may end.
        if request.guide is None and row.end - request.num_prompt < params.min_new_tokens:
            ids = dict.fromkeys((*eos_token_ids, *params.stop_token_ids))
            suppressed.append((i, np.fromiter(ids, np.int32, len(ids))))
        if params.has_penalties:
            # Copied: under overlap the request grows before the step reads this.
            output, pending = request.output_ids.copy(), request.num_tokens < row.end
            histories.append(TokenHistory(i, request.prompt_ids, output, pending))
    return replace(
        parameters,
        positions=positions,
        suppressed=tuple(suppressed),
        histories=tuple(histories),
    )


def _prompt_logprobs(chunks: Sequence[BatchRow]) -> Iterator[PromptLogprobRequest]:
    for i, row in enumerate(chunks):
        request = row.request
        first = request.prompt_logprobs_next
        if first is None or row.start >= request.num_prompt:
            continue
        first = max(first, row.start + 1)
        targets = request.prompt_ids[first : row.end + 1]
        if len(targets):
            yield PromptLogprobRequest(
                i, first - 1 - row.start, targets, request.params.top_logprobs or 0
            )


def _pooling(chunks: Sequence[BatchRow]) -> Iterator[PoolingRequest]:
    for i, row in enumerate(chunks):
        mode, complete = row.request.pooling, row.end == row.request.prefill_end
        if mode == "mean" or (mode == "last" and complete):
            yield PoolingRequest(i, mode, complete)
