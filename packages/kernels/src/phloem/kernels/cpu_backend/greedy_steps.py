"""Greedy steps, taken in, run and read with one or two native calls and hardly any Python.

The weights of a step push everything else out of the caches, so that between two steps each line of
Python, and more so each function of numpy or torch, runs ten times as long as in a loop of its own.
Owns memory that is kept from step to step, at addresses that the library knows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from phloem.kernels.base import DecoderSpec, GreedyTokens, KVCache
from phloem.kernels.cpu_backend.attention import NativePlan
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.sampling import readable_bits
from phloem.kernels.cpu_backend.step_structs import DecoderStruct, GreedyStepStruct, KVStructs
from phloem.kernels.cpu_backend.team import Team

Int32 = npt.NDArray[np.int32]

Int64 = npt.NDArray[np.int64]

_POINTER = ctypes.c_void_p
_NO_SHAPE = (-1, -1)
_NOTHING, _SOME, _ALL = range(3)
"""Which rows' tokens were found: see `phloem_greedy_step`."""


class CpuGreedySteps:
    """Implements `GreedySteps`.

    `workspace` gives the address of the decoder's memory for a step of so many tokens, good until
    it is asked again. `newest`, int64 with an entry for each row of the row table, gets the tokens.
    """

    def __init__(
        self,
        library: Library,
        team: Team,
        plan: NativePlan,
        spec: DecoderSpec,
        decoder: DecoderStruct,
        workspace: Callable[[int], int],
        newest: Int64 | None = None,
    ) -> None:
        self._team = team
        self._spec = spec
        self._decoder = decoder
        self._plan = plan
        self._workspace = workspace
        self._kv = KVStructs(spec)
        self._struct = GreedyStepStruct(scale=spec.attention.scale, plan=plan.handle)
        self._run = library.function(
            "phloem_greedy_run", _POINTER, _POINTER, _POINTER, restype=ctypes.c_int
        )
        self._step = library.function(
            "phloem_greedy_step", _POINTER, _POINTER, _POINTER, restype=ctypes.c_int
        )
        self._tokens = library.function(
            "phloem_greedy_tokens", _POINTER, _POINTER, _POINTER, _POINTER, restype=ctypes.c_int
        )
        self._addresses = ctypes.addressof(decoder), ctypes.addressof(self._struct)
        self._row_table: Int32 | None = None
        self._cache: KVCache | None = None
        self._newest = newest
        if newest is not None:
            self._struct.newest = newest.ctypes.data
        self._outcome = _NOTHING
        self._shape, self._workspace_at = _NO_SHAPE, 0
        self._given: list[Int32] = []
        self._make_room_for_rows(1)
        self._make_room_for_tokens(1)

    def run(
        self,
        row_table: Int32,
        rows: Int32,
        query_lens: Int32,
        seq_lens: Int32,
        input_ids: Int32,
        out_slots: Int32,
        kv: KVCache,
        choose: bool = False,
    ) -> bool:
        """See `GreedySteps.run`."""
        self._outcome = _NOTHING
        count, tokens = len(rows), len(input_ids)
        if len(query_lens) != count or len(seq_lens) != count or len(out_slots) != tokens:
            return False
        if row_table is not self._row_table and not self._take(row_table):
            return False
        if kv is not self._cache and not self._take_cache(kv):
            return False
        if (count, tokens) != self._shape:
            self._take_shape(count, tokens)
        for to, numbers in zip(self._given, (rows, query_lens, seq_lens, input_ids, out_slots)):
            to[...] = numbers
        self._use_workspace(tokens)
        if not choose:
            return bool(self._run(self._team.handle, *self._addresses))
        self._outcome = self._step(self._team.handle, *self._addresses)
        return self._outcome != _NOTHING

    def tokens(self, bits: Int32 | None = None) -> Int32 | None:
        """See `GreedySteps.tokens`.

        Raises:
            ValueError: if `bits` has another shape.
        """
        outcome = self._outcome
        if bits is not None or outcome == _NOTHING:
            outcome = self._find(self._shape[0], bits)
        return self._chosen.copy() if outcome == _ALL else None

    def found(self) -> GreedyTokens:
        """See `GreedySteps.found`."""
        count, _ = self._shape
        return GreedyTokens(self._found[:count], self._finite[:count], self._allowed[:count])

    def _find(self, count: int, bits: Int32 | None) -> int:
        self._outcome, address = _NOTHING, None  # what was chosen with the step is overwritten
        if bits is not None:
            bits = readable_bits(bits, count, self._decoder.head.n)
            address = bits.ctypes.data
        self._use_workspace(count)
        return _ALL if self._tokens(self._team.handle, *self._addresses, address) else _SOME

    def _take(self, row_table: Int32) -> bool:
        if self._newest is not None and len(self._newest) != len(row_table):
            return False
        if row_table.dtype != np.int32 or row_table.strides[1] != row_table.itemsize:
            return False
        self._row_table, struct = row_table, self._struct
        struct.row_table = row_table.ctypes.data
        struct.row_stride = row_table.strides[0] // row_table.itemsize
        struct.table_rows, struct.table_width = row_table.shape
        return True

    def _take_cache(self, kv: KVCache) -> bool:
        self._cache = None
        layers = self._kv.of(kv)
        if layers is None:
            return False
        self._struct.kv = ctypes.addressof(layers)
        self._cache = kv
        return True

    def _use_workspace(self, tokens: int) -> None:
        address = self._workspace(tokens)
        if address != self._workspace_at:
            self._struct.workspace = self._workspace_at = address

    # What native code is told of is there first: an allocation may fail.

    def _take_shape(self, rows: int, tokens: int) -> None:
        self._shape = _NO_SHAPE
        if rows > self._row_room:
            self._make_room_for_rows(rows)
        if tokens > self._token_room:
            self._make_room_for_tokens(tokens)
        self._struct.num_rows, self._struct.num_tokens = rows, tokens
        self._given = [to[:rows] for to in self._of_rows] + [to[:tokens] for to in self._of_tokens]
        self._chosen = self._room_for_chosen[:rows]
        self._shape = rows, tokens

    def _make_room_for_rows(self, rows: int) -> None:
        given = tuple(np.empty((3, rows), np.int32))
        wanted, chosen = np.empty(rows, np.int64), np.empty(rows, np.int32)
        found = torch.empty(rows, dtype=torch.int64)
        finite, allowed = (torch.empty(rows, dtype=torch.bool) for _ in range(2))
        struct = self._struct
        struct.rows, struct.query_lens, struct.seq_lens = _addresses(given)
        struct.wanted, struct.tokens = _addresses((wanted, chosen))
        struct.found = found.data_ptr()
        struct.finite, struct.allowed = finite.data_ptr(), allowed.data_ptr()
        self._of_rows, self._wanted, self._room_for_chosen = given, wanted, chosen
        self._found, self._finite, self._allowed = found, finite, allowed
        self._row_room = rows

    def _make_room_for_tokens(self, tokens: int) -> None:
        given = tuple(np.empty((2, tokens), np.int32))
        numbers = tuple(np.empty((3, tokens), np.int64))
        hidden = torch.empty((tokens, len(self._spec.norm)), dtype=torch.float32)
        struct = self._struct
        struct.given_ids, struct.given_slots = _addresses(given)
        struct.ids, struct.positions, struct.slots = _addresses(numbers)
        struct.hidden = hidden.data_ptr()
        self._of_tokens, self._numbers, self._hidden = given, numbers, hidden
        self._token_room = tokens


def _addresses(arrays: tuple[npt.NDArray[np.integer], ...]) -> list[int]:
    return [array.ctypes.data for array in arrays]
