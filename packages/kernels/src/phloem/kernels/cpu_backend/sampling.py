"""Choosing tokens by the native library: argmax, draws, logprobs, masks, penalties.

Owns the checks of arguments and the memory that passes over the vocabulary share. See `Ops` for
what each op computes. A row's results are a function of its own logits and parameters, bit by bit.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import Penalties, SamplingParameters, TokenLogprobs
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.team import Team

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_LOGITS = (_POINTER, _LONG, _INT, _INT)


class Sampling:
    """The ops on logits `[n, V]` float32; calls take turns."""

    def __init__(self, library: Library, team: Team) -> None:
        self._team = team
        self._turn = threading.Lock()
        self._memory = np.empty(0, np.uint8)
        self._workspace_bytes = library.function(
            "phloem_sampling_workspace", _INT, _INT, restype=ctypes.c_size_t
        )
        self._argmax = library.function(
            "phloem_argmax", _POINTER, *_LOGITS, _POINTER, _POINTER, _POINTER
        )
        self._sample = library.function("phloem_sample", _POINTER, *_LOGITS, *[_POINTER] * 7)
        self._token_logprobs = library.function(
            *("phloem_token_logprobs", _POINTER, *_LOGITS, _POINTER, _INT),
            *(_POINTER, _POINTER, _POINTER, _POINTER),
        )
        self._bitmask = library.function(
            "phloem_apply_token_bitmask",
            *(_POINTER, _POINTER, _LONG, _INT, _POINTER, _INT),
            _POINTER,
        )
        self._penalties = library.function(
            "phloem_apply_penalties", _POINTER, _POINTER, _LONG, _LONG, *[_POINTER] * 6
        )

    def greedy(self, logits: Tensor) -> Tensor:
        """See `Ops.greedy`."""
        logits = _readable(logits)
        ids = torch.empty(len(logits), dtype=torch.int64)
        with self._turn:
            self._argmax(
                *(self._team.handle, *_described(logits), self._workspace(logits)),
                *(ids.data_ptr(), None),
            )
        return ids

    def sample(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        """See `Ops.sample`.

        Raises:
            ValueError: if there is not one parameter of each kind for each row.
        """
        logits = _readable(logits)
        p = parameters
        arrays = (
            np.ascontiguousarray(p.temperature, np.float32),
            np.ascontiguousarray(p.top_k, np.int32),
            np.ascontiguousarray(p.top_p, np.float32),
            np.ascontiguousarray(p.min_p, np.float32),
            np.ascontiguousarray(p.uniforms, np.float64),
        )
        _check_lengths(len(logits), "rows of logits", *arrays)
        ids = torch.empty(len(logits), dtype=torch.int64)
        with self._turn:
            self._sample(
                *(self._team.handle, *_described(logits), *(a.ctypes.data for a in arrays)),
                *(self._workspace(logits), ids.data_ptr()),
            )
        return ids

    def token_logprobs(self, logits: Tensor, ids: Tensor, top: int) -> TokenLogprobs:
        """See `Ops.token_logprobs`. NaN, in a row with NaN, +inf or nothing above -inf.

        Raises:
            ValueError: if an id is not of the vocabulary, or there is not one for each row.
        """
        logits = _readable(logits)
        rows, vocab_size = logits.shape
        ids = ids.to(torch.int64).contiguous()
        _check_lengths(rows, "rows of logits", ids.numpy())
        _check_within(ids.numpy(), vocab_size, "token ids")
        top = max(0, min(top, vocab_size))
        found = TokenLogprobs(
            torch.empty(rows),
            torch.empty((rows, top), dtype=torch.int64),
            torch.empty((rows, top)),
        )
        with self._turn:
            self._token_logprobs(
                *(self._team.handle, *_described(logits), ids.data_ptr(), top),
                *(self._workspace(logits), *(part.data_ptr() for part in found)),
            )
        return found

    def apply_token_bitmask(
        self, logits: Tensor, rows: npt.NDArray[np.int64], bits: npt.NDArray[np.int32]
    ) -> None:
        """See `Ops.apply_token_bitmask`.

        Raises:
            ValueError: also if a row is not of the logits, or those cannot be changed in place.
        """
        _check_writable(logits)
        vocab_size = logits.shape[1]
        bits = readable_bits(bits, len(rows), vocab_size)
        rows = np.ascontiguousarray(rows, np.int64)
        _check_within(rows, len(logits), "rows")
        self._bitmask(
            *(self._team.handle, logits.data_ptr(), logits.stride(0), vocab_size),
            *(rows.ctypes.data, len(rows), bits.ctypes.data),
        )

    def apply_penalties(self, logits: Tensor, penalties: Penalties) -> None:
        """See `Ops.apply_penalties`.

        Raises:
            ValueError: if a row or an id is not of the logits, those cannot be changed in place,
                or the entries are not of one length.
        """
        _check_writable(logits)
        p = penalties
        rows, ids = np.ascontiguousarray(p.rows, np.int64), np.ascontiguousarray(p.ids, np.int64)
        values = tuple(
            np.ascontiguousarray(a, np.float32)
            for a in (p.output_counts, p.repetition, p.frequency, p.presence)
        )
        _check_lengths(len(rows), "rows of penalties", ids, *values)
        _check_within(rows, len(logits), "rows")
        _check_within(ids, logits.shape[1], "token ids")
        self._penalties(
            *(self._team.handle, logits.data_ptr(), logits.stride(0), len(rows)),
            *(rows.ctypes.data, ids.ctypes.data, *(a.ctypes.data for a in values)),
        )

    def _workspace(self, logits: Tensor) -> int:
        """The address of enough memory for these logits; it grows to what the largest needed."""
        needed = self._workspace_bytes(*logits.shape)
        if len(self._memory) < needed:
            self._memory = np.empty(needed, np.uint8)
        return self._memory.ctypes.data


def readable_bits(bits: npt.NDArray[np.int32], rows: int, vocab_size: int) -> npt.NDArray[np.int32]:
    """Token masks as native code reads them: `[rows, ceil(vocab_size / 32)]`, contiguous.

    Raises:
        ValueError: if they have another shape.
    """
    words = -(-vocab_size // 32)
    if bits.shape != (rows, words):
        raise ValueError(
            f"token masks have the shape {bits.shape}, but {rows} rows and a vocabulary of "
            f"{vocab_size} need {(rows, words)}"
        )
    return np.ascontiguousarray(bits, np.int32)


def _readable(logits: Tensor) -> Tensor:
    """Float32 with a contiguous last axis."""
    logits = logits.to(torch.float32)
    return logits if logits.stride(-1) == 1 else logits.contiguous()


def _described(logits: Tensor) -> tuple[int, int, int, int]:
    """The first arguments of a function that reads logits."""
    rows, vocab_size = logits.shape
    return logits.data_ptr(), logits.stride(0), rows, vocab_size


def _check_writable(logits: Tensor) -> None:
    if logits.dtype != torch.float32 or logits.stride(-1) != 1:
        raise ValueError(
            f"{logits.dtype} logits with the strides {logits.stride()} cannot be changed in place: "
            "use float32 with a contiguous last axis"
        )


def _check_lengths(n: int, of: str, *arrays: npt.NDArray[np.generic]) -> None:
    for array in arrays:
        if array.shape != (n,):
            raise ValueError(f"{n} {of} need arrays of the shape ({n},), not {array.shape}")


def _check_within(values: npt.NDArray[np.int64], limit: int, what: str) -> None:
    if len(values) and (values.min() < 0 or values.max() >= limit):
        raise ValueError(
            f"{what} from {values.min()} to {values.max()} are not all in [0, {limit}): these are "
            "logits of another model or batch"
        )
