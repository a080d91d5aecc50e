"""Norms, SiLU and rotary embedding by the native library, on contiguous float32 tensors.

Owns what is checked before native code sees a tensor. What is computed is `native/elementwise.h`'s.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from phloem.kernels.base import KVLayer, NormResult
from phloem.kernels.cpu_backend.attention import describe
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.structs import KVLayerStruct
from phloem.kernels.cpu_backend.team import Team
from phloem.kernels.torch_backend.hadamard import check_block

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


class Elementwise:
    """The ops between linears; see `Ops` for what each computes.

    All raise ValueError for tensors that are not float32 or whose shapes do not fit each other.
    """

    def __init__(self, library: Library, team: Team) -> None:
        self._team = team
        self._rms_norm = library.function(
            "phloem_rms_norm",
            *(_POINTER, _POINTER, _POINTER, _POINTER, ctypes.c_float, _INT, _INT),
            *(_POINTER, _POINTER),
        )
        self._silu_mul = library.function(
            "phloem_silu_mul", _POINTER, _POINTER, _INT, _INT, _POINTER
        )
        self._hadamard = library.function("phloem_hadamard", _POINTER, _POINTER, _INT, _INT, _INT)
        self._rotary_store_kv = library.function(
            "phloem_rotary_store_kv",
            *(_POINTER, _POINTER, _LONG, _INT, _POINTER, _LONG, _POINTER, _LONG, _INT, _INT, _INT),
            *(_POINTER, ctypes.POINTER(KVLayerStruct), _POINTER),
        )

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Ops.rms_norm`."""
        x = _rows("x", x)
        weight = _fitting("weight", weight, x.shape[1:])
        out = torch.empty_like(x)
        rows, k = x.shape
        self._rms_norm(
            *(self._team.handle, x.data_ptr(), None, weight.data_ptr(), eps, rows, k),
            *(None, out.data_ptr()),
        )
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> NormResult:
        """See `Ops.add_rms_norm`."""
        x = _rows("x", x)
        residual = _fitting("residual", residual, x.shape)
        weight = _fitting("weight", weight, x.shape[1:])
        out, total = torch.empty_like(x), torch.empty_like(x)
        rows, k = x.shape
        self._rms_norm(
            *(self._team.handle, x.data_ptr(), residual.data_ptr(), weight.data_ptr(), eps),
            *(rows, k, total.data_ptr(), out.data_ptr()),
        )
        return NormResult(out, total)

    def hadamard(self, x: Tensor, block: int) -> Tensor:
        """See `Ops.hadamard`."""
        out = _rows("x", x).clone()
        rows, k = out.shape
        check_block(k, block)
        self._hadamard(self._team.handle, out.data_ptr(), rows, k, block)
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Ops.silu_mul`."""
        gate_up = _rows("gate_up", gate_up)
        rows, width = gate_up.shape
        if width % 2:
            raise ValueError(
                f"gate_up has {width} columns: the gate and what it scales must be as wide as each "
                "other, so give an even number"
            )
        k = width // 2
        out = gate_up.new_empty((rows, k))
        self._silu_mul(self._team.handle, gate_up.data_ptr(), rows, k, out.data_ptr())
        return out

    def rotary_store_kv(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, kv: KVLayer, slots: Tensor
    ) -> None:
        """See `Ops.rotary_store_kv`; that each slot is one of the layer's is not checked."""
        _check_heads(q, k, v)
        cos_sin = _fitting("cos_sin", cos_sin, q.shape[::2])
        slots = _fitting("slots", slots, q.shape[:1], torch.int64)
        if not (_is_dense(q) and _is_dense(k)):
            turned = q.contiguous(), k.contiguous()
            self.rotary_store_kv(*turned, v, cos_sin, kv, slots)
            q.copy_(turned[0])
            k.copy_(turned[1])
            return
        # A layer that is not described, or whose values are of another width, stores for itself.
        layer = describe(kv, (*k.shape[1:], v.shape[2])) if v.shape == k.shape else None
        v = v if _is_dense(v) else v.contiguous()
        tokens, heads, head_dim = q.shape
        self._rotary_store_kv(
            *(self._team.handle, q.data_ptr(), q.stride(0), heads, k.data_ptr(), k.stride(0)),
            *(v.data_ptr(), v.stride(0), k.shape[1], head_dim, tokens, cos_sin.data_ptr()),
            *(None if layer is None else ctypes.byref(layer), slots.data_ptr()),
        )
        if layer is None:
            kv.store(slots, k, v)


def _rows(name: str, x: Tensor) -> Tensor:
    """`x` `[T, width]` float32, contiguous."""
    if x.dtype != torch.float32 or x.ndim != 2:
        raise ValueError(
            f"{name} is {x.dtype} of the shape {tuple(x.shape)}: the cpu backend computes in "
            "float32, on rows; give float32 [T, width]"
        )
    return x.contiguous()


def _fitting(
    name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """`x` of the shape and dtype that the other arguments ask for, contiguous."""
    if x.dtype != dtype or x.shape != shape:
        raise ValueError(
            f"{name} is {x.dtype} of the shape {tuple(x.shape)}, which does not fit the other "
            f"arguments on the cpu backend: give {dtype} {tuple(shape)}"
        )
    return x.contiguous()


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    if not q.dtype == k.dtype == v.dtype == torch.float32:
        raise ValueError(
            f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}: the cpu backend computes in "
            "float32, so convert them"
        )
    if not (
        q.ndim == k.ndim == v.ndim == 3
        and q.shape[::2] == k.shape[::2]
        and k.shape[:2] == v.shape[:2]
        and q.shape[2] % 2 == 0
    ):
        raise ValueError(
            f"q, k and v of the shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)} do "
            "not fit each other: give [T, H, D], [T, G, D] and [T, G, D_v] with an even D"
        )


def _is_dense(x: Tensor) -> bool:
    """Whether the heads of a token `[T, heads, D]` lie one behind the other."""
    return x.stride()[1:] == (x.shape[2], 1)
