"""Steps of decodes alone, taken in, run and read with two native calls and hardly any Python.

The weights of a step push everything else out of the caches, so that between two steps each line of
Python, and more so each function of numpy or torch, runs ten times as long as in a loop of its own.
Owns memory that is kept from step to step, at addresses that the library knows.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch

from phloem.kernels.base import DecoderSpec, GreedyTokens, KVCache
from phloem.kernels.cpu_backend.attention import NativePlan
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.sampling import readable_bits
from phloem.kernels.cpu_backend.step_structs import DecoderStruct, DecodesStruct, KVStructs
from phloem.kernels.cpu_backend.structs import KVLayerStruct
from phloem.kernels.cpu_backend.team import Team

Int32 = npt.NDArray[np.int32]

_POINTER = ctypes.c_void_p


class CpuGreedyDecodes:
    """Implements `GreedyDecodes`."""

    def __init__(
        self,
        library: Library,
        team: Team,
        plan: NativePlan,
        spec: DecoderSpec,
        decoder: DecoderStruct,
    ) -> None:
        self._team = team
        self._spec = spec
        self._decoder = decoder
        self._plan = plan
        self._kv = KVStructs(spec)
        self._struct = DecodesStruct(scale=spec.attention.scale, plan=plan.handle)
        self._workspace_bytes = library.function(
            "phloem_decoder_workspace", _POINTER, ctypes.c_int, restype=ctypes.c_size_t
        )
        self._run = library.function(
            "phloem_decodes_run", _POINTER, _POINTER, _POINTER, restype=ctypes.c_int
        )
        self._tokens = library.function(
            "phloem_decodes_tokens", _POINTER, _POINTER, _POINTER, _POINTER, restype=ctypes.c_int
        )
        self._addresses = ctypes.addressof(decoder), ctypes.addressof(self._struct)
        self._row_table: Int32 | None = None
        self._layers: ctypes.Array[KVLayerStruct] | None = None
        self._make_room(1)

    def run(
        self,
        row_table: Int32,
        rows: Int32,
        query_lens: Int32,
        seq_lens: Int32,
        input_ids: Int32,
        out_slots: Int32,
        kv: KVCache,
    ) -> bool:
        """See `GreedyDecodes.run`."""
        count, given = len(rows), (rows, query_lens, seq_lens, input_ids, out_slots)
        for numbers in given:
            if len(numbers) != count:
                return False
        if count > self._struct.room:
            self._make_room(count)
        if row_table is not self._row_table and not self._take(row_table):
            return False
        layers = self._kv.of(kv)
        if layers is None:
            return False
        if layers is not self._layers:
            self._layers = layers
            self._struct.kv = ctypes.addressof(layers)
        for to, numbers in zip(self._given, given):
            to[:count] = numbers
        self._struct.num_rows = count
        return bool(self._run(self._team.handle, *self._addresses))

    def tokens(self, bits: Int32 | None = None) -> Int32 | None:
        """See `GreedyDecodes.tokens`.

        Raises:
            ValueError: if `bits` has another shape.
        """
        count = self._struct.num_rows
        address = None
        if bits is not None:
            bits = readable_bits(bits, count, self._decoder.head.n)
            address = bits.ctypes.data
        if not self._tokens(self._team.handle, *self._addresses, address):
            return None
        return self._found[:count].copy()

    def found(self) -> GreedyTokens:
        """See `GreedyDecodes.found`."""
        count = self._struct.num_rows
        return GreedyTokens(self._ids[:count], self._finite[:count], self._allowed[:count])

    def _take(self, row_table: Int32) -> bool:
        if row_table.dtype != np.int32 or row_table.strides[1] != row_table.itemsize:
            return False
        self._row_table, struct = row_table, self._struct
        struct.row_table = row_table.ctypes.data
        struct.row_stride = row_table.strides[0] // row_table.itemsize
        struct.table_rows, struct.table_width = row_table.shape
        return True

    def _make_room(self, rows: int) -> None:
        """Make the arrays for so many rows, which the struct points to."""
        struct = self._struct
        self._memory = given = np.empty((5, rows), np.int32)
        self._given = tuple(given)
        self._numbers = np.empty((3, rows), np.int64)
        self._hidden = torch.empty(rows, len(self._spec.norm))
        self._workspace = torch.empty(
            self._workspace_bytes(self._addresses[0], rows), dtype=torch.uint8
        )
        self._ids = torch.empty(rows, dtype=torch.int64)
        self._finite = torch.empty(rows, dtype=torch.bool)
        self._allowed = torch.empty(rows, dtype=torch.bool)
        self._found = np.empty(rows, np.int32)
        struct.room = rows
        struct.given = given.ctypes.data
        struct.numbers = self._numbers.ctypes.data
        struct.hidden = self._hidden.data_ptr()
        struct.workspace = self._workspace.data_ptr()
        struct.ids = self._ids.data_ptr()
        struct.finite = self._finite.data_ptr()
        struct.allowed = self._allowed.data_ptr()
        struct.tokens = self._found.ctypes.data
