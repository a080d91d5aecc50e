"""The state of the requests that hold memory, as arrays by row, for steps to change all at once.

A request that is let in gets a row of the manager's row table with its lease; here the same row
holds what the scheduler knows of it.

::

                    row 0    row 1    row 2    ...                     rows of the row table
    status          RUNNING  -        PREFILL      |
    num_tokens      9        -        500          |  one request's state is a column of these:
    pending         1        -        0            |  `Request.state` is a view of it
    scheduled       10       -        128          |
    in_flight       1        -        1            |
    end             40       -        700          where its output ends by length

    token_ids       [ prompt | output . . . . . . . . . . ]            row 0
                    [ . . . . . . . . . . . . . . . . . . ]            row 1: free, what was there
                    [ prompt . . . . . . . . . . . . | .  ]            row 2

It owns these arrays and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phloem.mem_pool import Lease
from phloem.scheduler.request import STATE, STATUSES, Request, Status, nothing_to_enter
from phloem.scheduler.sampling import SamplingRows

Rows = npt.NDArray[np.intp]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

RUNNING = STATUSES.index(Status.RUNNING)
FINISHED = STATUSES.index(Status.FINISHED)
_STOP_IDS = 8
"""Stop ids of a request that are looked for in all rows at once; who has more is looked at alone.
"""


_MOST_LANDED = 64
"""Steps whose tokens are kept before they are entered."""


class DecodeRows:
    """Rows that decode together, and what their steps did that is not entered yet.

    Between two steps all is cold, and each use of numpy takes as long as ten in a loop; so steps
    are counted here, and entered into the arrays of all rows once somebody reads these.

    Attributes:
        rows: intp [n].
        launched: steps that went out and are not entered.
        landed: int32 [n] each, the tokens of those that came back and are not entered.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.launched = 0
        self.landed: list[Ints] = []


class RequestTable:
    """Arrays by row; a row's entries mean something while a request holds it.

    What decodes did (`launch_decode`, `land_decode`) is entered when the arrays of it are read; an
    array that was read does not follow it: read it anew.

    Attributes:
        status: int32 [max_rows], see `Request`.
        end: int32 [max_rows], prompt and allowed output.
        ignores_eos: bool [max_rows].
        watched: bool [max_rows], results need Python for each token (stop strings, logprobs,
            constraints).
        only_guided: bool [max_rows], that is so for nothing but a constraint.
        priority: int64 [max_rows], the higher, the more urgent.
        shaped: bool [max_rows], batches need Python for the row (penalties, `min_new_tokens`).
        waits: bool [max_rows], not to be scheduled before its step in flight was processed.
        sampling: the sampling parameters by row.
        epoch: differs once a request came, left or ended, or got on otherwise than by decoding one
            token a step.
    """

    def __init__(self, max_rows: int, max_len: int, eos_token_ids: Sequence[int]) -> None:
        self._state = np.zeros((len(STATE), max_rows), np.int32)
        self.status, self._num_tokens, self._pending, self._scheduled, self._in_flight = self._state
        self.end = np.zeros(max_rows, np.int32)
        self.ignores_eos = np.zeros(max_rows, np.bool_)
        self.watched = np.zeros(max_rows, np.bool_)
        self.only_guided = np.zeros(max_rows, np.bool_)
        self.shaped = np.zeros(max_rows, np.bool_)
        self.waits = np.zeros(max_rows, np.bool_)
        max_len = max(max_len, 0)  # below that in a pool so small that it refuses everybody
        self.priority = np.zeros(max_rows, np.int64)
        self._token_ids = np.zeros((max_rows, max_len), np.int32)
        self.sampling = SamplingRows(max_rows)
        self.epoch = 0
        self._eos_token_ids = tuple(eos_token_ids)
        self._stop_ids = np.full((_STOP_IDS, max_rows), -1, np.int32)
        self._stop_ids_used = 0
        self._max_len = max_len
        self._flat = self._token_ids.reshape(-1)
        self._decoding: DecodeRows | None = None
        # In order of admission: a dict, since batch order must be deterministic.
        self._requests: dict[int, Request] = {}
        self._held = np.empty(0, np.intp)
        self._held_at = 0

    @property
    def num_tokens(self) -> Ints:
        """int32 [max_rows], see `Request`, as the following."""
        self.enter()
        return self._num_tokens

    @property
    def pending(self) -> Ints:
        """int32 [max_rows]."""
        self.enter()
        return self._pending

    @property
    def scheduled(self) -> Ints:
        """int32 [max_rows]."""
        self.enter()
        return self._scheduled

    @property
    def in_flight(self) -> Ints:
        """int32 [max_rows]."""
        self.enter()
        return self._in_flight

    @property
    def token_ids(self) -> Ints:
        """int32 [max_rows, max_len]."""
        self.enter()
        return self._token_ids

    def admit(self, request: Request, lease: Lease) -> None:
        """Give a request the row of its lease: its counts and tokens stand here from now on."""
        row, params, n = lease.row, request.params, request.num_tokens
        self._state[:, row] = request.state
        request.state = self._state[:, row]
        self._token_ids[row, :n] = request.tokens
        request.storage = self._token_ids[row]
        request.enter = self.enter
        request.lease = lease
        self.end[row] = request.num_prompt + request.max_new_tokens
        self.ignores_eos[row] = params.ignore_eos
        stop_ids = (*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids))
        few = len(stop_ids) <= _STOP_IDS
        self._stop_ids[:, row] = -1
        if few:
            self._stop_ids[: len(stop_ids), row] = stop_ids
            self._stop_ids_used = max(self._stop_ids_used, len(stop_ids))
        others = not few or request.stop_matcher is not None or params.top_logprobs is not None
        self.watched[row] = others or request.guide is not None
        self.only_guided[row] = self.watched[row] and not others
        self.shaped[row] = params.has_penalties or params.min_new_tokens > 0
        self.waits[row] = False
        self.priority[row] = request.priority
        self.sampling.put(row, params, request.seed)
        self._requests[row] = request
        self.epoch += 1

    def release(self, request: Request, lease: Lease) -> None:
        """Take its row from a request, whose counts and tokens are its own again."""
        request.storage = request.tokens.copy()
        request.state = request.state.copy()
        request.enter = nothing_to_enter
        request.lease = None
        del self._requests[lease.row]
        self.epoch += 1

    def unsettle(self) -> None:
        """What was found out of the rows before may not be so any more; see `epoch`."""
        self.epoch += 1

    @property
    def held(self) -> Rows:
        """intp [n], the rows that requests hold, in order of admission; the same array until
        `epoch` differs.
        """
        if self._held_at != self.epoch:
            self._held = np.fromiter(self._requests, np.intp, len(self._requests))
            self._held_at = self.epoch
        return self._held

    def request(self, row: int) -> Request:
        """Who holds a row."""
        return self._requests[row]

    def requests(self, rows: Rows) -> list[Request]:
        """Who holds these rows."""
        return list(map(self._requests.__getitem__, rows.tolist()))

    def length(self, rows: Rows) -> Ints:
        """Tokens known or being sampled, of these rows."""
        length: Ints = self.num_tokens[rows] + self.pending[rows]
        return length

    def tokens_at(self, rows: Rows, positions: Ints) -> Ints:
        """int32 [n], one token id of each of these rows."""
        self.enter()
        tokens: Ints = self._flat[rows * self._max_len + positions]
        return tokens

    def launch(self, rows: Rows, yields: Bools) -> None:
        """A step goes out that holds these rows, and `yields` a token for some."""
        self.in_flight[rows] += 1
        self.pending[rows] += yields

    def land(self, rows: Rows, yields: Bools) -> None:
        """A step came back, whatever it brought."""
        self.in_flight[rows] -= 1
        self.pending[rows] -= yields

    def launch_decode(self, members: DecodeRows) -> None:
        """A step goes out that computes the newest token of each of these rows and yields one."""
        if self._decoding is not members:
            self._decode(members)
        members.launched += 1

    def land_decode(self, members: DecodeRows, tokens: Ints) -> None:
        """A step came back that brought each of these rows its next token, `tokens` [n], which
        nobody changes.
        """
        if self._decoding is not members:
            self._decode(members)
        members.landed.append(tokens)
        if len(members.landed) == _MOST_LANDED:
            self.enter()

    def _decode(self, members: DecodeRows) -> None:
        self.enter()
        self._decoding = members

    def enter(self) -> None:
        """Bring all up to date."""
        members, self._decoding = self._decoding, None
        if members is None:
            return
        rows, launched, landed = members.rows, members.launched, len(members.landed)
        if landed:
            tokens = np.stack(members.landed)
            first = rows * self._max_len + self._num_tokens[rows]
            self._flat[np.add.outer(np.arange(landed), first)] = tokens
            self._num_tokens[rows] += landed
        self._scheduled[rows] += launched
        self._pending[rows] += launched - landed
        self._in_flight[rows] += launched - landed
        members.launched, members.landed = 0, []

    def append(self, rows: Rows, tokens: Ints) -> tuple[Ints, Bools]:
        """Add an output token to each row.

        Returns:
            int32 [n], `num_tokens` then; and bool [n], whether that token ended the request by its
            length or by being a stop id. Rows that are `watched` may end by more than that.
        """
        num_tokens = self.num_tokens[rows]
        self._flat[rows * self._max_len + num_tokens] = tokens
        num_tokens += 1
        self.num_tokens[rows] = num_tokens
        return num_tokens, self.ended(rows, num_tokens, tokens)

    def stop_ids(self, rows: Rows) -> frozenset[int]:
        """The token ids of which each ends some of these rows: after others, nobody need look."""
        return frozenset(self._stop_ids[: self._stop_ids_used, rows].reshape(-1).tolist())

    def ended(self, rows: Rows, num_tokens: Ints, tokens: Ints) -> Bools:
        """Whether the last of each row's tokens ended its request: by the length, or a stop id."""
        ended: Bools = num_tokens >= self.end[rows]
        for stop_ids in self._stop_ids[: self._stop_ids_used]:
            ended |= stop_ids[rows] == tokens
        return ended
