"""Weights packed for the native linears, and the linears themselves.

Owns the memory of packed weights and what is checked before native code sees a tensor. How a weight
is packed is `native/packed.h`'s, what is computed `native/linear.h`'s.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import (
    BlockFormat,
    BlockWeight,
    InputBits,
    LinearForm,
    check_input_bits,
)
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.structs import F32, I8, Q4, Q8, Weight
from phloem.kernels.cpu_backend.team import Team

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t

_KINDS: Mapping[LinearForm, int] = {"float": F32, "int8": I8, "int4": Q4}
_FORMATS: Mapping[BlockFormat, tuple[int, int]] = {
    "q4_0": (0, Q4),
    "q4_1": (1, Q4),
    "q8_0": (2, Q8),
}
"""A block format's number in `native/pack.cpp`, and the kind it is packed as."""

_IN_BLOCKS = (Q8, Q4)
"""Kinds whose inputs may have 16 bits."""

_STORE = 0
"""`Then::STORE` of `native/linear.h`."""


@dataclass(frozen=True, slots=True, eq=False)
class CpuLinear:
    """A packed weight `[out, in]` and its bias; `struct` points into the tensors beside it."""

    struct: Weight
    packed: Tensor
    bias: Tensor | None

    @property
    def kind(self) -> int:
        """One of `structs.F32`, `Q8`, `Q4` and `I8`."""
        return int(self.struct.kind)

    @property
    def n(self) -> int:
        """Outputs."""
        return int(self.struct.n)

    @property
    def k(self) -> int:
        """Inputs."""
        return int(self.struct.k)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.n, self.k

    def with_input_bits(self, bits: InputBits) -> CpuLinear:
        """The same weight, in the same memory, for inputs that are rounded to so many bits."""
        struct = Weight.from_buffer_copy(self.struct)
        _set_input_bits(struct, bits)
        return CpuLinear(struct, self.packed, self.bias)

    @property
    def nbytes(self) -> int:
        """Memory of the packed weight and the bias."""
        return self.packed.nbytes + (0 if self.bias is None else self.bias.nbytes)


def _set_input_bits(struct: Weight, bits: InputBits) -> None:
    check_input_bits(bits)
    if struct.kind in _IN_BLOCKS:
        struct.input_bits = bits


class Linears:
    """Packs weights and multiplies with them, on one team of threads."""

    def __init__(self, library: Library, team: Team) -> None:
        self._team = team
        weight = ctypes.POINTER(Weight)
        self._packed_bytes = library.function(
            "phloem_packed_bytes", _INT, _INT, _INT, restype=_SIZE
        )
        self._pack_floats = library.function(
            "phloem_pack_floats", _POINTER, _POINTER, _INT, _INT, _INT, _POINTER
        )
        self._pack_blocks = library.function(
            "phloem_pack_blocks", _POINTER, _POINTER, _INT, _POINTER, _INT, _INT, _POINTER
        )
        self._embed = library.function("phloem_embed", _POINTER, weight, _POINTER, _INT, _POINTER)
        self._scratch_bytes = library.function("phloem_linear_scratch", weight, _INT, restype=_SIZE)
        self._linear = library.function(
            *("phloem_linear", _POINTER, weight, _POINTER, _INT),
            *(_POINTER, _POINTER, ctypes.c_int64, _INT),
        )

    def prepare(
        self,
        weight: Tensor | BlockWeight,
        bias: Tensor | None = None,
        form: LinearForm = "float",
        *,
        input_bits: InputBits = 8,
        order: npt.NDArray[np.int64] | None = None,
    ) -> CpuLinear:
        """Pack `weight` `[out, in]`; the result shares no memory with it.

        Blocks are computed in as they are, whatever `form` says. Floats become float32, int8 or
        blocks as `torch_backend.blocks.round_weight` says. `order` `[n]`
        picks rows of a weight in blocks: output o is its row `order[o]`.

        Raises:
            ValueError: if `weight` is no matrix or has nothing to multiply, `order` or `bias` do
                not fit, or `input_bits` is neither 8 nor 16.
        """
        if isinstance(weight, BlockWeight):
            packed, struct = self._packed_blocks(weight, order)
        elif order is None:
            packed, struct = self._packed_floats(weight, form)
        else:
            raise ValueError("only the rows of a weight in blocks can be reordered: index floats")
        _set_input_bits(struct, input_bits)
        if bias is None:
            return CpuLinear(struct, packed, None)
        if tuple(bias.shape) != (struct.n,):
            raise ValueError(
                f"a bias of the shape {tuple(bias.shape)} does not fit {struct.n} outputs"
            )
        bias = bias.detach().to("cpu", torch.float32, copy=True).contiguous()
        struct.bias = bias.data_ptr()
        return CpuLinear(struct, packed, bias)

    def run(self, x: Tensor, linear: CpuLinear) -> Tensor:
        """`x @ weight.T + bias` for float32 `x` `[T, in]`: float32 `[T, out]`, see `Ops.linear`.

        Raises:
            ValueError: if `x` has another dtype or number of inputs.
        """
        n, k = linear.shape
        if x.dtype != torch.float32 or x.ndim != 2 or x.shape[1] != k:
            raise ValueError(
                f"x of the shape {tuple(x.shape)} in {x.dtype} does not fit a linear of {k} "
                f"inputs: give float32 [T, {k}]"
            )
        x = x.contiguous()
        rows = len(x)
        struct = ctypes.byref(linear.struct)
        scratch = torch.empty(self._scratch_bytes(struct, rows), dtype=torch.uint8)
        out = torch.empty((rows, n), dtype=torch.float32)
        self._linear(
            *(self._team.handle, struct, x.data_ptr(), rows),
            *(scratch.data_ptr(), out.data_ptr(), n, _STORE),
        )
        return out

    def embed(self, ids: Tensor, table: CpuLinear) -> Tensor:
        """The rows `ids` `[T]` int64 of a packed table: float32 `[T, in]`.

        Raises:
            ValueError: if `ids` has more than one axis, or none.
            IndexError: if the table has no such row.
        """
        n, k = table.shape
        if ids.ndim != 1:
            raise ValueError(f"ids of the shape {tuple(ids.shape)} are no list: give [T]")
        ids = ids.to(torch.int64).contiguous()
        out = torch.empty((len(ids), k), dtype=torch.float32)
        if not len(ids):
            return out
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= n:
            raise IndexError(f"ids from {low} to {high} are not all rows of a table of {n}")
        struct = ctypes.byref(table.struct)
        self._embed(self._team.handle, struct, ids.data_ptr(), len(ids), out.data_ptr())
        return out

    def _packed_floats(self, weight: Tensor, form: LinearForm) -> tuple[Tensor, Weight]:
        if form not in _KINDS:
            raise ValueError(f"the form {form!r} of a weight is unknown: {', '.join(_KINDS)}")
        if weight.ndim != 2:
            raise ValueError(
                f"a weight of the shape {tuple(weight.shape)} is no matrix: give [out, in]"
            )
        values = weight.detach().to("cpu", torch.float32).contiguous()
        packed, struct = self._room(_KINDS[form], *values.shape)
        self._pack_floats(
            *(self._team.handle, values.data_ptr(), struct.kind, struct.n, struct.k),
            packed.data_ptr(),
        )
        return packed, struct

    def _packed_blocks(
        self, weight: BlockWeight, order: npt.NDArray[np.int64] | None
    ) -> tuple[Tensor, Weight]:
        rows, k = weight.shape
        if order is not None:
            order = np.ascontiguousarray(order, np.int64)
            if order.ndim != 1 or ((order < 0) | (order >= rows)).any():
                raise ValueError(f"order must list rows from 0 to {rows - 1}, but is {order}")
        number, kind = _FORMATS[weight.format]
        packed, struct = self._room(kind, rows if order is None else len(order), k)
        blocks = np.ascontiguousarray(weight.blocks)
        self._pack_blocks(
            *(self._team.handle, blocks.ctypes.data, number),
            None if order is None else order.ctypes.data,
            *(struct.n, k, packed.data_ptr()),
        )
        return packed, struct

    def _room(self, kind: int, n: int, k: int) -> tuple[Tensor, Weight]:
        if n < 1 or k < 1:
            raise ValueError(f"a weight of the shape {(n, k)} has nothing to multiply")
        # Torch aligns its memory to 64 bytes, which is a vector.
        packed = torch.empty(self._packed_bytes(kind, n, k), dtype=torch.uint8)
        return packed, Weight(kind, n, k, 8, packed.data_ptr(), None)
