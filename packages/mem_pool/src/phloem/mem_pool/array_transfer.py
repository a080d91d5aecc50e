"""Copies between KV that is kept in numpy arrays, for engines without a GPU, models that are
scripted, and tests; implements `Transfer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from phloem.mem_pool.slots import Slots
from phloem.mem_pool.tier_ports import Bytes, Ticket


class ArrayTransfer:
    """Copies between two arrays `[num_slots, ...]` of one dtype and record shape, at once.

    Raises:
        ValueError: the arrays have records of different forms.
    """

    def __init__(self, device: npt.NDArray[Any], host: npt.NDArray[Any]) -> None:
        if device.dtype != host.dtype or device.shape[1:] != host.shape[1:]:
            raise ValueError(
                f"records of {device.dtype} {device.shape[1:]} on the device and of {host.dtype} "
                f"{host.shape[1:]} on the host cannot be copied: make both arrays alike"
            )
        self.device = device
        self.host = host

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one record."""
        return self.host[:1].nbytes

    def backup(self, device_slots: Slots, host_slots: Slots) -> Ticket:
        """See `Transfer.backup`."""
        self.host[host_slots] = self.device[device_slots]
        return None

    def done(self, ticket: Ticket, wait: float = 0.0) -> bool:
        """It is."""
        return True

    def load(self, host_slots: Slots, device_slots: Slots) -> None:
        """See `Transfer.load`."""
        self.device[device_slots] = self.host[host_slots]

    def read(self, host_slots: Slots, then: Callable[[Bytes], None]) -> None:
        """See `Transfer.read`."""
        then(self.host[host_slots].tobytes())

    def write(self, host_slots: Slots, data: Bytes) -> None:
        """See `Transfer.write`."""
        records = np.frombuffer(data, self.host.dtype)
        self.host[host_slots] = records.reshape(len(host_slots), *self.host.shape[1:])

    def close(self) -> None:
        """Nothing is left to do."""
