"""The KV of the host tier, and the copies between it and a device pool; implements `Transfer`.

Needs torch. One thread makes all copies, in the order in which they are asked for. It moves bytes
and knows no layout: a pool is read and written by token and layer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from phloem.mem_pool.slots import Slots
from phloem.mem_pool.tier_ports import Bytes

_COPY_TOKENS = 1024
"""Tokens copied by one operation: bounds the memory that is needed on the way."""


class LayeredPool(Protocol):
    """A device pool, read and written as bytes; `phloem.mem_pool.kv` has some."""

    @property
    def num_layers(self) -> int:
        """Layers that keep KV."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the KV is."""
        ...

    def read(self, slots: Tensor, layer: int) -> Tensor:
        """uint8 [n, bytes of a token in a layer], a copy; `slots` is int64 [n] on the device."""
        ...

    def write(self, slots: Tensor, layer: int, data: Tensor) -> None:
        """Put back what `read` gave, into other slots maybe; `data` is on the device."""
        ...


class HostKVPool:
    """KV in host memory, a record for each slot: uint8 [num_slots, num_layers, width].

    The memory is touched when it is first written.

    Args:
        num_slots: the host allocator's `num_slots`.
        pool: whose KV it takes.
    """

    def __init__(self, num_slots: int, pool: LayeredPool) -> None:
        nothing = torch.empty(0, dtype=torch.int64, device=pool.device)
        width = pool.read(nothing, 0).shape[1]
        self.records = torch.empty((num_slots, pool.num_layers, width), dtype=torch.uint8)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one record."""
        return self.records[0].numel()


class LayerProgress:
    """How far the loads have come, by layer, so that a model may use the first layers early."""

    def __init__(self, num_layers: int) -> None:
        self._begun = 0
        self._reached = [0] * num_layers
        """How many loads have filled each layer."""
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def begin(self) -> None:
        """One more load was asked for."""
        self._begun += 1

    def reach(self, layer: int) -> None:
        """The load that is being made has filled a layer."""
        with self._changed:
            self._reached[layer] += 1
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """A load that others rely on already was not made."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def wait(self, layer: int) -> None:
        """Until every load asked for by now has filled a layer.

        Raises:
            RuntimeError: one was not made: what the pool holds is not what the tree says.
        """
        begun = self._begun
        if self._reached[layer] < begun or self._error is not None:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._reached[layer] >= begun or self._error is not None
                )
        if self._error is not None:
            raise RuntimeError(
                f"KV could not be brought back from the host: {self._error}; the device has "
                "failed: restart the engine"
            ) from self._error


class KVTransfer:
    """Copies between a device pool and a host pool, implements `Transfer`.

    On a CPU a load is made when it returns, so that one that fails is known at once. On a GPU it
    goes on beside the model, which calls `ready(layer)` before it uses a layer.

    Args:
        pool: of the device.
        host: of the host.
        wait_for_loads: whether loads are made when they return; None: as said.
    """

    def __init__(
        self, pool: LayeredPool, host: HostKVPool, *, wait_for_loads: bool | None = None
    ) -> None:
        self._pool = pool
        self._host = host.records
        on_cpu = pool.device.type == "cpu"
        self._wait_for_loads = on_cpu if wait_for_loads is None else wait_for_loads
        self._width = host.bytes_per_token
        self._progress = LayerProgress(pool.num_layers)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="phloem-kv-copy")
        # A stream of its own: copies wait for no model step, nor a step for them but by `ready`.
        self._stream = torch.cuda.Stream(pool.device) if pool.device.type == "cuda" else None
        self._filled: list[torch.cuda.Event | None] = [None] * pool.num_layers

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over all layers."""
        return self._width

    def backup(self, device_slots: Slots, host_slots: Slots) -> Future[None]:
        """See `Transfer.backup`."""
        return self._worker.submit(self._backup, _indices(device_slots), _indices(host_slots))

    def done(self, ticket: Future[None], wait: float = 0.0) -> bool:
        """See `Transfer.done`."""
        if not wait and not ticket.done():
            return False
        try:
            ticket.result(wait)
        except NotYet:
            if ticket.done():
                raise  # the copy's own
            return False
        return True

    def load(self, host_slots: Slots, device_slots: Slots) -> None:
        """See `Transfer.load`."""
        if not self._wait_for_loads:
            self._progress.begin()
            self._worker.submit(self._load_beside, _indices(host_slots), _indices(device_slots))
            return
        load = self._worker.submit(
            self._load, _indices(host_slots), _indices(device_slots), lambda layer: None
        )
        load.result()

    def ready(self, layer: int) -> None:
        """Have the current stream, or this thread, wait until a layer of all loads is there."""
        self._progress.wait(layer)
        filled = self._filled[layer]
        if filled is not None:
            torch.cuda.current_stream(self._pool.device).wait_event(filled)

    def read(self, host_slots: Slots, then: Callable[[Bytes], None]) -> None:
        """See `Transfer.read`."""
        self._worker.submit(self._read, _indices(host_slots), then)

    def write(self, host_slots: Slots, data: Bytes) -> None:
        """See `Transfer.write`.

        Raises:
            ValueError: the data are not those of so many tokens.
        """
        if len(data) != len(host_slots) * self._width:
            raise ValueError(
                f"{len(data)} bytes are not {len(host_slots)} tokens of {self._width} bytes each"
            )
        self._worker.submit(self._write, _indices(host_slots), data)

    def close(self) -> None:
        """Finish what was asked for and end the thread."""
        self._worker.shutdown(wait=True)

    # In the copying thread.

    @contextmanager
    def _beside_the_model(self) -> Iterator[None]:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            yield

    def _backup(self, device_slots: Tensor, host_slots: Tensor) -> None:
        with self._beside_the_model():
            for at in range(0, len(host_slots), _COPY_TOKENS):
                source = device_slots[at : at + _COPY_TOKENS].to(self._pool.device)
                target = host_slots[at : at + _COPY_TOKENS]
                for layer in range(self._pool.num_layers):
                    self._host[target, layer] = self._pool.read(source, layer).cpu()

    def _load(
        self, host_slots: Tensor, device_slots: Tensor, reached: Callable[[int], None]
    ) -> None:
        with self._beside_the_model():
            target = device_slots.to(self._pool.device)
            for layer in range(self._pool.num_layers):
                for at in range(0, len(host_slots), _COPY_TOKENS):
                    data = self._gathered(host_slots[at : at + _COPY_TOKENS], layer)
                    self._pool.write(target[at : at + _COPY_TOKENS], layer, data)
                reached(layer)

    def _gathered(self, host_slots: Tensor, layer: int) -> Tensor:
        """Records of a layer, on the device."""
        if self._stream is None:
            return self._host[host_slots, layer]
        # Pinned, so that the copy does not hold the thread up. Torch keeps such memory, and does
        # not use it again before the copy is made.
        data = torch.empty(
            (len(host_slots), self._host.shape[2]), dtype=torch.uint8, pin_memory=True
        )
        torch.index_select(self._host[:, layer], 0, host_slots, out=data)
        return data.to(self._pool.device, non_blocking=True)

    def _load_beside(self, host_slots: Tensor, device_slots: Tensor) -> None:
        try:
            self._load(host_slots, device_slots, self._reached)
        except BaseException as error:  # it must not be lost with the thread's future
            self._progress.fail(error)

    def _reached(self, layer: int) -> None:
        if self._stream is not None:
            filled = torch.cuda.Event()
            filled.record(self._stream)
            self._filled[layer] = filled
        self._progress.reach(layer)

    def _read(self, host_slots: Tensor, then: Callable[[Bytes], None]) -> None:
        then(self._host[host_slots].numpy().reshape(-1).data)

    def _write(self, host_slots: Tensor, data: Bytes) -> None:
        # By numpy: a tensor cannot be made of memory that must not be written to.
        records = self._host.numpy()
        records[host_slots.numpy()] = np.frombuffer(data, np.uint8).reshape(-1, *records.shape[1:])


def _indices(slots: Slots) -> Tensor:
    """int64 [n] of slots, a copy."""
    return torch.from_numpy(slots.astype(np.int64))
